"""Models by their names on a hub: ORG/NAME, ORG/NAME@REVISION, ORG/NAME:FILE.gguf.

`resolve.resolve` turns any name or path of a model into a path. huggingface_hub keeps the cache,
talks to the hub and knows the user's token. It is imported only when the hub has to be asked.
"""
