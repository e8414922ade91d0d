"""Models from Hugging Face folders: one decoder, one encoder, loading, generation."""

from weft.models.loader import load
from weft.models.random_folder import random_folder

__all__ = ["load", "random_folder"]
