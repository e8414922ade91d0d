"""LlamaIndex: chat, streams, an agent with a tool, a typed answer, and vectors."""

import asyncio

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike
from tools import Thing, weather


def model(url: str) -> OpenAILike:
    return OpenAILike(
        model="box", api_base=f"{url}/v1", api_key="x", context_window=8192, max_tokens=200,
        is_chat_model=True, is_function_calling_model=True,
    )  # fmt: skip


def said(url: str) -> None:
    llm = model(url)
    hello = [ChatMessage(role="user", content="hello")]
    assert llm.chat(hello).message.content == "Hello there."
    assert "".join(part.delta or "" for part in llm.stream_chat(hello)) == "Hello there."
    assert llm.complete("hello").text == "Hello there."

    async def agent() -> str:
        return str(await FunctionAgent(tools=[weather], llm=llm).run("Weather?"))

    assert asyncio.run(agent()) == "It rains."


def free(url: str) -> None:
    made = model(url).as_structured_llm(Thing).complete("A thing?")
    assert isinstance(made.raw, Thing)
    embed = OpenAILikeEmbedding(model_name="bert", api_base=f"{url}/v1", api_key="x")
    assert len(embed.get_text_embedding_batch(["one", "two"])) == 2
