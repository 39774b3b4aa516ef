"""Training of drafters: text that the target writes, its features recomputed on the fly, one frozen target."""
