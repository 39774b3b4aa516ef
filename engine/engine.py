"""The engine: one target, one drafter, their caches, and the loop that decodes requests with them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from dspark.engine.artefacts import confidence_temperatures, loaded_profile, make_planner
from dspark.engine.batch import PackedBatch
from dspark.engine.checkpoints import load_pair
from dspark.engine.config import EngineConfig
from dspark.engine.counts import RunStats
from dspark.engine.device import choose_device, choose_dtype
from dspark.engine.draft_top_k import kept_draft_tokens
from dspark.engine.errors import EngineError, RequestError, UsageError
from dspark.engine.graphs.decode_graphs import DecodeGraphs
from dspark.engine.graphs.static_memory import GraphSizes
from dspark.engine.loop import DecodeLoop
from dspark.engine.memory import kv_bytes, memory_report
from dspark.engine.models.drafter import Drafter
from dspark.engine.models.target import Target
from dspark.engine.ngram.drafter import NgramDrafter
from dspark.engine.observation import RoundObserver
from dspark.engine.progress import Progress
from dspark.engine.requests import Completion, NotYet, Request
from dspark.engine.round_meter import RoundListener
from dspark.engine.scheduler.drafting import draft_lengths
from dspark.engine.scheduler.planner import RoundPlanner
from dspark.engine.scheduler.policies import LengthPolicy, Planned, default_policy, parse_policy
from dspark.engine.stopping import Detokenizer, StopText
from dspark.kernels import NO_STOP

if TYPE_CHECKING:
    from dspark.engine.proposals import DraftModel

DEFAULT_CONCURRENCY = {"cpu": 16, "cuda": 256}
DEFAULT_PREFILL_CHUNK_TOKENS = {"cpu": 1024, "cuda": 8192}


class Engine:
    """Decodes requests with speculative decoding; the text is the target's own.

    Args:
        config: what to load and how to decode.
        target, drafter: models already in memory, in place of those that `config` names.
        policy: a scheduling policy object, in place of the one that `config.policy` spells.
        planner: plans the rounds of `causal` and `async`, in place of one made from `config.profile`.
        detokenizer: turns token ids into text; only needed for requests with stop strings.
        progress: told (what, done, total) while CUDA graphs are captured.

    Raises:
        UsageError: the configuration contradicts itself or the device.
        CheckpointError: target or drafter cannot be loaded, or do not belong together.
    """

    def __init__(
        self,
        config: EngineConfig | None = None,
        *,
        target: Target | None = None,
        drafter: DraftModel | NgramDrafter | None = None,
        policy: LengthPolicy | Planned | None = None,
        planner: RoundPlanner | None = None,
        detokenizer: Detokenizer | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.config = config = config or EngineConfig()
        self.device = choose_device(config.device)
        self.dtype = choose_dtype(config.dtype, self.device)
        drafts = policy.drafts if policy is not None else config.policy != "none"
        pair = load_pair(config, device=self.device, dtype=self.dtype, target=target, drafter=drafter, drafts=drafts)
        self.draft_top_k = kept_draft_tokens(config, pair.drafter)  # None: q is kept in full
        self.planner: RoundPlanner | None = None
        self.notes: list[str] = []  # sentences about what may make a profile or a calibration less than exact
        self.target, self._checkpoints = pair.target, pair.fingerprints
        target = self.target
        # Either drafts, or neither: a network, or what is looked up in the texts that the host has.
        self.ngram = pair.drafter if isinstance(pair.drafter, NgramDrafter) else None
        self.drafter = drafter = None if isinstance(pair.drafter, NgramDrafter) else pair.drafter
        self.gamma = pair.drafter.block_size if pair.drafter is not None else 0
        policy_name = config.policy or default_policy(self.gamma, plans=planner is not None or bool(config.profile))
        self.policy = policy or parse_policy(policy_name, self.gamma)
        self.policy_name = policy_name if policy is None else repr(policy)
        if self.policy.drafts and self.gamma == 0:
            raise UsageError(
                f"policy {self.policy_name} verifies drafts, and there is no drafter",
                "Give a drafter, or use the policy none.",
            )
        if self.ngram is not None and config.pipeline_depth:
            raise UsageError(
                f"pipeline_depth is {config.pipeline_depth}, and n-gram drafts need the text that is still in flight",
                "Leave it out, or give 0.",
            )
        self.detokenizer = detokenizer
        self.stop_ids = _stop_ids(target, detokenizer)
        self.stop_id_tensor = torch.tensor(sorted(self.stop_ids) or [NO_STOP], device=self.device)  # [n] int64
        self.concurrency = config.concurrency or self._default_concurrency()
        self.page_size = config.page_size
        self.prefill_chunk_tokens = config.prefill_chunk_tokens or DEFAULT_PREFILL_CHUNK_TOKENS[self.device.type]
        # A GPU takes as long for the prompt of one request as for those of a few; a CPU as long as the tokens do.
        self.prefills_in_company = self.device.type == "cuda"
        self.max_context = self._context_limit()
        self.confidence_temperatures = confidence_temperatures(self)  # [G]
        self.temperature_tensor = torch.tensor(self.confidence_temperatures, dtype=torch.float32, device=self.device)
        self.target_page_bytes = target.new_cache(1, self.page_size).bytes_per_page
        self.draft_page_bytes = drafter.new_cache(1, self.page_size).bytes_per_page if drafter is not None else 0
        self.graph_sizes = GraphSizes(
            concurrency=self.concurrency,
            steps=self.policy.steps(self.gamma) if self.gamma else 0,
            block_width=drafter.block_width if drafter is not None else 0,
            vocab_size=target.config.vocab_size,
            max_pages=self.pages_per_request,
            lengths=draft_lengths(self.gamma) if isinstance(self.policy, Planned) and drafter is not None else (),
            keeps_q=drafter is not None,
            draft_top_k=self.draft_top_k,
        )
        self.num_pages = self._count_pages()
        self.target_cache = target.new_cache(self.num_pages, self.page_size)
        self.draft_cache = drafter.new_cache(self.num_pages, self.page_size) if drafter is not None else None
        self.graphs = self._capture_graphs(progress)
        if isinstance(self.policy, Planned):
            self.planner = planner or make_planner(self, self.policy)
        self.stats = RunStats()
        # Told of every round, which then waits for the one before it; None: nobody is.
        self.observer: RoundObserver | None = None
        # Told of every round's plan and measured time; None: nobody is.
        self.round_listener: RoundListener | None = None
        # Where rounds are graph replays: are all of them timed, or a sample.
        self.times_every_round = False
        self._decoding = False

    @property
    def allocates(self) -> bool:
        """Does the device decide how much of each block is verified: where it knows the block before the host does."""
        return isinstance(self.policy, Planned) and not self.policy.causal and self.ngram is None

    @property
    def pages_per_request(self) -> int:
        """Pages of a request at the context limit: the text, an anchor, and a draft block behind it."""
        return -(-(self.max_context + 1 + self.gamma) // self.page_size)

    def memory_report(self) -> dict[str, int]:
        """Bytes by name: caches, logit buffers, the draft's q, graph inputs, the graphs' pool, weights and the rest."""
        return memory_report(self)

    @torch.inference_mode()
    def generate(self, requests: Iterable[Request | NotYet]) -> Iterator[Completion]:
        """Decode `requests`; completions come in the order in which they finish.

        Requests are pulled as slots become free, so an endless iterable is fine, and so is one that has the next only
        once others are done (`NOT_YET`). A request that cannot run (an empty or too long prompt, a token id outside the
        vocabulary) completes with `finish_reason` "error".

        Raises:
            EngineError: this engine is already decoding another iterable.
        """
        if self._decoding:
            raise EngineError(
                "this engine is already decoding", "Exhaust or close the first generate() before the next one."
            )
        self._decoding = True
        self.stats = RunStats()
        try:
            yield from DecodeLoop(self, requests, depth=self._pipeline_depth()).run()
        finally:
            self._decoding = False

    def target_step(
        self,
        batch: PackedBatch,
        *,
        logit_rows: torch.Tensor | None = None,
        logits_out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Target forward over `batch`, with the main-cache write for every token of it: logits [n, V] fp32.

        The draft cache is written before anyone knows which tokens pass; visible lengths decide what may be read.
        """
        feature_layers = self.drafter.feature_layers if self.drafter is not None else ()
        output = self.target.forward(
            batch, self.target_cache, logit_rows=logit_rows, feature_layers=feature_layers, logits_out=logits_out
        )
        if self.drafter is not None and self.draft_cache is not None and output.features is not None:
            self.drafter.write_context(output.features, batch, self.draft_cache)
        return output.logits

    def check(self, request: Request) -> None:
        """Refuse a request that this engine can never run.

        Raises:
            RequestError: with the reason.
        """
        vocab_size = self.target.config.vocab_size
        no_list = RequestError("the prompt is no list of token ids", "Give whole numbers.")
        try:
            prompt = np.asarray(request.prompt_token_ids)
        except ValueError:  # lists of unequal length
            raise no_list from None
        if prompt.size == 0:
            raise RequestError("the prompt is empty after tokenising", "Give at least one token.")
        # Whole numbers beyond 64 bits become objects or floats; they are outside any vocabulary.
        huge = prompt.dtype.kind in "Of" and all(isinstance(token, int) for token in request.prompt_token_ids)
        if prompt.ndim != 1 or not (huge or prompt.dtype.kind in "iu"):
            raise no_list
        if huge or prompt.min() < 0 or prompt.max() >= vocab_size:
            raise RequestError(
                f"a prompt token id lies outside 0 … {vocab_size - 1}", "Use the tokenizer that belongs to the target."
            )
        if prompt.size >= self.max_context:
            raise RequestError(
                f"the prompt has {prompt.size} tokens and leaves none of the context limit of {self.max_context}",
                "Shorten the prompt; where earlier turns fill it, lower max_tokens or give fewer turns.",
            )
        if request.sampling.stop and self.detokenizer is None:
            raise RequestError("stop strings need a tokenizer, and there is none", "Leave `stop` out.")

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
            # Left out where it is off, so that what ran before there was such an option can be resumed.
            **({} if self.config.draft_top_k is None else {"draft_top_k": self.config.draft_top_k}),
        }

    def _default_concurrency(self) -> int:
        """What suits the device, as far as the profile that rounds are planned by knows so many requests."""
        most = DEFAULT_CONCURRENCY[self.device.type]
        if not isinstance(self.policy, Planned) or self.config.profile is None:
            return most
        profiled = loaded_profile(self.config.profile).curve.max_requests
        if profiled < most:
            self.notes.append(f"{profiled} requests are decoded at once, as many as the profile knows of, not {most}.")
        return min(most, profiled)

    def _pipeline_depth(self) -> int:
        if self.observer is not None or self.ngram is not None:
            # One looks at what the next round writes over, the other needs all of a text to go on with it.
            return 0
        if self.config.pipeline_depth is not None:
            return self.config.pipeline_depth
        return 0 if self.graphs is None else 1

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
        pages_per_request = self.pages_per_request
        wanted = self.concurrency * pages_per_request
        if self.config.kv_cache_tokens is not None:
            wanted = self.config.kv_cache_tokens // self.page_size
            if wanted < pages_per_request:
                raise UsageError(
                    f"{self.config.kv_cache_tokens} tokens of KV cache cannot hold one request of "
                    f"{self.max_context + 1 + self.gamma}",
                    f"Give at least {pages_per_request * self.page_size}, or lower the context limit.",
                )
            return 1 + wanted
        affordable = kv_bytes(self) // (self.target_page_bytes + self.draft_page_bytes)
        if affordable < pages_per_request and self.device.type == "cuda":
            raise UsageError(
                f"{affordable * self.page_size} tokens of KV cache fit into GPU memory, and one request may need "
                f"{self.max_context + 1 + self.gamma}",
                "Lower the context limit, or raise gpu_memory_utilization.",
            )
        return 1 + max(min(wanted, affordable), pages_per_request)

    def _capture_graphs(self, progress: Progress | None) -> DecodeGraphs | None:
        """On a GPU, the graphs of this policy's rounds; drafters that are no network are run eagerly."""
        if self.device.type != "cuda" or not self.config.graphs:
            return None
        if self.drafter is not None and not isinstance(self.drafter, Drafter):
            return None
        graphs = DecodeGraphs(self, self.graph_sizes, drafter=self.drafter)
        graphs.capture_all(progress)
        return graphs


def _stop_ids(target: Target, detokenizer: Detokenizer | None) -> frozenset[int]:
    """End tokens of the checkpoint (config and generation config) and of the tokenizer."""
    own = detokenizer.eos_token_id if detokenizer is not None else None
    return frozenset(target.config.eos_token_ids) | (frozenset() if own is None else {own})
