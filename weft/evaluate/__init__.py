"""Measures of a model's answers: loss, perplexity, and texts to measure with."""
