"""Fields of vLLM's and llama-server's requests, against the model alone."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from serve_kit import Running

from weft.models.run.model import Decoder

PROMPT = "def fibonacci(n):"
HELLO = [{"role": "user", "content": "Write a loop."}]
TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
BOOK = {
    "type": "object", "properties": {"title": {"type": "string", "maxLength": 4}},
    "required": ["title"], "additionalProperties": False,
}  # fmt: skip


def asked(server: Running, path: str, **more: Any) -> Any:
    start: dict[str, Any] = {"prompt": PROMPT} if path == TEXT else {"messages": HELLO}
    status, made, _ = server.ask("POST", path, {**start, "max_tokens": 24, "seed": 5, **more})
    assert status == 200, made
    return made


def said(made: Any) -> str:
    choice = made["choices"][0]
    text = choice["text"] if "text" in choice else choice["message"]["content"]
    assert isinstance(text, str)
    return text


def refused(server: Running, path: str, **more: Any) -> tuple[str, str]:
    start: dict[str, Any] = {"prompt": PROMPT} if path == TEXT else {"messages": HELLO}
    status, made, _ = server.ask("POST", path, {**start, "max_tokens": 4, **more})
    assert status == 400, made
    return made["error"]["param"], made["error"]["message"]


@pytest.mark.parametrize("path", [TEXT, CHAT])
@pytest.mark.parametrize("form", [
    {"guided_json": BOOK}, {"guided_json": json.dumps(BOOK)}, {"json_schema": BOOK},
    {"structured_outputs": {"json": BOOK}}, {"structured_outputs": {"json": json.dumps(BOOK)}},
])  # fmt: skip
def test_a_schema(server: Running, path: str, form: dict[str, Any]) -> None:
    found = json.loads(said(asked(server, path, max_tokens=100, **form)))
    assert list(found) == ["title"] and len(found["title"]) <= 4


@pytest.mark.parametrize("path", [TEXT, CHAT])
@pytest.mark.parametrize("form", [
    {"guided_choice": ["yes", 'n"o']}, {"structured_outputs": {"choice": ["yes", 'n"o']}},
])  # fmt: skip
def test_a_choice(server: Running, path: str, form: dict[str, Any]) -> None:
    texts = {said(asked(server, path, seed=seed, temperature=2, **form)) for seed in range(6)}
    assert texts <= {"yes", 'n"o'}


@pytest.mark.parametrize("form", [
    {"guided_regex": "[ab]{3}"}, {"structured_outputs": {"regex": "[ab]{3}"}},
    {"guided_grammar": "start: /[ab]{3}/"}, {"grammar": "root ::= [ab] [ab] [ab]"},
    {"structured_outputs": {"grammar": "root ::= [ab] [ab] [ab]"}},
])  # fmt: skip
def test_other_forms(server: Running, form: dict[str, Any]) -> None:
    assert re.fullmatch("[ab]{3}", said(asked(server, TEXT, **form)))


def test_any_object(server: Running) -> None:
    made = asked(server, TEXT, max_tokens=400, structured_outputs={"json_object": True})
    if made["choices"][0]["finish_reason"] == "stop":
        assert isinstance(json.loads(said(made)), dict)
    assert said(made).startswith("{")


def test_forms_that_are_wrong(server: Running) -> None:
    param, message = refused(server, TEXT, structured_outputs={})
    assert param == "structured_outputs" and "0 of json" in message
    param, message = refused(server, CHAT, structured_outputs={"regex": "a", "choice": ["b"]})
    assert param == "structured_outputs" and "2 of json" in message
    assert refused(server, TEXT, guided_json="[1]")[0] == "guided_json"
    param, message = refused(server, TEXT, guided_regex="a", grammar="start: /a/")
    assert "cannot both" in message
    assert refused(server, TEXT, structured_outputs={"regex": "a", "extra": 1})[0]


def ending(alone: Decoder) -> tuple[list[int], int]:
    """A greedy answer, and the first of its tokens that comes late and is new there."""
    ids = alone.generate(PROMPT, 24, temperature=0, ignore_eos=True).ids
    at = next(i for i in range(4, len(ids)) if ids[i] not in ids[:i])
    return ids, at


def test_stop_token_ids(server: Running, alone: Decoder) -> None:
    ids, at = ending(alone)
    made = asked(server, TEXT, temperature=0, ignore_eos=True, stop_token_ids=[ids[at]])
    assert made["usage"]["completion_tokens"] == at
    assert made["choices"][0]["finish_reason"] == "stop"
    assert said(made) == alone.generate(PROMPT, at, temperature=0, ignore_eos=True).text
    assert refused(server, TEXT, stop_token_ids=[-1])[0]


def test_min_tokens(server: Running, alone: Decoder) -> None:
    ids, at = ending(alone)
    more: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "stop_token_ids": [ids[at]]}
    made = asked(server, TEXT, min_tokens=at + 3, **more)
    assert made["usage"]["completion_tokens"] >= at + 3
    expected = alone.generate(
        PROMPT, 24, temperature=0, ignore_eos=True, stop_ids=[ids[at]], min_new_tokens=at + 3
    )
    assert said(made) == expected.text and expected.ids[:at] == ids[:at]
    assert ids[at] not in expected.ids[: at + 3]
    param, message = refused(server, TEXT, min_tokens=9)
    assert param == "min_tokens" and "at most 4" in message


def test_stop_strings_wait_for_min_tokens(server: Running, alone: Decoder) -> None:
    whole = alone.generate(PROMPT, 24, temperature=0, ignore_eos=True)
    stop = whole.text[2:5]
    more: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "stop": [stop]}
    early = asked(server, TEXT, **more)
    late = asked(server, TEXT, min_tokens=20, **more)
    assert stop not in said(early) and len(said(early)) <= 2
    assert late["usage"]["completion_tokens"] >= 20
    assert whole.text.startswith(said(late)[:5]) and stop in said(late)


@pytest.mark.parametrize("path", [TEXT, CHAT])
@pytest.mark.parametrize("stream", [False, True])
def test_the_stop_string_in_the_text(server: Running, path: str, stream: bool) -> None:
    more: dict[str, Any] = {"temperature": 0, "ignore_eos": True}
    whole = said(asked(server, path, **more))
    stop = whole[6:9]
    cut = whole[: whole.index(stop) + len(stop)]
    more |= {"stop": stop, "include_stop_str_in_output": True}
    if not stream:
        assert said(asked(server, path, **more)) == cut
        return
    text = asked(server, path, stream=True, **more)
    found = [json.loads(line[6:]) for line in text.split("\n\n") if line.startswith("data: {")]
    choices = [choice for one in found for choice in one["choices"]]
    parts = [c["text"] if path == TEXT else c["delta"].get("content", "") for c in choices]
    assert "".join(parts) == cut


def test_the_prompts_logprobs(server: Running, alone: Decoder) -> None:
    ids = alone.encode(PROMPT)
    made = asked(server, TEXT, prompt_logprobs=2, max_tokens=1)
    told = made["choices"][0]["prompt_logprobs"]
    assert len(told) == len(ids) and told[0] is None
    logits = alone.logits(ids)
    for row, token, entry in zip(logits, ids[1:], told[1:]):
        order = sorted(range(len(row)), key=lambda i: (-row[i], i))
        assert entry[str(token)]["rank"] == order.index(token) + 1
        assert {str(i) for i in order[:2]} | {str(token)} == set(entry)
        assert [entry[str(i)]["rank"] for i in order[:2]] == [1, 2]
    assert made["choices"][0]["logprobs"] is None
    chat = asked(server, CHAT, prompt_logprobs=0, max_tokens=1)
    assert chat["prompt_logprobs"][0] is None and len(chat["prompt_logprobs"]) > 3
    echoed = asked(server, TEXT, prompt_logprobs=3, echo=True, logprobs=1, max_tokens=1)
    assert all(len(top) <= 2 for top in echoed["choices"][0]["logprobs"]["top_logprobs"][1:])
    assert refused(server, TEXT, prompt_logprobs=1, stream=True)[0] == "prompt_logprobs"


def test_a_prompt_is_cut_at_its_start(server: Running, alone: Decoder) -> None:
    ids = alone.encode(PROMPT)
    kept = asked(server, TEXT, prompt=ids[-3:])
    assert said(asked(server, TEXT, truncate_prompt_tokens=3)) == said(kept)
    assert said(asked(server, TEXT, prompt=ids, truncate_prompt_tokens=3)) == said(kept)
    long = PROMPT * 400
    made = asked(server, TEXT, prompt=long, truncate_prompt_tokens=-1, max_tokens=8)
    assert made["usage"]["prompt_tokens"] == alone.context - 7
    assert refused(server, TEXT, prompt=long)
    chat = asked(server, CHAT, truncate_prompt_tokens=4)
    assert chat["usage"]["prompt_tokens"] == 4
    assert refused(server, TEXT, truncate_prompt_tokens=-2)[0]
    shown = asked(server, TEXT, truncate_prompt_tokens=3, echo=True)
    assert said(shown).endswith(said(kept)) and not said(shown).startswith("def")


def test_an_answer_goes_on(server: Running) -> None:
    more: dict[str, Any] = {"temperature": 0, "continue_final_message": True}
    talk = [*HELLO, {"role": "assistant", "content": "for i in"}]
    made = asked(server, CHAT, messages=talk, add_generation_prompt=False, **more)
    status, prompt, _ = server.ask("POST", "/tokenize", {"messages": HELLO})
    assert status == 200
    more_ids = server.ask("POST", "/tokenize", {"prompt": "for i in", "add_special_tokens": False})
    whole = asked(server, TEXT, prompt=[*prompt["tokens"], *more_ids[1]["tokens"]], temperature=0)
    assert said(made) == said(whole)
    param, _ = refused(server, CHAT, messages=talk, add_generation_prompt=True, **more)
    assert param == "continue_final_message"
    assert refused(server, CHAT, **more)[0] == "messages"


def test_no_generation_prompt(server: Running) -> None:
    plain = asked(server, CHAT, max_tokens=1)
    bare = asked(server, CHAT, max_tokens=1, add_generation_prompt=False)
    assert bare["usage"]["prompt_tokens"] < plain["usage"]["prompt_tokens"]


def test_fields_of_llama_server(server: Running) -> None:
    plain = asked(server, TEXT)
    more = {"cache_prompt": False, "id_slot": 3, "priority": -5}
    samplers = ["penalties", "temperature", "top_k", "top_p", "min_p"]
    assert said(asked(server, TEXT, **more, samplers=samplers)) == said(plain)
    few = asked(server, TEXT, max_tokens=None, n_predict=3, ignore_eos=True)
    assert few["usage"]["completion_tokens"] == 3
    assert refused(server, TEXT, samplers=["top_k"])[0] == "samplers"
    assert refused(server, TEXT, use_beam_search=True)[0] == "use_beam_search"
    assert refused(server, CHAT, skip_special_tokens=False)[0] == "skip_special_tokens"
    assert refused(server, CHAT, service_tier="fast")[0] == "service_tier"
