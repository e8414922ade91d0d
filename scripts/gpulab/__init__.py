"""Weft and its peers on one GPU: `scripts/gpu_check` and `scripts/gpu_peers.py`."""
