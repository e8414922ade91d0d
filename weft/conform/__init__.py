"""Proof that a device agrees."""
