"""Decoding by several workers, each with an engine of its own, over Ray."""
