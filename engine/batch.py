"""The packed batch: what one forward of the target reads."""

from dataclasses import dataclass

from torch import Tensor

from dspark.kernels import AttentionLayout


@dataclass(slots=True)
class PackedBatch:
    """T tokens of R requests on one flat axis, request behind request."""

    token_ids: Tensor  # [T] int64
    positions: Tensor  # [T] int64, position in the request's text
    cache_rows: Tensor  # [T] int64, cache row that the token's K and V are written to
    attention: AttentionLayout
