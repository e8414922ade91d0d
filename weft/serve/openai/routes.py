"""OpenAI's routes, and those about tokens."""

from __future__ import annotations

from weft.serve.openai import answers
from weft.serve.openai.chat import chat
from weft.serve.openai.completions import completions
from weft.serve.openai.other import (
    detokenize,
    embeddings,
    model,
    models,
    tokenize,
    tokenizer_info,
)  # fmt: skip
from weft.serve.openai.types import Chat, Completion, Detokenize, Embeddings, Tokenize
from weft.serve.routing import Described, route


def routes() -> list[Described]:
    """OpenAI's."""
    return [
        route("/v1/chat/completions", chat, Chat, answer=answers.ChatAnswer),
        route("/v1/completions", completions, Completion, answer=answers.CompletionAnswer),
        route("/v1/embeddings", embeddings, Embeddings, answer=answers.EmbeddingsAnswer),
        route("/v1/models", models, answer=answers.ModelsAnswer),
        route("/v1/models/{name:path}", model, answer=answers.ModelAnswer),
        route("/tokenize", tokenize, Tokenize, answer=answers.TokenizeAnswer),
        route("/detokenize", detokenize, Detokenize, answer=answers.DetokenizeAnswer),
        route("/tokenizer_info", tokenizer_info, answer=answers.TokenizerAnswer),
    ]
