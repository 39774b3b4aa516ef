"""Where the device's memory goes, worked out before it is taken."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from dspark.engine.models.drafter import Drafter

if TYPE_CHECKING:
    from dspark.engine.engine import Engine
    from dspark.engine.models.model_config import ModelConfig

CPU_KV_BYTES = 1 << 30
# Matrix library workspaces, the graphs' own descriptions in the driver, and what the allocator rounds up.
_OVERHEAD_BYTES = 768 << 20


def kv_bytes(engine: Engine) -> int:
    """Bytes that the KV caches may take: on a GPU what is free, less all that a round will need beside them."""
    if engine.device.type != "cuda":
        return CPU_KV_BYTES
    # Loading leaves memory with the allocator that nobody owns.
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(engine.device)
    kept_free = int((1 - engine.config.gpu_memory_utilization) * total)
    return max(free - kept_free - sum(round_bytes(engine).values()), 0)


def round_bytes(engine: Engine) -> dict[str, int]:
    """Bytes by name of what rounds and prefills need beside weights and KV caches."""
    sizes = engine.graph_sizes
    prefill = activation_bytes(engine, engine.prefill_chunk_tokens) + 4 * sizes.concurrency * sizes.vocab_size
    return {
        **sizes.report(),
        "round activations": activation_bytes(engine, max(sizes.max_tokens, sizes.concurrency * sizes.block_width)),
        "prefill activations": prefill,
        "draft logits (head)": _head_bytes(engine),
        "libraries and graphs": _OVERHEAD_BYTES,
    }


def activation_bytes(engine: Engine, num_tokens: int) -> int:
    """Most that one forward of so many tokens holds at once, logits aside."""
    config = engine.target.config
    features = len(engine.drafter.feature_layers) if engine.drafter is not None else 0
    width = _layer_width(config) + features * config.hidden_size
    if engine.draft_page_bytes:
        # K and V of all draft layers, as the main cache's product gives them.
        width += engine.draft_page_bytes // engine.page_size // engine.target.dtype.itemsize
    return num_tokens * (width * engine.target.dtype.itemsize + 8 * config.head_dim + 64)


def memory_report(engine: Engine) -> dict[str, int]:
    """Bytes by name, as they are now."""
    report = {"target KV cache": engine.target_cache.num_pages * engine.target_cache.bytes_per_page}
    if engine.draft_cache is not None:
        report["draft KV cache"] = engine.draft_cache.num_pages * engine.draft_cache.bytes_per_page
    if engine.graphs is not None:
        report |= engine.graph_sizes.report()
        report["graph pool"] = engine.graphs.pool_bytes
    if engine.device.type == "cuda":
        taken = torch.cuda.memory_reserved(engine.device)
        report["weights and the rest"] = max(taken - sum(report.values()), 0)
    return report


def _head_bytes(engine: Engine) -> int:
    """Of a head that knows fewer tokens than the target, whose logits are then spread into q's own memory."""
    vocabulary = engine.drafter.vocabulary if isinstance(engine.drafter, Drafter) else None
    if vocabulary is None or engine.draft_top_k is not None:
        return 0
    return 4 * engine.graph_sizes.concurrency * engine.graph_sizes.steps * len(vocabulary.ids)


def _layer_width(config: ModelConfig) -> int:
    """Elements a token that live at once in a layer: the stream, its norm, QKV, Q, attention and the MLP's three."""
    qkv = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    return 4 * config.hidden_size + qkv + 2 * config.num_heads * config.head_dim + 3 * config.intermediate_size
