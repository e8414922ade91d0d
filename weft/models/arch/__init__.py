"""Architectures: configs, families, and the graphs of their layers."""
