"""Matrix products: blocked for many rows, streaming for few."""
