"""Kernel IR: what every template writes and every dialect renders."""
