"""Ollama's own client, unmodified, against the server."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ollama
import pytest
from serve_kit import Running, serving

import weft
from weft.models.run.model import Decoder

HELLO = [{"role": "user", "content": "Write a loop."}]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo", "days": 2}}\n</tool_call>'
SCHEMA = {
    "type": "object", "required": ["size"], "additionalProperties": False,
    "properties": {"size": {"type": "integer", "minimum": 0, "maximum": 9}},
}  # fmt: skip


def weather(city: str, days: int) -> str:
    """The weather of a city.

    Args:
      city: its name
      days: how far ahead
    """
    return f"{city}: rain for {days} days"


@pytest.fixture(scope="module")
def client(server: Running) -> ollama.Client:
    return ollama.Client(host=server.url)


def test_a_chat_is_the_models_own(client: ollama.Client, alone: Decoder) -> None:
    options = {"num_predict": 16, "seed": 5, "temperature": 1, "top_k": 0, "top_p": 1}
    made = client.chat("box", HELLO, options=options)
    expected = alone.generate(alone.chat_ids(HELLO), max_new_tokens=16, temperature=1.0, seed=5)
    assert made.message.content == expected.text and made.message.role == "assistant"
    assert (made.done, made.done_reason) == (True, "length")
    assert made.eval_count == len(expected.ids)
    assert made.prompt_eval_count == len(alone.chat_ids(HELLO))
    durations = made.load_duration, made.prompt_eval_duration, made.eval_duration
    assert made.total_duration is not None and all(d is not None and d > 0 for d in durations)
    assert sum(d or 0 for d in durations) <= made.total_duration


@pytest.mark.parametrize("raw", [False, True])
def test_a_stream_joins_to_the_whole(client: ollama.Client, alone: Decoder, raw: bool) -> None:
    asked: dict[str, Any] = {"model": "box", "prompt": "def f(x):", "raw": raw, "options": {
        "num_predict": 24, "temperature": 0}}  # fmt: skip
    whole = client.generate(**asked)
    parts = list(client.generate(**asked, stream=True))
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert "".join(part.response or "" for part in parts) == whole.response
    assert parts[-1].eval_count == whole.eval_count == 24
    prompt = alone.tokenizer.chat([{"role": "user", "content": "def f(x):"}])
    ids = alone.encode("def f(x):") if raw else alone.tokenizer.encode(prompt, special=False)
    assert whole.response == alone.generate(ids, max_new_tokens=24).text


def test_a_system_is_told(client: ollama.Client) -> None:
    asked: dict[str, Any] = {"model": "box", "options": {"num_predict": 8, "temperature": 0}}
    made = client.generate(**asked, prompt="Hello.", system="Be short.")
    said = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hello."}]
    assert client.chat(**asked, messages=said).message.content == made.response


@pytest.mark.parametrize("stream", [False, True])
def test_calls_of_tools(client: ollama.Client, says: Callable[[str], None], stream: bool) -> None:
    says(f"I look.\n{CALL}\n{CALL}")
    made: Any = client.chat("box", HELLO, tools=[weather], stream=stream)
    parts = list(made) if stream else [made]
    calls = [call for part in parts for call in part.message.tool_calls or ()]
    assert "".join(part.message.content or "" for part in parts) == "I look."
    assert [call.function.name for call in calls] == ["weather"] * 2
    assert all(call.function.arguments == {"city": "Oslo", "days": 2} for call in calls)
    told = {"role": "tool", "tool_name": "weather", "content": weather("Oslo", 2)}
    said = {"role": "assistant", "content": "I look.", "tool_calls": calls}
    assert client.chat("box", [*HELLO, said, told], tools=[weather]).done


def test_thinking_stands_apart(client: ollama.Client, says: Callable[[str], None]) -> None:
    says("<think>\nIt is easy.\n</think>\n\nYes.")
    made = client.chat("box", HELLO, think=True).message
    assert (made.thinking, made.content) == ("It is easy.", "Yes.")
    parts = [part.message for part in client.chat("box", HELLO, think="low", stream=True)]
    assert "".join(part.thinking or "" for part in parts) == "It is easy."
    assert "".join(part.content or "" for part in parts) == "Yes."


def test_a_format_is_followed(client: ollama.Client) -> None:
    for seed in range(3):
        made = client.chat("box", HELLO, format=SCHEMA, options={"seed": seed})
        assert 0 <= json.loads(made.message.content or "")["size"] <= 9
    text = client.generate("box", "x", format="json", options={"seed": 2, "num_predict": 60})
    assert (text.response or "").lstrip().startswith("{")


def test_logprobs(client: ollama.Client) -> None:
    asked: dict[str, Any] = {"messages": HELLO, "logprobs": True, "top_logprobs": 2}
    whole = client.chat("box", **asked, options={"num_predict": 6, "temperature": 0})
    assert whole.logprobs is not None and len(whole.logprobs) == 6
    assert all(len(t.top_logprobs or ()) == 2 and t.logprob <= 0 for t in whole.logprobs)
    assert "".join(t.token for t in whole.logprobs) == whole.message.content


def test_a_stop_ends_the_text(client: ollama.Client) -> None:
    asked: dict[str, Any] = {"num_predict": 40, "temperature": 0}
    whole = client.chat("box", HELLO, options=asked).message.content or ""
    stop = whole[10:13]
    made = client.chat("box", HELLO, options={**asked, "stop": [stop]})
    assert made.message.content == whole[: whole.index(stop)]
    assert made.done_reason == "stop"


def test_the_context_is_never_cut_in_silence(client: ollama.Client) -> None:
    for options, said in (
        ({"num_ctx": 8}, "the context holds 8"),
        ({"num_predict": 513}, "the context holds 512"),
    ):
        with pytest.raises(ollama.ResponseError, match=said) as found:
            client.chat("box", HELLO, options=options)
        assert found.value.status_code == 400
    made = client.chat("box", HELLO, options={"num_ctx": 40, "temperature": 0})
    assert made.done_reason == "length"
    assert (made.prompt_eval_count or 0) + (made.eval_count or 0) == 41


def test_the_oldest_turns_leave_a_long_talk_where_that_is_asked_for(server: Running) -> None:
    turns = [{"role": role, "content": f"{n} " * 20} for n in range(12)
             for role in ("user", "assistant")]  # fmt: skip
    system, last = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "And?"}
    fields = {"model": "box", "stream": False, "options": {"num_predict": 16, "temperature": 0}}

    def asked(messages: list[dict[str, str]], **more: Any) -> tuple[int, Any]:
        status, made, _ = server.ask("POST", "/api/chat", {**fields, "messages": messages, **more})
        return status, made

    assert asked([system, *turns, last])[0] == 400
    status, cut = asked([system, *turns, last], truncate=True)
    assert status == 200, cut
    (notice,) = cut["notices"]
    left = int(notice.split()[2])
    assert left % 2 == 0 and 0 < left < 24
    whole = asked([system, *turns[left:], last])[1]
    assert "notices" not in whole and whole["message"] == cut["message"]
    assert asked([system, *turns[left - 2 :], last])[0] == 400  # no more left than had to
    short = asked([system, last], truncate=True)[1]
    assert "notices" not in short and short["message"] == asked([system, last])[1]["message"]
    assert asked([{"role": "user", "content": "x " * 3000}], truncate=True)[0] == 400
    more = {**fields["options"], "num_ctx": 4096}  # type: ignore[dict-item]
    (notice,) = asked([last], options=more)[1]["notices"]
    assert "4096" in notice and "512 holds" in notice


@pytest.mark.parametrize("more", [{"raw": True}, {}, {"system": "Be brief."}], ids=str)
def test_the_beginning_of_a_long_prompt_leaves_where_that_is_asked_for(
    server: Running, more: dict[str, Any]
) -> None:
    fields = {"model": "box", "stream": False, "options": {"num_predict": 16, "temperature": 0}}
    text = " ".join(str(n) for n in range(900))

    def asked(prompt: str, **also: Any) -> tuple[int, Any]:
        body = {**fields, "prompt": prompt, **more, **also}
        status, made, _ = server.ask("POST", "/api/generate", body)
        return status, made

    assert asked(text)[0] == 400
    status, cut = asked(text, truncate=True)
    assert status == 200, cut
    (notice,) = cut["notices"]
    left = int(notice.split()[2])
    assert f"the first {left} characters left the prompt" in notice
    whole = asked(text[left:])[1]
    assert "notices" not in whole and whole["response"] == cut["response"]
    assert asked(text[left - 1 :])[0] == 400  # no more left than had to
    assert "notices" not in asked("Hello", truncate=True)[1]
    assert asked(text, truncate=True, options={"num_predict": 513})[0] == 400


def test_a_request_has_a_template_of_its_own(server: Running) -> None:
    asked = {"model": "box", "stream": False, "options": {"num_predict": 8, "temperature": 0}}
    form = "[{{ .System }}] Q: {{ .Prompt }} A:"
    _, made, _ = server.ask(
        "POST", "/api/generate", {**asked, "prompt": "Hi", "system": "S", "template": form}
    )
    _, plain, _ = server.ask(
        "POST", "/api/generate", {**asked, "prompt": "[S] Q: Hi A:", "raw": True}
    )
    assert made["response"] == plain["response"] and made["response"]
    assert made["prompt_eval_count"] == plain["prompt_eval_count"]


def test_nothing_asked_loads_the_model(client: ollama.Client) -> None:
    assert client.generate("box").done_reason == "load"
    assert client.chat("box").done_reason == "load"
    assert [part.done_reason for part in client.chat("box", stream=True)] == ["load"]


def test_models_are_listed_and_shown(client: ollama.Client) -> None:
    listed = client.list().models
    assert [model.model for model in listed] == ["box"] and (listed[0].size or 0) > 1e6
    shown = client.show("box:latest")
    assert shown.capabilities == ["completion", "tools"]
    assert shown.modelinfo is not None and shown.modelinfo["llama.context_length"] == 512
    assert shown.template and "tool_call" in shown.template
    loaded = client.ps().models
    assert [(model.name, model.context_length) for model in loaded] == [("box", 512)]
    with pytest.raises(ollama.ResponseError, match="unknown model 'other'") as found:
        client.show("other")
    assert found.value.status_code == 404


def test_the_server_is_there(server: Running) -> None:
    assert server.ask("HEAD", "/")[0] == 200
    assert server.ask("GET", "/api/version")[1] == {"version": weft.__version__}


def test_models_are_not_managed(client: ollama.Client) -> None:
    folder, line = "--model-folder", "weft serve"
    asked: list[tuple[str, Callable[[], Any]]] = [
        (line, lambda: client.pull("box")), (line, lambda: client.push("box")),
        (folder, lambda: client.delete("box")), (folder, lambda: client.copy("box", "other")),
        (folder, lambda: client.create("box", from_="other")),
    ]  # fmt: skip
    for named, ask in asked:
        with pytest.raises(ollama.ResponseError, match=named) as found:
            ask()
        assert found.value.status_code == 404


def test_a_decoder_does_not_embed(client: ollama.Client) -> None:
    with pytest.raises(ollama.ResponseError, match="does not embed"):
        client.embed("box", "text")


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"no_such_field": 1}, "no_such_field"),
    ({"options": {"no_such_option": 1}}, "no_such_option"),
    ({"options": {"mirostat": 1}}, "mirostat"),
    ({"options": {"repeat_penalty": 1.1, "repeat_last_n": 64}}, "repeat_last_n"),
    ({"options": {"repeat_penalty": 0}}, "repeat_penalty"),
    ({"options": {"typical_p": 0.5}}, "typical_p"),
    ({"options": {"temperature": -1}}, "temperature"),
    ({"options": {"num_predict": -3}}, "num_predict"),
    ({"options": {"stop": [""]}}, "stop"),
    ({"options": {"num_ctx": 0}}, "num_ctx"),
    ({"format": "yaml"}, "format"),
    ({"format": {"type": "odd"}}, "schema"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"template": "{{ .Tools }}"}, ".Tools"),
    ({"template": "{{ .Prompt }}", "raw": True}, "template"),
    ({"suffix": "x"}, "suffix"),
    ({"context": [1, 2]}, "context"),
    ({"images": ["eA=="]}, "reads text alone"),
    ({"raw": True, "system": "x"}, "system"),
]


@pytest.mark.parametrize(("fields", "named"), WRONG, ids=range(len(WRONG)))
def test_what_is_wrong_is_named(server: Running, fields: dict[str, Any], named: str) -> None:
    asked = {"model": "box", "prompt": "x", **fields}
    status, body, _ = server.ask("POST", "/api/generate", asked)
    assert status == 400 and list(body) == ["error"]
    assert named in body["error"] and len(body["error"]) < 300


def test_a_full_context_is_shifted_where_asked(chatty: Path) -> None:
    """The answer goes on as to a prompt without what left, and says how much that was."""
    model = weft.load(chatty, device="cpu", context=64)
    assert isinstance(model, Decoder)
    near, ids, left = model.encode("def f(x):"), list[int](), 0
    while len(ids) < 100:
        room = min(64 - len(near) + 1, 100 - len(ids))
        new = model.generate(near, max_new_tokens=room, ignore_eos=True).ids
        ids, near = ids + list(new), [*near, *new]
        if len(near) > 64:
            left += (leaves := (len(near) - 4) // 2)
            del near[4 : 4 + leaves]
    options = {"num_predict": 100, "temperature": 0}
    asked = {
        "model": "box",
        "prompt": "def f(x):",
        "raw": True,
        "stream": False,
        "options": options,
    }
    with serving({"box": str(chatty)}, load={"device": "cpu", "context": 64}) as small:
        status, made, _ = small.ask("POST", "/api/generate", {**asked, "shift": True})
        assert status == 200 and made["response"] == model.tokenizer.decode(ids)
        assert made["eval_count"] == 100 and made["done_reason"] == "length"
        assert made["notices"] == [f"{left} tokens left the context, which became full"]
        status, made, _ = small.ask("POST", "/api/generate", {**asked, "shift": False})
        assert status == 400 or made["eval_count"] < 64
        wrong = {**asked, "shift": True, "options": {**options, "num_keep": -1}}
        assert small.ask("POST", "/api/generate", wrong)[0] == 400
        wrong = {**asked, "shift": True, "options": {**options, "num_ctx": 32}}
        assert small.ask("POST", "/api/generate", wrong)[0] == 400
