"""LiteLLM: its own messages sent back, streams, vectors, and its names of errors."""

from typing import Any

import litellm
from tools import WEATHER


def said(url: str) -> None:
    to: dict[str, Any] = {"model": "openai/box", "api_base": f"{url}/v1", "api_key": "x"}
    messages: list[Any] = [{"role": "user", "content": "hello"}]
    made = litellm.completion(messages=messages, **to)
    assert made.choices[0].message.content == "Hello there."
    messages += [made.choices[0].message.model_dump(), {"role": "user", "content": "weather?"}]
    made = litellm.completion(messages=messages, tools=[WEATHER], **to)
    (call,) = made.choices[0].message.tool_calls
    assert (call.function.name, call.function.arguments) == ("weather", '{"city": "Oslo"}')
    messages += [
        made.choices[0].message,
        {"role": "tool", "tool_call_id": call.id, "content": "rain"},
    ]
    chunks = list(litellm.completion(messages=messages, tools=[WEATHER], stream=True, **to))
    rebuilt = litellm.stream_chunk_builder(chunks, messages=messages)
    assert rebuilt.choices[0].message.content == "It rains in Oslo."


def free(url: str) -> None:
    to: dict[str, Any] = {"model": "openai/box", "api_base": f"{url}/v1", "api_key": "x"}
    long = [{"role": "user", "content": "word " * 20_000}]
    try:
        litellm.completion(messages=long, **to)
        raise AssertionError("a prompt longer than the context was taken")
    except litellm.ContextWindowExceededError:
        pass
    try:
        litellm.completion(
            messages=[{"role": "user", "content": "x"}],
            **{**to, "model": "openai/other"},
        )
        raise AssertionError("a model that is not there answered")
    except litellm.NotFoundError:
        pass
    made = litellm.embedding(input=["one", "two"], **{**to, "model": "openai/bert"})
    assert len(made.data) == 2
    made = litellm.responses(input="hello", max_output_tokens=8, **to)
    assert made.output
    made = litellm.text_completion(
        model="text-completion-openai/box",
        prompt="a",
        max_tokens=4,
        api_base=f"{url}/v1",
        api_key="x",
    )
    assert made.choices[0].text
