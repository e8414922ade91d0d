"""Pictures as arrays: decoding, and the steps before a vision tower."""
