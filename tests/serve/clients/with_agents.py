"""openai-agents by both of its protocols: a tool's turn, a typed answer, a stream."""

import asyncio
from typing import Any

import openai
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from tools import Thing, weather


def models(url: str) -> list[OpenAIChatCompletionsModel | OpenAIResponsesModel]:
    set_tracing_disabled(True)
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x")
    kinds = OpenAIChatCompletionsModel, OpenAIResponsesModel
    return [kind(model="box", openai_client=client) for kind in kinds]


def agent(model: OpenAIChatCompletionsModel | OpenAIResponsesModel, **more: Any) -> Agent:
    settings = ModelSettings(max_tokens=200)
    return Agent(
        name="a", instructions="Be short.", model=model, model_settings=settings, **more
    )  # fmt: skip


async def play(url: str) -> None:
    for model in models(url):
        asked = agent(model, tools=[function_tool(weather)])
        made = await Runner.run(asked, "Weather?")
        assert made.final_output == "It rains.", made.final_output
        assert len(made.to_input_list()) == 4
    streamed = Runner.run_streamed(asked, "Weather?")
    kinds = [event.type async for event in streamed.stream_events()]
    assert streamed.final_output == "It rains." and "raw_response_event" in kinds


def said(url: str) -> None:
    asyncio.run(play(url))


def free(url: str) -> None:
    for model in models(url):
        made = Runner.run_sync(agent(model, output_type=Thing), "A thing?")
        assert isinstance(made.final_output, Thing)
