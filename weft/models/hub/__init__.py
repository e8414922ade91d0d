"""Models by the names that a hub gives them: ORG/NAME, ORG/NAME@REVISION, ORG/NAME:FILE.gguf.

`resolve.resolve` makes a path of whatever a user calls a model. huggingface_hub keeps the cache,
talks to the hub and knows the user's token; it is imported only when something has to be asked.
"""
