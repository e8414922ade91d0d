"""Batch files as OpenAI has them: requests in a file, answered while the server has time."""
