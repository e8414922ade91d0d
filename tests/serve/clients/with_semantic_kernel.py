"""Semantic Kernel: functions that it calls by itself, a stream, a typed answer, and vectors."""

import asyncio

import openai
from semantic_kernel import Kernel
from semantic_kernel.connectors.ai import FunctionChoiceBehavior
from semantic_kernel.connectors.ai.open_ai import (
    OpenAIChatCompletion,
    OpenAIChatPromptExecutionSettings,
    OpenAITextEmbedding,
)
from semantic_kernel.contents import ChatHistory
from semantic_kernel.functions import kernel_function
from tools import Thing, weather


class Sky:
    @kernel_function(description="The weather of a city.")
    def weather(self, city: str) -> str:
        return weather(city)


def service(url: str) -> OpenAIChatCompletion:
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x")
    return OpenAIChatCompletion(ai_model_id="box", async_client=client)


def said(url: str) -> None:
    chat, kernel, history = service(url), Kernel(), ChatHistory()
    kernel.add_plugin(Sky(), "sky")
    history.add_user_message("Weather?")
    settings = OpenAIChatPromptExecutionSettings(
        function_choice_behavior=FunctionChoiceBehavior.Auto()
    )

    async def play() -> None:
        made = await chat.get_chat_message_content(history, settings, kernel=kernel)
        assert str(made) == "It rains." and len(history.messages) == 3
        history.add_message(made)
        parts = chat.get_streaming_chat_message_content(history, settings, kernel=kernel)
        assert "".join([str(part) async for part in parts]) == "It rains."

    asyncio.run(play())


def free(url: str) -> None:
    history = ChatHistory()
    history.add_user_message("A thing?")
    settings = OpenAIChatPromptExecutionSettings(response_format=Thing, max_tokens=200)
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x")
    embed = OpenAITextEmbedding(ai_model_id="bert", async_client=client)

    async def play() -> None:
        made = await service(url).get_chat_message_content(history, settings)
        assert Thing.model_validate_json(str(made))
        assert len(await embed.generate_embeddings(["one", "two"])) == 2

    asyncio.run(play())
