"""Weights in fewer bits: schemes, the search for scales, and what it writes."""
