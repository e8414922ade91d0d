"""pydantic-ai: a tool's turn, a stream, and typed answers by tools and by schemas."""

import asyncio

from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from tools import Thing, weather


def models(url: str) -> list[OpenAIChatModel | OpenAIResponsesModel]:
    provider = OpenAIProvider(base_url=f"{url}/v1", api_key="x")
    return [kind("box", provider=provider) for kind in (OpenAIChatModel, OpenAIResponsesModel)]


def said(url: str) -> None:
    for model in models(url):
        agent = Agent(model, model_settings={"max_tokens": 200}, tools=[weather])
        made = agent.run_sync("Weather?")
        assert made.output == "It rains." and len(made.all_messages()) == 4

    async def stream() -> str:
        async with agent.run_stream("Weather?") as made:
            return [text async for text in made.stream_text(debounce_by=None)][-1]

    assert asyncio.run(stream()) == "It rains."


def free(url: str) -> None:
    for model in models(url):
        for kind in ToolOutput(Thing), NativeOutput(Thing):
            made = Agent(model, model_settings={"max_tokens": 200}, output_type=kind).run_sync(
                "A thing?"
            )
            assert isinstance(made.output, Thing)
