"""The tool of every client, and the type of its typed answers."""

from typing import Any

from pydantic import BaseModel, Field


class Thing(BaseModel, extra="forbid"):
    """A thing: so small that any answer soon comes to its end."""

    name: str = Field(max_length=8)
    size: int = Field(ge=0, le=99)


WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}


def weather(city: str) -> str:
    """The weather of a city.

    Args:
        city: Its name.
    """
    assert city == "Oslo"
    return "rain"
