"""Profiling without a clock: a timer that follows a formula, and a progress that remembers."""

from __future__ import annotations

from collections import Counter

from dspark.engine.profiling.timer import Sample


class Watcher:
    """Remembers what progress said."""

    def __init__(self):
        self.steps, self.samples = [], Counter()

    def step(self, name, done=0, total=0):
        self.steps.append(name)

    def measured(self, point, samples_s):
        self.samples[point] = len(samples_s)


class ModelTimer:
    """Takes exactly the time that a formula says, in the buckets of a padded runner."""

    runner = "graphs"
    token_buckets = (1, 4, 8, 16, 32)
    request_buckets = (1, 2, 4)

    def __init__(self, *, gpu=True, capacity=40_000, wrong=None, short_context=None):
        self.calls, self.gpu, self.capacity, self.wrong = [], gpu, capacity, wrong
        self.short_context = short_context

    def longest_context(self, num_requests):
        return min(2000, self.capacity // num_requests) - 8

    def measure_target(self, num_tokens, *, num_requests, context_tokens):
        assert num_requests <= num_tokens <= 8 * num_requests
        assert context_tokens <= self.longest_context(num_requests)
        bucket = next(b for b in self.token_buckets if b >= num_tokens)
        kv_tokens = num_requests * context_tokens + num_tokens
        long = self._is_long(context_tokens - (-num_tokens // num_requests))
        return self._sample("target", bucket, 0.001 * bucket + 0.004 * long + 1e-7 * kv_tokens + 2e-5 * num_requests)

    def measure_draft(self, num_requests, *, context_tokens, steps, sampled):
        long = self._is_long(context_tokens + 7)
        kv_tokens = num_requests * (context_tokens + 7)
        each = 0.0002 + (0.00005 if sampled else 0.00002) * steps
        return self._sample("draft", num_requests, each * num_requests + 0.002 * long + 1e-8 * kv_tokens)

    def measure_verification(self, num_tokens, *, num_requests, context_tokens, sampled):
        return self._sample("verify", num_requests, (1e-4 if sampled else 1e-5) * (1 + num_tokens))

    def _is_long(self, visible):
        return self.short_context is not None and visible > self.short_context

    def _sample(self, kind, bucket, seconds):
        self.calls.append((kind, bucket))
        if self.wrong == bucket:
            bucket += 1
        return Sample(bucket, 2 * seconds, seconds if self.gpu else None)
