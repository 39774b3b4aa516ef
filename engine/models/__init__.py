"""Checkpoints: configurations, weights, the target and the drafter."""
