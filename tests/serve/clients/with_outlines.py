"""Outlines' mode for vLLM's server: choices, patterns, types and grammars."""

import re
from typing import Literal

import openai
import outlines
from outlines.types import CFG, Regex
from tools import Thing

GRAMMAR = 'start: "yes" | "no"\n'


def free(url: str) -> None:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="x")
    model = outlines.from_vllm(client, "box")
    assert model("One?", Literal["red", "green"]) in ("red", "green")
    assert re.fullmatch(r"[a-c]{3}-\d", model("Two?", Regex(r"[a-c]{3}-\d")))
    assert Thing.model_validate_json(model("Three?", Thing, max_tokens=400))
    assert model("Four?", CFG(GRAMMAR)) in ("yes", "no")
    assert re.fullmatch(r"[+-]?\d+", model("Five?", Regex(r"[+-]?\d{1,4}")))
    assert "".join(model.stream("Six?", Literal["red", "green"])) in ("red", "green")
