"""From the text a model writes to what it means: content, reasoning and calls of tools."""
