"""Haystack: an agent with a tool, a stream, a typed answer, and vectors."""

from haystack.components.agents import Agent
from haystack.components.embedders import OpenAITextEmbedder
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import create_tool_from_function
from haystack.utils import Secret
from tools import Thing, weather


def generator(url: str, **more: object) -> OpenAIChatGenerator:
    return OpenAIChatGenerator(
        model="box", api_base_url=f"{url}/v1", api_key=Secret.from_token("x"), **more
    )


def said(url: str) -> None:
    agent = Agent(chat_generator=generator(url), tools=[create_tool_from_function(weather)])
    made = agent.run(messages=[ChatMessage.from_user("Weather?")])
    assert made["last_message"].text == "It rains." and len(made["messages"]) == 4
    parts: list[str] = []
    llm = generator(url, streaming_callback=lambda part: parts.append(part.content))
    (answer,) = llm.run([ChatMessage.from_user("Weather?")])["replies"]
    assert "".join(parts) == answer.text == "It rains."


def free(url: str) -> None:
    llm = generator(url, generation_kwargs={"response_format": Thing, "max_completion_tokens": 200})
    (answer,) = llm.run([ChatMessage.from_user("A thing?")])["replies"]
    assert Thing.model_validate_json(answer.text)
    embed = OpenAITextEmbedder(
        model="bert", api_base_url=f"{url}/v1", api_key=Secret.from_token("x")
    )
    assert embed.run("one")["embedding"]
