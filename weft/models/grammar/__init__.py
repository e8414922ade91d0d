"""Constraints on texts: JSON schemas, regular expressions and grammars, over a tokenizer."""
