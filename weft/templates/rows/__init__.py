"""Whole rows: reductions, normalisations and their gradients."""
