"""Weights: names, readers, dtypes, adapters, GGUF, and the writer of a folder."""
