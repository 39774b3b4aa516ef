"""The confidence head's logit for one draft position, and its stand-in for drafters without such a head."""

from dspark.kernels.confidence.reference import confidence_logits, headless_confidence_logits

__all__ = ["confidence_logits", "headless_confidence_logits"]
