"""llama-server's own protocol: completion, filling in, templates, properties."""
