"""A draft distribution cut to its likeliest tokens, and the draw from it."""

from dspark.kernels.draft_top.reference import draw_from_top
from dspark.kernels.draft_top.top_q import TopQ

__all__ = ["TopQ", "draw_from_top"]
