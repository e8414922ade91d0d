"""Streams that go on at another replica, cut anywhere; and replicas that differ."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import pytest
from hypothesis import given, strategies as st
from serve_kit import stream
from test_relay import TEXT, Fake, fakes

from weft.serve.responses.events import Response
from weft.serve.router import lasting
from weft.serve.router.resume import FORMS, Differs, StreamRest, events_of
from weft.serve.toolcalls.events import CallArguments, CallStarted, Content, Reasoning

TEXTS = st.lists(st.text(max_size=5), max_size=6)


def sse(value: Any, name: str = "") -> bytes:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(value)}\n\n".encode()


def chat(pieces: list[str], thoughts: list[str], calls: list[str], ident: str) -> list[bytes]:
    """The events of one chat."""

    def chunk(delta: Any, finish: Any = None, logprobs: Any = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": logprobs}
        return sse({"id": ident, "created": 1, "choices": [choice]})

    made = [chunk({"role": "assistant", "content": ""}), b": \n\n"]
    made += [chunk({"reasoning": t, "reasoning_content": t}) for t in thoughts]
    for n, piece in enumerate(pieces):
        made.append(chunk({"content": piece}, None, {"content": [{"token": n, "logprob": -n / 7}]}))
    for n, text in enumerate(calls):
        start = {"index": n, "id": f"{ident}-{n}", "type": "function"}
        made.append(chunk({"tool_calls": [{**start, "function": {"name": "f", "arguments": ""}}]}))
        made += [chunk({"tool_calls": [{"index": n, "function": {"arguments": c}}]}) for c in text]
    made.append(chunk({}, "stop"))
    made.append(sse({"id": ident, "created": 1, "choices": [], "usage": {"total_tokens": 3}}))
    return [*made, b"data: [DONE]\n\n"]


def messages(pieces: list[str], thoughts: list[str], calls: list[str], ident: str) -> list[bytes]:
    """The events of one answer of Anthropic's."""

    def event(kind: str, **more: Any) -> bytes:
        return sse({"type": kind, **more}, kind)

    made = [event("message_start", message={"id": ident}), event("ping")]
    blocks = [("thinking", "thinking", thoughts), ("text", "text", pieces)]
    blocks += [("tool_use", "partial_json", [*call]) for call in calls]
    for i, (kind, field, parts) in enumerate(blocks):
        made.append(event("content_block_start", index=i, content_block={"type": kind}))
        for part in parts:
            delta = {"type": f"{field}_delta", field: part}
            made.append(event("content_block_delta", index=i, delta=delta))
        made.append(event("content_block_stop", index=i))
    return [*made, event("message_delta", delta={"stop_reason": "end_turn"}), event("message_stop")]


def ollama(pieces: list[str], thoughts: list[str], calls: list[str], ident: str) -> list[bytes]:
    """The lines of one answer of Ollama's."""

    def line(message: Any, done: bool = False) -> bytes:
        made = {"model": "m", "created_at": ident, "message": message, "done": done}
        return json.dumps(made).encode() + b"\n"

    made = [line({"role": "assistant", "content": "", "thinking": t}) for t in thoughts]
    made += [line({"role": "assistant", "content": p}) for p in pieces]
    for n, text in enumerate(calls):
        call = {"id": f"{ident}-{n}", "function": {"index": n, "name": "f", "arguments": text}}
        made.append(line({"role": "assistant", "content": "", "tool_calls": [call]}))
    return [*made, line({"role": "assistant", "content": ""}, True)]


def responses(pieces: list[str], thoughts: list[str], calls: list[str], ident: str) -> list[bytes]:
    """The events of one answer of the Responses API, as the server writes them."""
    made = Response({"id": f"resp_{ident}", "created_at": hash(ident) % 1000}, {}, False)
    given: list[Any] = [Reasoning(t) for t in thoughts if t] + [Content(p) for p in pieces if p]
    for n, call in enumerate(calls):
        given += [CallStarted(n, "f"), *(CallArguments(n, c) for c in call)]
    found = chain(made.begin(), made.add(given), made.end(None, usage={"total_tokens": 3}))
    return [sse(each, each["type"]) for each in found]  # one by one: later events change earlier


Write = Callable[[list[str], list[str], list[str], str], list[bytes]]
WRITERS: dict[str, Write] = {
    "/v1/chat/completions": chat, "/v1/messages": messages, "/api/chat": ollama,
    "/v1/responses": responses,
}  # fmt: skip


def parts(path: str, data: bytes) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for _, event in events_of(data):
        for part in FORMS[path](event):
            value = part.value if isinstance(part.value, str | list) else 1
            found[part.key] = found[part.key] + value if part.key in found else value
    return {key: value for key, value in found.items() if value not in ("", [])}


def joined(texts: list[str]) -> list[str]:
    """The same text in other pieces."""
    whole = "".join(texts)
    return [whole[i : i + 3] for i in range(0, len(whole), 3)]


@pytest.mark.parametrize("path", WRITERS)
@given(pieces=TEXTS, thoughts=TEXTS, calls=TEXTS, share=st.floats(0, 1))
def test_the_rest_and_what_was_sent_are_the_whole(
    path: str, pieces: list[str], thoughts: list[str], calls: list[str], share: float
) -> None:
    write = WRITERS[path]
    first = write(pieces, thoughts, calls, "one")
    sent = b"".join(first[: int(share * len(first))])
    logs = path == "/v1/chat/completions"  # a token's logprob comes with its text
    other = write(pieces if logs else joined(pieces), joined(thoughts), calls, "two")
    rest = StreamRest(path, sent)
    made = sent + b"".join(rest.of(part) for part in other)
    assert parts(path, made) == parts(path, b"".join(first))
    if sent.count(b"one") and logs:
        assert {event["id"] for _, event in events_of(made) if "id" in event} == {"one"}


@pytest.mark.parametrize("cut", range(0, 18, 3))
def test_a_response_keeps_the_first_ones_names(cut: int) -> None:
    """Ids, times and numbers are one stream's, whoever wrote an event."""
    texts = ["ab", "cd"], ["th"], ["{}"]
    first, other = responses(*texts, "one"), responses(*texts, "two")
    sent = b"".join(first[:cut])
    rest = StreamRest("/v1/responses", sent)
    made = [e for _, e in events_of(sent + b"".join(rest.of(part) for part in other))]
    assert [e["sequence_number"] for e in made] == list(range(len(first)))
    assert [e["type"] for e in made] == [e["type"] for _, e in events_of(b"".join(first))]
    items: dict[int, set[Any]] = {}
    for event in made:
        name = event.get("item_id") or event.get("item", {}).get("id")
        items.setdefault(event.get("output_index", -1), set()).add(name)
    last = made[-1]["response"]
    assert last["id"] == ("resp_one" if cut else "resp_two")
    assert [items[i] for i in range(3)] == [{item["id"]} for item in last["output"]]


def test_another_answer_is_never_joined() -> None:
    sent = b"".join(chat(["abc"], [], [], "one")[:3])
    with pytest.raises(Differs):
        b"".join(StreamRest("/v1/chat/completions", sent).of(e) for e in chat(["axc"], [], [], "t"))


def test_an_error_of_the_other_replica_goes_through() -> None:
    rest = StreamRest("/v1/chat/completions", b"".join(chat(["abc"], [], [], "one")[:3]))
    assert b"too much" in rest.of(sse({"error": {"message": "too much"}}))


def text_event(text: str, finish: str | None = None) -> bytes:
    choice = {"index": 0, "text": text, "finish_reason": finish, "logprobs": None}
    return sse({"id": "x", "created": 1, "choices": [choice]})


def asked_of(answers: Iterator[Callable[[Fake], None]], count: int) -> bytes:
    """The stream of a router in front of replicas that answer so, one after the other."""
    with (
        fakes(lambda fake: next(answers)(fake), count) as made,
        stream(made, TEXT, {"prompt": "x"}) as answer,
    ):
        data = answer.read()
        assert isinstance(data, bytes)
        return data


def breaking(*events: bytes) -> Callable[[Fake], None]:
    return lambda fake: fake.send(b"".join(events), 99, "text/event-stream")


def whole(*events: bytes) -> Callable[[Fake], None]:
    return lambda fake: fake.send(b"".join(events), 0, "text/event-stream")


def test_replicas_that_differ_end_the_stream_with_an_error() -> None:
    data = asked_of(
        iter([breaking(text_event("ab")), whole(text_event("ax"), text_event("", "stop"))]), 2
    )
    assert b"broke off" in data and b'"ab"' in data.replace(b" ", b"") and b"ax" not in data


def test_a_stream_goes_on_once() -> None:
    """What ends two replicas may end all."""
    asked = iter([breaking(text_event("ab")), breaking(text_event("abc")), whole()])
    data = asked_of(asked, 3)
    texts = [e["choices"][0]["text"] for _, e in events_of(data) if "choices" in e]
    assert "".join(texts) == "abc" and b"broke off" in data
    assert len([*asked]) == 1  # the third is not asked


def test_nobody_else_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lasting, "RESUME_SECONDS", 0.3)
    data = asked_of(iter([breaking(text_event("ab")), breaking(text_event("a"))]), 1)
    assert b"broke off" in data


def test_what_is_no_stream_of_the_protocol_ends_with_an_error() -> None:
    odd = b"data: {broken\n\n"
    data = asked_of(iter([breaking(text_event("ab")), whole(odd)]), 2)
    assert b"broke off" in data and b"{broken" not in data
    data = asked_of(iter([breaking(sse({"choices": [{"text": "a"}]})), whole(text_event("ab"))]), 2)
    assert b"broke off" in data
