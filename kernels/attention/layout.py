"""Where the queries of a packed batch find their keys and values."""

from dataclasses import dataclass, field

from torch import Tensor


@dataclass(slots=True)
class AttentionLayout:
    """Block tables and lengths of R requests whose queries lie behind one another on one packed axis.

    The cache row of position p of request r is `block_tables[r, p // page_size] * page_size + p % page_size`.
    Causal: query i of a request's n sees rows 0 .. kv_len - n + i. Not causal: all of its queries see rows
    0 .. kv_len - 1. Nothing at or past the visible length may influence the result.

    Windowed layers give `kv_rows` instead, which the block tables and lengths then do not matter to. Not causal: all
    queries of a request see exactly those cache rows. Causal: its n queries are the last n columns, none of them -1,
    and query i sees the columns before column W - n + i and that one.
    """

    block_tables: Tensor  # [R, M] int32
    query_starts: Tensor  # [R+1] int32
    kv_lens: Tensor  # [R] int32, rows visible to the last query, the request's own queries included
    page_size: int
    max_query_len: int
    max_kv_len: int
    causal: bool = True
    kv_rows: Tensor | None = None  # [R, W] int32, W a multiple of 64, -1 = none
    # What an implementation derives from the fields above once, for all layers of a forward.
    plan: object = field(default=None, init=False, repr=False, compare=False)
