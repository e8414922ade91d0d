"""Models from Hugging Face folders: one decoder, one encoder, loading, generation."""

from weft.models.loader import load

__all__ = ["load"]
