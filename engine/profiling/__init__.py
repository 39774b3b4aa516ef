"""Measures what the parts of a round cost: points to run, a stop-watch, and the profile that comes of them."""
