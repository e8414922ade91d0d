"""Decoder and encoder families, loading, generation."""
