"""instructor: its modes, parts of an answer while it comes, and the types of pydantic."""

from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import instructor
import openai
from instructor.core import IncompleteOutputException
from pydantic import BaseModel, Field


class Part(BaseModel, extra="forbid"):
    label: Literal["a", "b"]
    count: int = Field(ge=0, le=9)


class Thing(BaseModel, extra="forbid"):
    name: str = Field(max_length=8)
    parts: list[Part] = Field(max_length=2)


class Types(BaseModel, extra="forbid"):
    tags: set[Literal["x", "y"]] = Field(max_length=2)
    price: Decimal
    where: Path
    raw: bytes = Field(max_length=8)
    counts: dict[Literal["u", "v"], Literal[1, 2]] = Field(max_length=2)


def made_by(client: instructor.Instructor, kind: type[BaseModel], asked: dict[str, Any]) -> Any:
    """The first of the seeds' answers that ends by itself: a number may have any digits."""
    for seed in range(8):
        try:
            return client.create(response_model=kind, seed=seed, max_retries=1, **asked)
        except IncompleteOutputException:
            pass
    raise AssertionError(f"no answer of {kind} came to its end")


def free(url: str) -> None:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="x")
    ask = [{"role": "user", "content": "A thing?"}]
    asked = {"messages": ask, "model": "box", "max_tokens": 300}
    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA, instructor.Mode.TOOLS_STRICT):
        made = instructor.from_openai(client, mode=mode)
        for kind in Thing, Types:
            assert isinstance(made_by(made, kind, asked), kind), mode
    made = instructor.from_openai(client, mode=instructor.Mode.TOOLS)
    parts = list(made.create_partial(response_model=Thing, temperature=0, **asked))
    assert parts and Thing.model_validate(parts[-1].model_dump())
