"""Drafts that are looked up in a request's own text: no weights, for any target."""
