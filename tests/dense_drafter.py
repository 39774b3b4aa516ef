"""The drafter written once more, dense and in float64, as an oracle for what no fixture covers."""

import torch
from torch import Tensor


def _norm(x, weight, eps):
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def _rope(x, positions, theta):
    """x [n, heads, D] turned by its absolute positions [n]."""
    half = x.shape[-1] // 2
    angles = positions[:, None].double() * theta ** (-torch.arange(half).double() / half)
    turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angles), angles)[:, None]
    return torch.cat((turned.real, turned.imag), -1)


class DenseDrafter:
    """Everything in one pass over one request: no cache, no fusing, no paging.

    samples_anchor: does the anchor's slot draft the first of the `block_size` tokens, or has the block a slot more.
    ids: target id of each row of the head. window: (size, layers, causal inside the block).
    """

    def __init__(
        self,
        config: dict,
        weights: dict[str, Tensor],
        *,
        embed: Tensor,
        head: Tensor,
        samples_anchor: bool = True,
        ids: Tensor | None = None,
        window: tuple[int, set[int], bool] = (0, set(), False),
    ) -> None:
        self.config = config
        self.first_slot = 0 if samples_anchor else 1
        self.ids = torch.arange(head.shape[0]) if ids is None else ids
        self.window = window
        self.w = {name: tensor.double() for name, tensor in weights.items()}
        self.embed, self.head = embed.double(), head.double()

    def _heads(self, layer, kind, x):
        name = f"layers.{layer}.self_attn.{kind}_proj"
        y = x @ self.w[f"{name}.weight"].T
        if f"{name}.bias" in self.w:
            y = y + self.w[f"{name}.bias"]
        return y.view(x.shape[0], -1, self.config["head_dim"])

    def _seen(self, layer, start, width):
        """[width, start + width] bool: what each slot of the block sees of context and block."""
        size, layers, causal = self.window
        if layer not in layers:
            return torch.ones(width, start + width, dtype=torch.bool)
        query, key = torch.arange(start, start + width)[:, None], torch.arange(start + width)[None]
        context = (key < start) & (key >= start - size)
        return context | ((key >= start) & (key <= query if causal else key >= start))

    def hidden(self, features, anchor, start):
        """features [start, n*H] of positions 0 .. start-1 -> [B, H] after the final norm."""
        c, w, eps = self.config, self.w, self.config["rms_norm_eps"]
        theta = c["rope_parameters"]["rope_theta"]
        context = _norm(features.double() @ w["fc.weight"].T, w["hidden_norm.weight"], eps)
        width = c["block_size"] + self.first_slot
        block = torch.arange(start, start + width)
        x = self.embed[torch.tensor([anchor] + [c["mask_token_id"]] * (width - 1))]
        for i in range(c["num_hidden_layers"]):
            layer = f"layers.{i}"
            h = _norm(x, w[f"{layer}.input_layernorm.weight"], eps)
            q_norm, k_norm = (w[f"{layer}.self_attn.{n}_norm.weight"] for n in "qk")
            q = _rope(_norm(self._heads(i, "q", h), q_norm, eps), block, theta)
            k = _norm(torch.cat((self._heads(i, "k", context), self._heads(i, "k", h))), k_norm, eps)
            k = _rope(k, torch.cat((torch.arange(start), block)), theta)
            v = torch.cat((self._heads(i, "v", context), self._heads(i, "v", h)))
            group = q.shape[1] // k.shape[1]
            k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
            attention = torch.einsum("qhd,khd->hqk", q, k) / c["head_dim"] ** 0.5
            attention = attention.masked_fill(~self._seen(i, start, width), -torch.inf)
            out = torch.einsum("hqk,khd->qhd", attention.softmax(-1), v).flatten(1)
            x = x + out @ w[f"{layer}.self_attn.o_proj.weight"].T + w.get(f"{layer}.self_attn.o_proj.bias", 0)
            h = _norm(x, w[f"{layer}.post_attention_layernorm.weight"], eps)
            gate, up = (h @ w[f"{layer}.mlp.{n}_proj.weight"].T for n in ("gate", "up"))
            x = x + (gate * gate.sigmoid() * up) @ w[f"{layer}.mlp.down_proj.weight"].T
        return _norm(x, w["norm.weight"], eps)

    def draft(self, features, anchor, start):
        """Greedy tokens [G], corrected logits [G, rows of the head], confidence logits [G] or None."""
        c, w = self.config, self.w
        hidden = self.hidden(features, anchor, start)
        logits, tokens, confidence = hidden @ self.head.T, [], []
        state, previous = torch.zeros(c["markov_rank"]).double(), anchor
        for k in range(len(hidden)):
            e = None
            if c["markov_rank"]:
                e = w["markov_head.markov_w1.weight"][previous]
                into_w2 = e
                if c["markov_head_type"] == "gated":
                    gate = w["markov_head.gate_proj.weight"] @ torch.cat((hidden[k], e))
                    into_w2 = (gate + w["markov_head.gate_proj.bias"]).sigmoid() * e
                if c["markov_head_type"] == "rnn":
                    joint = w["markov_head.joint_proj.weight"] @ torch.cat((state, e, hidden[k]))
                    g, candidate, o = (joint + w["markov_head.joint_proj.bias"]).view(3, -1)
                    state = g.sigmoid() * state + (1 - g.sigmoid()) * candidate.tanh()
                    into_w2 = o.tanh()
                logits[k] += w["markov_head.markov_w2.weight"] @ into_w2
            if c.get("enable_confidence_head"):
                seen = torch.cat((hidden[k], e)) if c.get("confidence_head_with_markov") else hidden[k]
                confidence.append(w["confidence_head.proj.weight"][0] @ seen + w["confidence_head.proj.bias"][0])
            if k >= self.first_slot:
                previous = int(self.ids[logits[k].argmax()])
                tokens.append(previous)
        confidence = torch.stack(confidence)[self.first_slot :] if confidence else None
        return torch.tensor(tokens), logits[self.first_slot :], confidence
