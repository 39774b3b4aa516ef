"""The DSpark drafter: a DFlash backbone that fills a block in one pass, and the heads that walk it left to right."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from dspark.engine.batch import PackedBatch
from dspark.engine.models.block_logits import BlockLogits
from dspark.engine.models.decoder import Decoder
from dspark.engine.models.draft_vocabulary import load_draft_vocabulary
from dspark.engine.models.drafter_config import DrafterConfig
from dspark.engine.models.drafter_weights import (
    load_confidence_head,
    load_context_kv,
    load_embedding,
    load_lm_head,
    load_markov_head,
)
from dspark.engine.models.kv_cache import KVCache
from dspark.engine.models.layers import WeightFormat
from dspark.engine.models.target import Target
from dspark.engine.models.target_weights import Weights, load_linear, load_norm
from dspark.engine.models.tensor_shapes import unused_tensors
from dspark.engine.models.weights import Checkpoint
from dspark.engine.models.window_layout import window_layout
from dspark.engine.proposals import DraftBlock, DraftOutput
from dspark.kernels import TopQ, confidence_logits, headless_confidence_logits, write_main_cache


class Drafter:
    """Weights and forwards of a drafter checkpoint. Neither waits for the device: CUDA graphs can hold both."""

    def __init__(self, config: DrafterConfig, weights: Weights, format: WeightFormat, *, target: Target) -> None:
        backbone = config.backbone
        self.config = config
        self.device = format.device
        self.dtype = format.activation
        self.embed = load_embedding(config, weights, format, shared=target.embed)
        self.vocabulary = load_draft_vocabulary(config, weights, format.device)
        self.head = load_lm_head(config, weights, format, shared=target.head, vocabulary=self.vocabulary)
        num_features = len(config.target_layer_ids) * backbone.hidden_size
        self.fc = load_linear(weights, ["fc"], [backbone.hidden_size], num_features, bias=False, format=format)
        self.hidden_norm = load_norm(weights, "hidden_norm.weight", backbone.hidden_size, format)
        self.context_kv = load_context_kv(config, weights, format)
        self.decoder = Decoder(
            backbone,
            weights,
            format,
            prefix="",
            # The block behind a full context still needs its positions.
            num_positions=backbone.max_position_embeddings + config.block_width,
            windowed=frozenset() if config.window is None else config.window.layers,
        )
        k_norms = [layer.k_norm for layer in self.decoder.layers if layer.k_norm is not None]
        self.k_norms = torch.stack(k_norms)  # [Ld, D]
        self.markov = load_markov_head(config, weights, format, vocabulary=self.vocabulary)
        self.confidence = load_confidence_head(config, weights, format)
        # The slot whose output drafts the first token.
        self._first_slot = 0 if config.samples_anchor else 1
        self._offsets = torch.arange(config.block_width, device=format.device)  # [B]
        self._masks = torch.full((1, config.block_width), config.mask_token_id, device=format.device)  # [1, B]

    @classmethod
    def load(cls, folder: Path, *, target: Target, device: torch.device, dtype: str) -> Drafter:
        """Load a checkpoint folder for `target`, whose embedding and head it shares where it has none.

        Raises:
            CheckpointError: it cannot be read, is of no format that is known, or was not made for this target.
        """
        config = DrafterConfig.from_folder(folder)
        config.check_target(target.config)
        checkpoint = Checkpoint(folder)
        drafter = cls(config, checkpoint, WeightFormat.of(dtype, device), target=target)
        checkpoint.refuse_unread(unused=unused_tensors(config))
        return drafter

    @property
    def block_size(self) -> int:
        """Most tokens one block can hold (G)."""
        return self.config.block_size

    @property
    def block_width(self) -> int:
        """Slots of a block, the anchor's included (B): G or, if the anchor's slot drafts nothing, G + 1."""
        return self.config.block_width

    @property
    def vocab_size(self) -> int:
        """Tokens that it can propose."""
        return self.config.backbone.vocab_size if self.vocabulary is None else len(self.vocabulary.ids)

    @property
    def mask_token_id(self) -> int:
        """Token of the block's slots behind the anchor."""
        return self.config.mask_token_id

    @property
    def context_limit(self) -> int:
        """Longest context it can draft behind."""
        return self.config.backbone.max_position_embeddings

    @property
    def feature_layers(self) -> tuple[int, ...]:
        """Target layers whose features `write_context` reads."""
        return self.config.target_layer_ids

    def new_cache(self, num_pages: int, page_size: int) -> KVCache:
        """An empty main cache, page 0 included in the count."""
        return self.decoder.new_cache(num_pages, page_size)

    @torch.inference_mode()
    def write_context(self, features: Tensor, batch: PackedBatch, cache: KVCache) -> None:
        """features [T, n*H] of the tokens of `batch` -> their K and V in every draft layer."""
        backbone = self.config.backbone
        # No input_layernorm here, unlike in the block: hidden_norm takes its place for all layers.
        kv = self.context_kv(self.fc(features), norm=self.hidden_norm, eps=backbone.rms_norm_eps)
        kv = kv.view(-1, backbone.num_layers, 2, backbone.num_kv_heads, backbone.head_dim)
        cos, sin = self.decoder.rope.gather(batch.positions)
        write_main_cache(
            kv,
            cos,
            sin,
            k_norm=self.k_norms,
            k_cache=cache.k,
            v_cache=cache.v,
            cache_rows=batch.cache_rows,
            eps=backbone.rms_norm_eps,
        )

    @torch.inference_mode()
    def draft(self, block: DraftBlock, cache: KVCache, *, out: DraftOutput | None = None) -> DraftOutput:
        """Propose `block.steps` tokens a request; the block's own K and V go to `block.cache_rows`.

        out: memory for tokens, logits and confidence logits. Its logits hold q then only if some row may be sampled.
        q is over the target's ids, -inf for those that the drafter does not know. With `block.top_k`, blocks that may
        be sampled are drawn from `top` and have no other q: logits of `out` are then memory to work in.
        """
        hidden = self._block_hidden(block, cache)  # [R, B, H]
        num_requests, _, hidden_size = hidden.shape
        drafted = hidden[:, self._first_slot : self._first_slot + block.steps]
        num_rows = num_requests * block.steps
        memory = None if out is None else out.logits
        top = None
        if block.top_k is not None and block.noise is not None:
            shape = (num_requests, block.steps)
            top = TopQ.uniform(*shape, count=block.top_k, device=self.device) if out is None else out.top
            assert top is not None, "memory for a block comes with memory for its q"
        room = None
        if memory is not None and (self.vocabulary is None or block.top_k is not None):
            room = memory.view(-1)[: num_rows * self.vocab_size].view(num_rows, -1)
        rows = self.head(drafted.reshape(num_rows, hidden_size), room)
        # Greedy rows have a one-hot q, so only a confidence that is read off the logits needs them corrected.
        wanted = out is None or block.noise is not None
        logits = BlockLogits.of(
            rows.view(num_requests, block.steps, -1),
            vocabulary=self.vocabulary,
            memory=memory,
            wanted=wanted,
            kept=wanted or self.confidence is None,
            top=top,
        )
        tokens = self._walk(block, hidden, logits)
        if out is None:
            confidence = torch.empty(num_requests, block.steps, dtype=torch.float32, device=self.device)
            out = DraftOutput(tokens=tokens, logits=logits.q, confidence_logits=confidence, top=top)
        else:
            out.tokens.copy_(tokens)
        out.hidden = hidden
        if self.confidence is None:
            headless_confidence_logits(logits.rows, temperature=block.temperature, out=out.confidence_logits)
        else:
            confidence_logits(
                drafted,
                None if self.markov is None else self.markov.w1,
                # A position is judged by the token before it: what it says must not depend on its own token.
                torch.cat((block.anchors[:, None], tokens[:, :-1]), dim=1),
                weight=self.confidence.weight,
                bias=self.confidence.bias,
                out=out.confidence_logits,
            )
        return out

    def _block_hidden(self, block: DraftBlock, cache: KVCache) -> Tensor:
        """Hidden states [R, B, H] of `[anchor, mask x (B-1)]` after the final norm."""
        num_requests = block.anchors.shape[0]
        width, window = self.block_width, self.config.window
        token_ids, positions = block.token_ids, block.positions
        if token_ids is None or positions is None:
            token_ids = self._masks.repeat(num_requests, 1)  # [R, B]
            token_ids[:, 0] = block.anchors
            positions = block.starts[:, None] + self._offsets
        residual = self.embed(token_ids.view(-1))  # [R*B, H]
        windowed = None
        if window is not None:
            windowed = window_layout(window, block, width=width, context_limit=self.context_limit)
        hidden = self.decoder(
            residual,
            positions.view(-1),
            cache,
            cache_rows=block.cache_rows,
            attention=block.attention,
            window_attention=windowed,
        )
        return hidden.view(num_requests, width, -1)

    def _walk(self, block: DraftBlock, hidden: Tensor, logits: BlockLogits) -> Tensor:
        """Choose the tokens [R, steps] left to right, each behind the one before it. hidden [R, B, H]."""
        markov = self.markov
        state = markov.initial_state(block.anchors.shape[0]) if markov is not None else None
        previous, embedding, tokens = block.anchors, None, []
        for slot in range(self._first_slot + block.steps):
            if markov is not None:
                # A recurrent state runs through the anchor's slot too, whether or not that drafts a token.
                state, embedding = markov.advance(state, hidden[:, slot], previous)
            if slot < self._first_slot:
                continue
            step = slot - self._first_slot
            previous = logits.choose(step, block, previous, markov=markov, embedding=embedding)
            tokens.append(previous)
        return torch.stack(tokens, dim=1)
