"""Benchmarks: what `weft bench` and `weft tune` measure, and the peers."""
