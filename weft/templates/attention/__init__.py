"""Attention: whole sequences, over a cache, and its gradients."""
