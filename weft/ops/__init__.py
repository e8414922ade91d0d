"""Primitives and composites, and bind."""
