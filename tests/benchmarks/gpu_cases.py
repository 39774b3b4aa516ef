"""The kernels' work as the GPU benchmark times it: shapes, inputs, correctness checks, and least bytes and products."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from gpu_timing import copies_for
from torch import Tensor
from torch.testing import assert_close

from dspark import kernels
from dspark.kernels import DRAFT, AttentionLayout, NoiseKeys, SamplingRows
from dspark.kernels.attention import reference as attention_reference
from dspark.kernels.linear import reference as linear_reference
from dspark.kernels.main_cache import reference as main_cache_reference
from dspark.kernels.markov import reference as markov_reference
from dspark.kernels.rope_cache import rotation_tables
from dspark.kernels.verification import reference as verification_reference

DEVICE = "cuda"
BF16 = torch.bfloat16
TOLERANCE = 3e-2
PAGE = 16
VOCAB = 49152
GAMMA = 7


@dataclass(frozen=True, slots=True)
class Shape:
    name: str
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int

    @property
    def qkv(self) -> int:
        return (self.heads + 2 * self.kv_heads) * self.head_dim


SMOL = Shape("SmolLM2-135M", 576, 1536, 9, 3, 64)
QWEN = Shape("Qwen3-4B", 2560, 9728, 32, 8, 128)


@dataclass(slots=True)
class Case:
    """One row: the same work on several sets of inputs, so that no cache serves it."""

    name: str
    detail: str
    calls: list[Callable[[], object]]
    check: Callable[[], None]
    num_bytes: float
    flops: float = 0.0
    peers: list[Callable[[], object]] | None = None


def randn(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
    return torch.randn(*shape, device=DEVICE, dtype=dtype)


def ints(values: object, dtype: torch.dtype = torch.int32) -> Tensor:
    return torch.as_tensor(values, device=DEVICE, dtype=dtype)


@dataclass(slots=True)
class AttentionInputs:
    q: Tensor
    caches: list[tuple[Tensor, Tensor]]
    layout: AttentionLayout
    scale: float
    num_bytes: float

    @classmethod
    def make(cls, shape: Shape, context: int, query_lens: Tensor, *, causal: bool = True) -> AttentionInputs:
        requests = len(query_lens)
        pages = -(-context // PAGE)
        rows = (requests * pages + 1) * PAGE
        num_bytes = 2 * requests * context * shape.kv_heads * shape.head_dim * BF16.itemsize
        layout = AttentionLayout(
            block_tables=ints(torch.randperm(requests * pages) + 1).view(requests, pages),
            query_starts=ints(torch.cat((torch.zeros(1), query_lens.cumsum(0)))),
            kv_lens=ints([context] * requests),
            page_size=PAGE,
            max_query_len=int(query_lens.max()) if int(query_lens.max()) == 1 else 1 + GAMMA,
            max_kv_len=context,
            causal=causal,
        )
        caches = [
            (randn(rows, shape.kv_heads, shape.head_dim), randn(rows, shape.kv_heads, shape.head_dim))
            for _ in range(copies_for(num_bytes))
        ]
        q = randn(int(query_lens.sum()), shape.heads, shape.head_dim)
        return cls(q, caches, layout, shape.head_dim**-0.5, num_bytes)

    def calls(self) -> list[Callable[[], object]]:
        return [
            functools.partial(kernels.paged_attention, self.q, k, v, self.layout, scale=self.scale)
            for k, v in self.caches
        ]

    def check(self) -> None:
        plain = dataclasses.replace(self.layout)
        expected = attention_reference.paged_attention(self.q, *self.caches[0], plain, scale=self.scale)
        assert_close(self.calls()[0](), expected, atol=TOLERANCE, rtol=TOLERANCE)


def attention_cases() -> Iterator[Case]:
    # Ragged and equal have one total: 288 tokens of 64 requests.
    equal = torch.tensor([4, 5] * 32)
    ragged = (1 + torch.arange(64) % 8)[torch.randperm(64)]
    one = torch.ones(256, dtype=torch.int64)
    rows = [(SMOL, n, context, one[:n], "1 query") for n, context in ((1, 256), (1, 4096), (64, 256), (64, 4096))]
    rows += [(SMOL, 256, 256, one, "1 query")]
    rows += [(SMOL, 64, 4096, equal, "4 or 5 queries"), (SMOL, 64, 4096, ragged, "1 … 8 queries")]
    rows += [(QWEN, 1, 256, one[:1], "1 query"), (QWEN, 64, 4096, one[:64], "1 query")]
    rows += [(QWEN, 64, 4096, ragged, "1 … 8 queries")]
    for shape, requests, context, query_lens, what in rows:
        inputs = AttentionInputs.make(shape, context, query_lens)
        detail = f"{shape.name}, {requests} x {context}, {what}"
        yield Case("attention", detail, inputs.calls(), inputs.check, inputs.num_bytes)
    inputs = AttentionInputs.make(SMOL, 256, torch.full((64,), GAMMA), causal=False)
    yield Case("attention", f"{SMOL.name}, 64 x 256, draft block", inputs.calls(), inputs.check, inputs.num_bytes)


def linear_cases() -> Iterator[Case]:
    for shape, rows in itertools.product((SMOL, QWEN), (1, 4, 64)):
        yield from (linear_case(shape, op, rows) for op in ("qkv", "o", "gate_up", "down"))
    yield linear_case(SMOL, "head", 1)
    yield linear_case(SMOL, "head", 64)


def linear_case(shape: Shape, op: str, rows: int) -> Case:
    columns, width = {
        "qkv": (shape.qkv, shape.hidden),
        "o": (shape.hidden, shape.heads * shape.head_dim),
        "gate_up": (2 * shape.intermediate, shape.hidden),
        "down": (shape.hidden, shape.intermediate),
        "head": (VOCAB, shape.hidden),
    }[op]
    num_bytes = columns * width * BF16.itemsize
    weights = [randn(columns, width).mul_(width**-0.5) for _ in range(copies_for(num_bytes))]
    x, norm_weight, residual = randn(rows, width), randn(width), randn(rows, columns)
    adds = op in ("o", "down")
    options = {
        "norm_weight": None if adds else norm_weight,
        "activation": "silu_mul" if op == "gate_up" else None,
        "out_dtype": torch.float32 if op == "head" else None,
    }

    def run(weight: Tensor, stream: Tensor = residual) -> Tensor:
        return kernels.linear(x, weight, residual=stream if adds else None, **options)

    def peer(weight: Tensor) -> Tensor:
        if adds:
            return residual.addmm_(x, weight.t())
        y = kernels.rms_norm(x, norm_weight, eps=1e-6)
        if op == "head":
            return torch.mm(y, weight.t(), out_dtype=torch.float32)
        y = torch.mm(y, weight.t())
        return kernels.silu_mul(y) if op == "gate_up" else y

    def check() -> None:
        before = residual.clone()
        stream = before.clone() if adds else None
        expected = linear_reference.linear(x, weights[0], residual=stream, **options)
        assert_close(run(weights[0], before), expected, atol=TOLERANCE, rtol=TOLERANCE)

    return Case(
        "linear",
        f"{shape.name} {op}, {rows} rows",
        [functools.partial(run, weight) for weight in weights],
        check,
        num_bytes,
        2.0 * rows * columns * width,
        [functools.partial(peer, weight) for weight in weights],
    )


def markov_cases() -> Iterator[Case]:
    for rows, rank, sampled in ((1, 64, False), (64, 64, False), (64, 64, True), (64, 256, True)):
        yield markov_case(rows, rank, sampled=sampled)


def markov_case(rows: int, rank: int, *, sampled: bool) -> Case:
    """The walk of a whole block, whose steps wait for each other."""
    logits = randn(rows, GAMMA, VOCAB, dtype=torch.float32)
    w1, w2 = randn(VOCAB, rank), randn(VOCAB, rank).mul_(rank**-0.5)
    anchors, temperature = torch.arange(rows, device=DEVICE), torch.full((rows,), 0.8 * sampled, device=DEVICE)
    noise = NoiseKeys(anchors + 5, anchors + 100, torch.zeros_like(anchors), purpose=DRAFT) if sampled else None
    step_of = functools.partial(kernels.markov_step, noise=noise, temperature=temperature)

    def run() -> None:
        previous = anchors
        for step in range(GAMMA):
            previous = step_of(logits[:, step], w1, w2, previous)

    def check() -> None:
        expected_of = functools.partial(markov_reference.markov_step, noise=noise, temperature=temperature)
        ours, theirs = logits[:, 0].clone(), logits[:, 0].clone()
        tokens = step_of(ours, w1, w2, anchors)
        expected_of(theirs, w1, w2, anchors)
        assert_close(ours, theirs, atol=1e-3, rtol=1e-3)
        # The draw is judged on our own logits, so that no near-tie can depend on the order of a sum.
        assert torch.equal(tokens, expected_of(ours, None, None, anchors)), "another token"

    detail = f"{GAMMA} steps, {rows} requests, rank {rank}, {'sampled' if sampled else 'greedy'}"
    num_bytes = 2 * logits.nbytes + GAMMA * w2.nbytes
    return Case("markov", detail, [run], check, num_bytes, 2.0 * GAMMA * rows * VOCAB * rank)


def verify_cases() -> Iterator[Case]:
    for temperature, top_k, top_p in ((0.0, 0, 1.0), (0.8, 0, 1.0), (0.8, 50, 0.95)):
        yield verify_case(temperature, top_k, top_p)


def verify_case(temperature: float, top_k: int, top_p: float) -> Case:
    rows, steps = 64, GAMMA + 1
    target = randn(rows * steps, VOCAB, dtype=torch.float32)
    # Near the target, so that some of the drafts pass.
    draft = target.view(rows, steps, VOCAB)[:, :GAMMA] + 0.3 * randn(rows, GAMMA, VOCAB, dtype=torch.float32)
    settings = SamplingRows.of(
        [temperature] * rows, top_k=[top_k] * rows, top_p=[top_p] * rows, seeds=range(rows), device=DEVICE
    )
    requests = torch.arange(rows, device=DEVICE)
    arguments = {
        "query_starts": ints(range(0, rows * steps + 1, steps)),
        "lengths": torch.full_like(requests, GAMMA),
        "draft_tokens": draft.argmax(-1),
        "draft_logits": draft,
        "rows": settings,
        "positions": requests,
        "generations": torch.zeros_like(requests),
        "max_length": GAMMA,
    }

    def check() -> None:
        ours = kernels.verify(target, **arguments)
        theirs = verification_reference.verify(target, **arguments)
        assert torch.equal(ours.accepted, theirs.accepted), "another number of accepted tokens"
        assert torch.equal(ours.next_token, theirs.next_token), "another next token"

    detail = f"{rows} x {steps}, temperature {temperature}, top-k {top_k}, top-p {top_p}"
    num_bytes = target.nbytes + (draft.nbytes if temperature else 0)
    return Case("verify", detail, [functools.partial(kernels.verify, target, **arguments)], check, num_bytes)


def main_cache_cases() -> Iterator[Case]:
    for tokens in (1, 512):
        yield main_cache_case(tokens)


def main_cache_case(tokens: int) -> Case:
    layers, cache_rows = 3, 1 << 16
    heads = (SMOL.kv_heads, SMOL.head_dim)
    kv = randn(tokens, layers, 2, *heads)
    cos, sin = rotation_tables(torch.rand(tokens, SMOL.head_dim // 2, device=DEVICE))
    k_norm = randn(layers, SMOL.head_dim)
    written_rows = torch.randperm(cache_rows, device=DEVICE)[:tokens]
    ours, theirs = (torch.zeros(2, layers, cache_rows, *heads, device=DEVICE, dtype=BF16) for _ in range(2))

    def write(op: Callable[..., None], caches: Tensor) -> None:
        op(
            kv,
            cos,
            sin,
            k_norm=k_norm,
            k_cache=caches[0],
            v_cache=caches[1],
            cache_rows=written_rows,
            eps=1e-6,
        )

    def check() -> None:
        write(kernels.write_main_cache, ours)
        write(main_cache_reference.write_main_cache, theirs)
        assert_close(ours, theirs, atol=TOLERANCE, rtol=TOLERANCE)

    run = functools.partial(write, kernels.write_main_cache, ours)
    return Case("main_cache", f"{SMOL.name}, {layers} layers, {tokens} tokens", [run], check, 2 * kv.nbytes)


GROUPS = {
    "attention": attention_cases,
    "linear": linear_cases,
    "markov": markov_cases,
    "verify": verify_cases,
    "main_cache": main_cache_cases,
}
