"""The server: the protocols that people's clients speak, over one batching engine."""
