"""Texts: tokenizers, chat templates, prompts."""
