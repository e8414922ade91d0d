"""Foundations: dtypes, shapes, capabilities, errors."""
