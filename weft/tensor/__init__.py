"""Tensor, eager, tracing, functional."""
