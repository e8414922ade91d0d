"""LangChain by three protocols: tools, streams, typed answers, and vectors."""

from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_ollama import ChatOllama, OllamaEmbeddings
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from tools import Thing, weather


def models(url: str) -> list[ChatOpenAI | ChatAnthropic | ChatOllama]:
    return [
        ChatOpenAI(model="box", base_url=f"{url}/v1", api_key="x"),
        ChatAnthropic(model="box", base_url=url, api_key="x"),
        ChatOllama(model="box", base_url=url),
    ]


def said(url: str) -> None:
    for model in models(url):
        bound = model.bind_tools([tool(weather)])
        asked = [HumanMessage("Weather?")]
        made = bound.invoke(asked)
        (call,) = made.tool_calls
        assert (call["name"], call["args"]) == ("weather", {"city": "Oslo"})
        asked += [made, ToolMessage(weather(**call["args"]), tool_call_id=call["id"])]
        assert "".join(part.text for part in bound.stream(asked)) == "It rains."


def free(url: str) -> None:
    for model in models(url):
        assert isinstance(model.with_structured_output(Thing).invoke("A thing?"), Thing)
    for embed in (
        OpenAIEmbeddings(
            model="bert", base_url=f"{url}/v1", api_key="x", check_embedding_ctx_length=False
        ),
        OllamaEmbeddings(model="bert", base_url=url),
    ):
        assert len(embed.embed_documents(["one", "two"])) == 2
