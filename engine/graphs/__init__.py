"""The device side of a round as CUDA graphs over static memory, one a size of batch."""
