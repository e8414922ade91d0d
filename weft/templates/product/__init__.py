"""Matrix products: blocked (many rows) and streaming (few), per team."""
