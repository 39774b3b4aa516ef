"""Kernels of the engine, one folder an operation; every op has one signature on every device."""

from dspark.kernels.activation import silu_mul
from dspark.kernels.attention import AttentionLayout, paged_attention
from dspark.kernels.confidence import confidence_logits, headless_confidence_logits
from dspark.kernels.main_cache import write_main_cache
from dspark.kernels.markov import markov_step
from dspark.kernels.norm import rms_norm
from dspark.kernels.random import ACCEPT, DRAFT, SAMPLE, NoiseKeys, gumbel, philox_words, uniform
from dspark.kernels.rope_cache import rope_and_cache
from dspark.kernels.sampling import SamplingRows, sample, target_log_probs
from dspark.kernels.verification import Verdict, verify

__all__ = [
    "ACCEPT",
    "DRAFT",
    "SAMPLE",
    "AttentionLayout",
    "NoiseKeys",
    "SamplingRows",
    "Verdict",
    "confidence_logits",
    "gumbel",
    "headless_confidence_logits",
    "markov_step",
    "paged_attention",
    "philox_words",
    "rms_norm",
    "rope_and_cache",
    "sample",
    "silu_mul",
    "target_log_probs",
    "uniform",
    "verify",
    "write_main_cache",
]
