"""Causal models of transformers without a family here: traced once, then run by the engine."""
