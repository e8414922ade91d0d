"""Devices and dialects."""
