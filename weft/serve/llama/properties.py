"""llama-server's other routes: a conversation as a prompt, and what the server is."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

import weft
from weft.models.text.chat import read_template
from weft.serve.chatting import prompt_of
from weft.serve.guard import key_of
from weft.serve.llama.completion import completion, infill
from weft.serve.llama.slots import SlotFile, slot, slots
from weft.serve.llama.types import (
    LlamaAnswer,
    LlamaCompletion,
    LlamaInfill,
    PropertiesAnswer,
    TemplateAnswer,
)
from weft.serve.openai.chat import turn_of
from weft.serve.openai.types import Chat
from weft.serve.replies import decoder
from weft.serve.routing import Described, route
from weft.serve.shelf import ModelShelf
from weft.serve.wire import json_response, read, while_there


async def apply_template(request: Request) -> Response:
    """The prompt that a conversation becomes."""
    body = await read(request, Chat)
    body.refuse()
    turn = turn_of(body, key_of(request.scope))
    shelf: ModelShelf = request.app.state.shelf
    async with shelf.use(body.model) as model:
        made = await while_there(request, prompt_of(decoder(model), turn))
    return json_response({"prompt": made[0]})


async def properties(request: Request) -> Response:
    """What the first model, or ?model=, is and takes."""
    shelf: ModelShelf = request.app.state.shelf
    async with shelf.use(request.query_params.get("model")) as served:
        model = decoder(served)
        tokenizer = model.tokenizer
        template = read_template(tokenizer.path.parent, tokenizer.config) or ""
        special = tokenizer.special_tokens
        settings: dict[str, Any] = {
            "n_ctx": model.model.context, "params": model.model.defaults.settings,
        }  # fmt: skip
        return json_response({
            "model_alias": model.name, "model_path": model.name, "total_slots": model.runner.slots,
            "default_generation_settings": settings, "chat_template": template,
            "bos_token": special.get("bos_token", ""), "eos_token": special.get("eos_token", ""),
            "modalities": {"vision": False, "audio": False},
            "build_info": f"weft {weft.__version__}",
        })  # fmt: skip


def routes() -> list[Described]:
    """llama-server's."""
    return [
        route("/completion", completion, LlamaCompletion, answer=LlamaAnswer),
        route("/completions", completion, LlamaCompletion, answer=LlamaAnswer),
        route("/infill", infill, LlamaInfill, answer=LlamaAnswer),
        route("/apply-template", apply_template, Chat, answer=TemplateAnswer),
        route("/props", properties, answer=PropertiesAnswer),
        route("/slots", slots),
        route("/slots/{id}", slot, SlotFile),
    ]
