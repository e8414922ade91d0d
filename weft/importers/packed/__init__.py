"""Readers of packed weights: a format's tensors in, weft.core.packed's one form out."""
