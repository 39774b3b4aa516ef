"""Attention of packed queries over a paged cache, by torch's scaled dot product."""

import torch
import torch.nn.functional as F
from torch import Tensor

from dspark.kernels.attention.layout import AttentionLayout
from dspark.kernels.attention.plan import LONGEST_BATCHED_QUERY, AttentionPiece, plan_attention
from dspark.kernels.rope_cache.reference import rope_and_cache


def rope_attention(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    layout: AttentionLayout,
    *,
    k_cache: Tensor,
    v_cache: Tensor,
    cache_rows: Tensor,
    num_heads: int,
    num_kv_heads: int,
    scale: float,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 1e-6,
    angle_rows: Tensor | None = None,
) -> Tensor:
    """`rope_and_cache`, then `paged_attention`: qkv [T, (Hq+2Hkv)*D] -> [T, Hq, D]."""
    q = rope_and_cache(
        qkv, cos, sin, k_cache=k_cache, v_cache=v_cache, cache_rows=cache_rows, num_heads=num_heads,
        num_kv_heads=num_kv_heads, q_norm=q_norm, k_norm=k_norm, eps=eps, angle_rows=angle_rows,
    )  # fmt: skip
    return paged_attention(q, k_cache, v_cache, layout, scale=scale)


def paged_attention(q: Tensor, k_cache: Tensor, v_cache: Tensor, layout: AttentionLayout, *, scale: float) -> Tensor:
    """q [T, Hq, D]; k_cache, v_cache [N, Hkv, D] -> [T, Hq, D]. What a query sees: `AttentionLayout`."""
    if layout.plan is None:
        shared = q.shape[1] // k_cache.shape[1]
        layout.plan = plan_attention(layout, num_tokens=q.shape[0], heads_per_kv=shared, device=q.device, dtype=q.dtype)
    pieces: list[AttentionPiece] = layout.plan  # type: ignore[assignment]
    if len(pieces) == 1 and pieces[0].output_rows is None:
        return _attend(q, k_cache, v_cache, pieces[0], scale)
    # Rows that no request owns (padding), or whose request sees nothing, stay zero.
    out = torch.zeros(q.shape, dtype=q.dtype, device=q.device)
    for piece in pieces:
        attended = _attend(q, k_cache, v_cache, piece, scale)
        if piece.kept is not None:
            attended = attended.index_select(0, piece.kept)
        if isinstance(piece.output_rows, slice):
            out[piece.output_rows] = attended
        elif piece.output_rows is not None:
            out.index_copy_(0, piece.output_rows, attended)
        else:
            out = attended
    return out


def _attend(q: Tensor, k_cache: Tensor, v_cache: Tensor, piece: AttentionPiece, scale: float) -> Tensor:
    """The padded queries' outputs, [B*Q, Hq, D]."""
    num_kv_heads, head_dim = k_cache.shape[1:]
    batch, queries = piece.num_requests, piece.query_len
    rows = piece.query_rows
    if batch == queries == 1 and isinstance(piece.kv_rows, slice) and q.dtype == torch.float32:
        return _attend_alone(q[rows], k_cache[piece.kv_rows], v_cache[piece.kv_rows], scale)
    q = q[rows] if isinstance(rows, slice) else q.index_select(0, rows)
    q = q.view(batch, queries, num_kv_heads, -1, head_dim)  # [B, Q, Hkv, Hq/Hkv, D]
    if isinstance(piece.kv_rows, Tensor) and piece.k_buffer is None:
        shape = (piece.kv_rows.shape[0], num_kv_heads, head_dim)
        piece.k_buffer, piece.v_buffer = k_cache.new_empty(shape), v_cache.new_empty(shape)
    k = _visible_rows(k_cache, piece, piece.k_buffer)
    v = _visible_rows(v_cache, piece, piece.v_buffer)
    shared = q.shape[3]
    if queries > LONGEST_BATCHED_QUERY:
        # Query heads that share a K/V head become the batch; K and V are expanded, not copied.
        q = q[0].permute(2, 1, 0, 3)  # [Hq/Hkv, Hkv, Q, D]
        k, v = k.expand(shared, -1, -1, -1), v.expand(shared, -1, -1, -1)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=piece.mask, scale=scale)
        return out.permute(2, 1, 0, 3).reshape(queries, -1, head_dim)
    # Query heads that share a K/V head become further queries of it, so that K and V are read once.
    q = q.permute(0, 2, 3, 1, 4).reshape(batch, num_kv_heads, shared * queries, head_dim)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=piece.mask, scale=scale)
    out = out.view(batch, num_kv_heads, shared, queries, head_dim)
    return out.permute(0, 3, 1, 2, 4).reshape(batch * queries, -1, head_dim)


def _attend_alone(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """One query of one request: q [1, Hq, D]; k, v [K, Hkv, D] -> [1, Hq, D]. Fused attention costs more than this."""
    shared = q.view(k.shape[1], -1, k.shape[2])  # [Hkv, Hq/Hkv, D]
    weights = torch.bmm(shared, k.permute(1, 2, 0)).mul_(scale).softmax(-1)
    return torch.bmm(weights, v.transpose(0, 1)).view(q.shape)


def _visible_rows(cache: Tensor, piece: AttentionPiece, buffer: Tensor | None) -> Tensor:
    """[N, Hkv, D] -> the piece's rows, [B, Hkv, K, D]: a view of the cache if they lie behind one another."""
    if isinstance(piece.kv_rows, slice):
        picked = cache[piece.kv_rows]
    else:
        assert buffer is not None
        picked = torch.index_select(cache, 0, piece.kv_rows, out=buffer)
    return picked.view(piece.num_requests, piece.kv_len, *cache.shape[1:]).transpose(1, 2)
