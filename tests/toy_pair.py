"""A target and a drafter over three tokens, small enough to enumerate every text the target can write."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dspark.engine import SamplingParams
from dspark.engine.models.drafter import Drafter
from dspark.engine.models.drafter_config import DrafterConfig
from dspark.engine.models.layers import WeightFormat
from dspark.engine.models.model_config import ModelConfig
from dspark.engine.models.target import Target

VOCAB = 3
GAMMA = 3
LAST_TOKEN = 12  # tokens 1 .. 12 of a completion are enumerated
_CPU = torch.device("cpu")
_SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
}
_DRAFTER = {
    "architectures": ["Qwen3DSparkModel"],
    "block_size": GAMMA,
    "mask_token_id": 2,
    "target_layer_ids": [-1, 0],
    "num_target_layers": 1,
    "markov_rank": VOCAB,
    "markov_head_type": "vanilla",
    "enable_confidence_head": True,
    "confidence_head_with_markov": True,
}


class TensorsInMemory:
    """Stands in for a checkpoint's files."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.tensors = tensors

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        assert self.tensors[name].shape == shape, name
        return self.tensors[name]

    read_ids = read


class _RandomTensors(TensorsInMemory):
    """Makes what it is asked for: norms of 1, matrices that keep a unit vector's length, but for `tensors`."""

    def __init__(self, tensors: dict[str, Tensor], *, absent: tuple[str, ...], seed: int) -> None:
        super().__init__(tensors)
        self._absent = absent
        self._generator = torch.Generator().manual_seed(seed)

    def __contains__(self, name: str) -> bool:
        return name not in self._absent

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        if name in self.tensors:
            return super().read(name, shape)
        if name.endswith("norm.weight"):
            return torch.ones(shape)
        return torch.randn(shape, generator=self._generator) / shape[-1] ** 0.5


@dataclass
class ToyPair:
    """`reference` is transformers' model of the same weights as `target`."""

    reference: Any
    target: Target
    drafter: Drafter


def make_toy_pair(seed: int = 2, *, draft_ids: tuple[int, ...] | None = None) -> ToyPair:
    """Texts far from uniform, a drafter that is often right but not always, confidence that reads drafted tokens.

    draft_ids: the tokens that the drafter can propose, if not all.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    reference = LlamaForCausalLM(LlamaConfig(**_SHAPE, bos_token_id=None, eos_token_id=None)).eval()
    for name, parameter in reference.named_parameters():
        if "norm" not in name:
            gain = {"model.embed_tokens.weight": 4.0, "lm_head.weight": 1.5}.get(name, 2.0)
            torch.nn.init.normal_(parameter, std=gain / parameter.shape[-1] ** 0.5)
    config = reference.config.to_dict() | {"architectures": ["LlamaForCausalLM"]}
    format = WeightFormat.of("float32", _CPU)
    target = Target(ModelConfig.from_dict(config), TensorsInMemory(reference.state_dict()), format)

    # The Markov head knows which token tends to follow which; what the context adds, the drafter has to guess. It
    # overrates token 2, so that a rejection leaves the choice between two others.
    embedding, head = reference.model.embed_tokens.weight, reference.lm_head.weight
    follows = head @ (embedding / embedding.square().mean(-1, keepdim=True).sqrt()).T  # [V, V]
    confidence = torch.cat([torch.zeros(_SHAPE["hidden_size"]), torch.tensor([2.0, 0.0, -2.0])])
    weights = _RandomTensors(
        {
            "markov_head.markov_w1.weight": torch.eye(VOCAB),
            "markov_head.markov_w2.weight": 0.5 * follows.detach() + torch.tensor([[0.0], [0.0], [2.0]]),
            "confidence_head.proj.weight": confidence[None],
            "confidence_head.proj.bias": torch.zeros(1),
        },
        absent=("embed_tokens.weight", "lm_head.weight", "t2d"),
        seed=seed + 1,
    )
    drafter_config = DrafterConfig.from_dict(_SHAPE | _DRAFTER)
    if draft_ids is not None:
        ids = torch.tensor(draft_ids)
        weights.tensors["d2t"] = ids - torch.arange(len(ids))
        weights.tensors["lm_head.weight"] = head.detach()[ids]
        weights.tensors["markov_head.markov_w2.weight"] = weights.tensors["markov_head.markov_w2.weight"][ids]
        drafter_config = replace(drafter_config, draft_vocab_size=len(ids))
    drafter = Drafter(drafter_config, weights, format, target=target)
    return ToyPair(reference, target, drafter)


@torch.inference_mode()
def history_logits(reference: Any, prompt: list[int]) -> list[np.ndarray]:
    """Entry t: the logits of token t + 1 behind each of the 3^t texts of t tokens, in counting order, [3^t, V]."""
    length = LAST_TOKEN - 1
    texts = np.stack(np.unravel_index(np.arange(VOCAB**length), [VOCAB] * length), axis=1)
    pieces = []
    for chunk in np.array_split(texts, 32):
        ids = np.concatenate([np.tile(prompt, (len(chunk), 1)), chunk], axis=1)
        logits = reference(torch.from_numpy(ids), use_cache=False).logits
        pieces.append(logits[:, len(prompt) - 1 :].double().numpy())
    logits = np.concatenate(pieces)  # [3^11, 12, V]
    # Texts that begin alike lie behind one another; the first of each group speaks for it.
    return [logits[:: VOCAB ** (length - t), t] for t in range(LAST_TOKEN)]


def text_probabilities(logits: list[np.ndarray], sampling: SamplingParams) -> list[np.ndarray]:
    """Entry t: probability of each of the 3^(t+1) texts of t + 1 tokens, in counting order."""
    texts, result = np.ones(1), []
    for behind in logits:
        texts = (texts[:, None] * token_probabilities(behind, sampling)).reshape(-1)
        result.append(texts)
    return result


def token_probabilities(logits: np.ndarray, sampling: SamplingParams) -> np.ndarray:
    """logits [n, V] float64 -> the distribution that `sampling` draws from, [n, V]."""
    order = np.argsort(-logits, axis=1, kind="stable")
    ordered = np.take_along_axis(logits, order, axis=1)
    # Greedy is the first of the order alone, whatever else is asked for.
    weights = np.exp((ordered - ordered[:, :1]) / (sampling.temperature or 1.0))
    weights[:, 1 if sampling.temperature == 0 else sampling.top_k or VOCAB :] = 0
    if sampling.top_p < 1:
        mass = weights.cumsum(axis=1) / weights.sum(axis=1, keepdims=True)
        # A token stays unless those before it reach the mass already.
        weights[:, 1:][mass[:, :-1] >= sampling.top_p] = 0
    probs = np.zeros_like(logits)
    np.put_along_axis(probs, order, weights / weights.sum(axis=1, keepdims=True), axis=1)
    return probs
