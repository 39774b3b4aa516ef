"""What the drafter tests share: tiny targets, drafter folders, batches over one paged request after another."""

import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from dspark.engine.batch import PackedBatch
from dspark.engine.proposals import DraftBlock
from dspark.kernels import AttentionLayout

FIXTURES = Path(__file__).parent / "fixtures"
PAGE_SIZE = 4


def packed_layout(tables, starts, counts, *, causal):
    """Layout of `counts` query tokens of each request, behind `starts` cached ones."""
    kv_lens = np.asarray(starts) + np.asarray(counts)
    return AttentionLayout(
        block_tables=torch.tensor(np.asarray(tables), dtype=torch.int32),
        query_starts=torch.tensor(np.concatenate([[0], np.cumsum(counts)]), dtype=torch.int32),
        kv_lens=torch.tensor(kv_lens, dtype=torch.int32),
        page_size=PAGE_SIZE,
        max_query_len=int(max(counts)),
        max_kv_len=int(kv_lens.max()),
        causal=causal,
    )


def cache_rows(table, positions):
    """Cache rows of `positions` of the request whose pages are `table`."""
    table, positions = torch.as_tensor(table), torch.as_tensor(positions)
    return table[positions // PAGE_SIZE].long() * PAGE_SIZE + positions % PAGE_SIZE


def context_batch(tables, starts, counts, *, token_ids=None):
    """PackedBatch of `counts` tokens of each request from positions `starts` on."""
    positions = [torch.arange(start, start + count) for start, count in zip(starts, counts, strict=True)]
    rows = [cache_rows(table, p) for table, p in zip(tables, positions, strict=True)]
    return PackedBatch(
        token_ids=torch.zeros(sum(counts), dtype=torch.int64) if token_ids is None else token_ids,
        positions=torch.cat(positions),
        cache_rows=torch.cat(rows),
        attention=packed_layout(tables, starts, counts, causal=True),
    )


def draft_block(tables, anchors, starts, *, gamma, steps=None, temperature=None, noise=None, top_k=None):
    """DraftBlock of one block a request."""
    rows = [cache_rows(table, torch.arange(s, s + gamma)) for table, s in zip(tables, starts, strict=True)]
    return DraftBlock(
        anchors=torch.tensor(anchors),
        starts=torch.tensor(starts),
        cache_rows=torch.cat(rows),
        attention=packed_layout(tables, starts, [gamma] * len(starts), causal=False),
        noise=noise,
        temperature=torch.zeros(len(anchors)) if temperature is None else temperature,
        steps=steps or gamma,
        top_k=top_k,
    )


def copy_drafter(source, folder, *, config=None, tensors=None, drop=()):
    """Copy a drafter folder with keys of config.json and tensors replaced; a None value removes the key."""
    folder.mkdir(parents=True, exist_ok=True)
    raw = json.loads((source / "config.json").read_text()) | (config or {})
    raw = {key: value for key, value in raw.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(raw))
    weights = load_file(source / "model.safetensors") | (tensors or {})
    save_file({name: t for name, t in weights.items() if name not in drop}, folder / "model.safetensors")
    return folder
