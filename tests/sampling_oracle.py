"""The target distribution written down as its definition reads, one row at a time in float64."""

import numpy as np


def target_probs(logits: np.ndarray, *, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> np.ndarray:
    """logits [V] -> p [V]."""
    ids = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    if temperature == 0:
        return np.eye(len(logits))[ids[0]]
    weights = np.exp((logits.astype(np.float64) - logits.max()) / temperature)
    if top_k:
        ids = ids[:top_k]
    if top_p < 1:
        total, mass = sum(weights[token] for token in ids), 0.0
        for count, token in enumerate(ids, start=1):
            mass += weights[token] / total
            if mass >= top_p:
                ids = ids[:count]
                break
    probs = np.zeros(len(logits))
    probs[ids] = weights[ids]
    return probs / probs.sum()
