"""Which drafted tokens to verify: pure functions on arrays, without torch."""
