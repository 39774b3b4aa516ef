"""The engine: one target, one drafter, their caches, and the loop that decodes requests with them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from dspark.engine.batch import PackedBatch
from dspark.engine.config import EngineConfig
from dspark.engine.errors import EngineError, RequestError, UsageError
from dspark.engine.loop import DecodeLoop, LoopStats
from dspark.engine.models.aliases import drafter_for
from dspark.engine.models.drafter import Drafter
from dspark.engine.models.fingerprint import checkpoint_fingerprint
from dspark.engine.models.resolve import resolve_drafter, resolve_target
from dspark.engine.models.target import Target
from dspark.engine.requests import Completion, Request
from dspark.engine.scheduler.policies import Policy, parse_policy
from dspark.engine.stopping import StopText

if TYPE_CHECKING:
    from dspark.engine.proposals import DraftModel

CPU_KV_BYTES = 1 << 30
DEFAULT_CONCURRENCY = {"cpu": 16, "cuda": 256}


class Detokenizer(Protocol):
    """What the engine needs of a tokenizer, to follow stop strings and to know the tokenizer's own end token."""

    @property
    def eos_token_id(self) -> int | None:
        """The token that ends a text."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of `token_ids`, special tokens left out."""


class Engine:
    """Decodes requests with speculative decoding; the text is the target's own.

    Args:
        config: what to load and how to decode.
        target, drafter: models already in memory, in place of those that `config` names.
        policy: a scheduling policy object, in place of the one that `config.policy` spells.
        detokenizer: turns token ids into text; only needed for requests with stop strings.

    Raises:
        UsageError: the configuration contradicts itself or the device.
        CheckpointError: target or drafter cannot be loaded, or do not belong together.
    """

    def __init__(
        self,
        config: EngineConfig | None = None,
        *,
        target: Target | None = None,
        drafter: DraftModel | None = None,
        policy: Policy | None = None,
        detokenizer: Detokenizer | None = None,
    ) -> None:
        self.config = config = config or EngineConfig()
        self.device = _device(config.device)
        self.dtype = _dtype(config.dtype, self.device)
        self._checkpoints = {"target": "in memory", "drafter": "in memory"}
        if target is None:
            folder = resolve_target(config.target)
            target = Target.load(folder, device=self.device, dtype=self.dtype)
            self._checkpoints["target"] = checkpoint_fingerprint(folder)
            drafter_name = drafter_for(config.target, config.drafter)
            drafter_folder = resolve_drafter(drafter_name) if config.policy != "none" else None
            if drafter is None and drafter_folder is not None:
                drafter = Drafter.load(drafter_folder, target=target, device=self.device, dtype=self.dtype)
                self._checkpoints["drafter"] = checkpoint_fingerprint(drafter_folder)
        policy_name = config.policy or (f"fixed:{drafter.block_size}" if drafter is not None else "none")
        self.policy = policy or parse_policy(policy_name, drafter.block_size if drafter is not None else 0)
        self.policy_name = policy_name if policy is None else repr(policy)
        if not self.policy.drafts:
            drafter = None
        if drafter is None:
            self._checkpoints["drafter"] = "none"
        self.target = target
        self.drafter = drafter
        self.gamma = drafter.block_size if drafter is not None else 0
        self.confidence_temperatures = np.ones(self.gamma, dtype=np.float64)
        self.detokenizer = detokenizer
        self.stop_ids = _stop_ids(target, detokenizer)
        self.concurrency = config.concurrency or DEFAULT_CONCURRENCY[self.device.type]
        self.page_size = config.page_size
        self.max_context = self._context_limit()
        self.num_pages = self._count_pages()
        self.target_cache = target.new_cache(self.num_pages, self.page_size)
        self.draft_cache = drafter.new_cache(self.num_pages, self.page_size) if drafter is not None else None
        self.stats = LoopStats()
        self._decoding = False

    @torch.inference_mode()
    def generate(self, requests: Iterable[Request]) -> Iterator[Completion]:
        """Decode `requests`; completions come in the order in which they finish.

        Requests are pulled as slots become free, so an endless iterable is fine. A request that cannot run (an empty
        or too long prompt, a token id outside the vocabulary) completes with `finish_reason` "error".

        Raises:
            EngineError: this engine is already decoding another iterable.
        """
        if self._decoding:
            raise EngineError(
                "This engine is already decoding.", "Exhaust or close the first generate() before the next one."
            )
        self._decoding = True
        self.stats = LoopStats()
        try:
            yield from DecodeLoop(self, requests).run()
        finally:
            self._decoding = False

    def target_step(self, batch: PackedBatch, *, logit_rows: torch.Tensor | None = None) -> torch.Tensor:
        """Target forward over `batch`, with the main-cache write for every token of it: logits [n, V] fp32.

        The draft cache is written before anyone knows which tokens pass; visible lengths decide what may be read.
        """
        feature_layers = self.drafter.feature_layers if self.drafter is not None else ()
        output = self.target.forward(batch, self.target_cache, logit_rows=logit_rows, feature_layers=feature_layers)
        if self.drafter is not None and self.draft_cache is not None and output.features is not None:
            self.drafter.write_context(output.features, batch, self.draft_cache)
        return output.logits

    def check(self, request: Request) -> None:
        """Refuse a request that this engine can never run.

        Raises:
            RequestError: with the reason.
        """
        vocab_size = self.target.config.vocab_size
        prompt = np.asarray(request.prompt_token_ids)
        if prompt.size == 0:
            raise RequestError("the prompt is empty after tokenising")
        # Whole numbers beyond 64 bits make an array of objects, which is outside any vocabulary.
        if prompt.ndim != 1 or prompt.dtype.kind not in "iuO":
            raise RequestError("the prompt is not a list of token ids")
        if prompt.dtype.kind == "O" or prompt.min() < 0 or prompt.max() >= vocab_size:
            raise RequestError(f"a prompt token id lies outside 0 … {vocab_size - 1}")
        if prompt.size >= self.max_context:
            raise RequestError(
                f"the prompt has {prompt.size} tokens; the context limit is {self.max_context}, and one must be left"
            )
        if request.sampling.stop and self.detokenizer is None:
            raise RequestError("stop strings need a detokenizer, and this engine has none")

    def stop_text(self, stops: Sequence[str]) -> StopText:
        """A watcher for one request's stop strings."""
        assert self.detokenizer is not None, "check() refuses stop strings without a detokenizer"
        return StopText(self.detokenizer.decode, stops)

    def fingerprint(self) -> dict[str, str | int]:
        """What decides the text besides the requests: models, dtype, sampling mode, policy and seed."""
        return {
            **self._checkpoints,
            "device": self.device.type,
            "dtype": self.dtype,
            "policy": self.policy_name,
            "acceptance": self.config.acceptance,
            "seed": self.config.seed,
            "max_context": self.max_context,
        }

    def _context_limit(self) -> int:
        limits = [self.target.config.max_position_embeddings]
        if self.drafter is not None:
            limits.append(self.drafter.context_limit)
        if self.config.max_context is not None:
            if self.config.max_context > min(limits):
                raise UsageError(
                    f"max_context {self.config.max_context} is beyond what the models can see ({min(limits)} tokens)",
                    f"Give at most {min(limits)}.",
                )
            limits.append(self.config.max_context)
        return min(limits)

    def _count_pages(self) -> int:
        """Pages of the KV pool, padding included: as many as could ever be used, as far as memory reaches."""
        tokens_per_request = self.max_context + 1 + self.gamma
        pages_per_request = -(-tokens_per_request // self.page_size)
        wanted = self.concurrency * pages_per_request
        if self.config.kv_cache_tokens is not None:
            wanted = self.config.kv_cache_tokens // self.page_size
            if wanted < pages_per_request:
                raise UsageError(
                    f"{self.config.kv_cache_tokens} tokens of KV cache cannot hold one request of {tokens_per_request}",
                    f"Give at least {pages_per_request * self.page_size}, or lower the context limit.",
                )
            return 1 + wanted
        page_bytes = self.target.new_cache(1, self.page_size).bytes_per_page
        if self.drafter is not None:
            page_bytes += self.drafter.new_cache(1, self.page_size).bytes_per_page
        affordable = self._kv_bytes() // page_bytes
        if affordable < pages_per_request and self.device.type == "cuda":
            raise UsageError(
                f"{affordable * self.page_size} tokens of KV cache fit into GPU memory, one request may need "
                f"{tokens_per_request}",
                "Lower the context limit, or raise gpu_memory_utilization.",
            )
        return 1 + max(min(wanted, affordable), pages_per_request)

    def _kv_bytes(self) -> int:
        if self.device.type != "cuda":
            return CPU_KV_BYTES
        free, total = torch.cuda.mem_get_info(self.device)
        return max(int(free - (1 - self.config.gpu_memory_utilization) * total), 0)


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise UsageError("No CUDA device is usable here.", "Leave --device out, or give --device cpu.")
    return torch.device(name)


def _dtype(name: str, device: torch.device) -> str:
    if name != "auto":
        return name
    return "bfloat16" if device.type == "cuda" else "float32"


def _stop_ids(target: Target, detokenizer: Detokenizer | None) -> frozenset[int]:
    """End tokens of the checkpoint (config and generation config) and of the tokenizer."""
    own = detokenizer.eos_token_id if detokenizer is not None else None
    return frozenset(target.config.eos_token_ids) | (frozenset() if own is None else {own})
