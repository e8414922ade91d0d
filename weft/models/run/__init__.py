"""Loads models and runs them: runners, caches, generation, compiled files."""
