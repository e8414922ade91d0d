"""Marks of reasoning and calls: by their place and their tokens, never by letters in a text. What
is said and what is thought together are what the logprobs know; under a constraint it is all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from serve_kit import marked_box

from weft.core.errors import UsageError
from weft.engine.job import Job, Output, SampledToken, TokenUsage
from weft.engine.text import TextEnd
from weft.models.grammar import grammars as grammar
from weft.models.grammar.grammars import Grammars
from weft.models.grammar.vocabulary import token_bytes
from weft.models.text.tokenizer import Tokenizer
from weft.serve.choices import Choice
from weft.serve.player import JobOutputs
from weft.serve.toolcalls.choose import FORMATS, MARKS, choose
from weft.serve.toolcalls.events import ParsedAnswer, message
from weft.serve.toolcalls.formats import ParserContext
from weft.serve.toolcalls.given import Given, Verbatim

EVERY = sorted({mark for marks in MARKS.values() for mark in marks})
THINKING = {
    "gemma4": ("<|channel>thought\n", "<channel|>"), "mistral": ("[THINK]", "[/THINK]"),
    **dict.fromkeys(("qwen-xml", "hermes", "think"), ("<think>", "</think>")),
}  # fmt: skip
ENDS = {
    "gemma4": ("<turn|>", "<|tool_response>"), "qwen-xml": ("<|im_end|>", "<|endoftext|>"),
    "hermes": ("<|im_end|>", "<|endoftext|>"),
    "functiongemma": ("<start_function_response>", "<end_of_turn>"),
}  # fmt: skip


PLAIN = ParserContext()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a model that has every second mark as a token, half of those special."""
    made = tmp_path_factory.mktemp("marks") / "box"
    known = [mark for mark in EVERY if mark != "<|endoftext|>"][::2]
    assert {"<think>", "[THINK]"} & set(known)
    marked_box(made, {mark: n % 2 == 0 for n, mark in enumerate(known)})
    return made


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer(folder, 2048)


class Played:
    """An engine's answer of these tokens."""

    def __init__(self, tokenizer: Tokenizer, ids: Sequence[int], stop: tuple[str, ...]) -> None:
        self.texts, self.ids = TextEnd(lambda: tokenizer.stream(True), stop), ids

    async def __aiter__(self) -> AsyncIterator[Output]:
        for i in self.ids:
            new, at = self.texts.read(i)
            yield Output(*self.texts.push(SampledToken(i, at=at), new))
            if self.texts.stopped is not None:
                break
        yield Output(*self.texts.finish(), finish="eos", usage=TokenUsage(1, 0, len(self.ids)))

    def close(self) -> None:
        pass


def read(choice: Choice) -> ParsedAnswer:
    async def gathered() -> ParsedAnswer:
        return message([e async for piece in choice for e in piece.events])

    return asyncio.run(gathered())


def answered(
    tokenizer: Tokenizer, ids: Sequence[int], name: str, context: ParserContext = PLAIN,
    stop: tuple[str, ...] = (), verbatim: bool = False,
) -> ParsedAnswer:  # fmt: skip
    make = choose(tokenizer, name)[1]
    parser = Verbatim(make.marks) if verbatim else make(context)
    answer = cast(JobOutputs, Played(tokenizer, ids, stop))
    return read(Choice(answer, parser, Job((1,), 99), marks=make.marks))


def spelt(tokenizer: Tokenizer, text: str) -> list[int]:
    """Tokens of the letters: none is added."""
    return [i for c in text for i in tokenizer.encode(c, special=False)]


@st.composite
def answers(draw: st.DrawFn) -> list[tuple[str, bool]]:
    """Parts of a text, and whether marks among them are tokens where there are such tokens."""
    part = st.one_of(
        st.sampled_from(EVERY), st.sampled_from(EVERY),
        st.sampled_from(["thought\n", " ", "\n", "a"]),
        st.text("ab<>|[]{}/ é🙂日\n", max_size=4),
    )  # fmt: skip
    return draw(st.lists(st.tuples(part, st.booleans()), max_size=8))


def ids_of(tokenizer: Tokenizer, parts: Sequence[tuple[str, bool]]) -> list[int]:
    return [
        i for text, whole in parts
        for i in (tokenizer.encode(text, special=False) if whole else spelt(tokenizer, text))
    ]  # fmt: skip


def expected(tokenizer: Tokenizer, ids: Sequence[int], name: str) -> tuple[str, str]:
    """Content and reasoning without tools, space aside: told from the tokens."""
    signs = {mark: chr(0xF0000 + i) for i, mark in tokenizer.added.items()}
    longest = sorted(signs, key=len, reverse=True)
    text, plain = "", list[int]()
    for i in [*ids, -1]:
        if i in tokenizer.added or i < 0:
            text += tokenizer.decode(plain, skip_special=False)
            text += signs.get(tokenizer.added.get(i, ""), "")
            plain = []
        else:
            plain.append(i)

    def signed(mark: str) -> str:
        for known in longest:
            mark = mark.replace(known, signs[known])
        return mark

    def shown(part: str, *without: str) -> str:
        for mark, sign in signs.items():
            part = part.replace(sign, "" if mark in without else mark)
        return "".join(part.split())

    thought, ends = "", ENDS.get(name, ())
    if name in THINKING:
        opening, closing = map(signed, THINKING[name])
        if text.lstrip().startswith(opening):
            thought, _, text = text.lstrip()[len(opening) :].partition(closing)
    return shown(text, *ends), shown(thought)


@pytest.mark.parametrize("name", [n for n in FORMATS if n != "harmony"])
@settings(max_examples=60, deadline=None)
@given(parts=answers())
def test_content_and_reasoning_are_what_the_logprobs_know(
    tokenizer: Tokenizer, name: str, parts: list[tuple[str, bool]]
) -> None:
    ids = ids_of(tokenizer, parts)
    found = answered(tokenizer, ids, name)
    content, reasoning = expected(tokenizer, ids, name)
    assert ("".join(found.content.split()), "".join(found.reasoning.split())) == (
        content, reasoning,
    )  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=60, deadline=None)
@given(parts=answers(), stop=st.sampled_from([(), ("\n",), ("<think>",), ("]a", "éa")]))
def test_under_a_constraint_all_is_content(
    tokenizer: Tokenizer, name: str, parts: list[tuple[str, bool]], stop: tuple[str, ...]
) -> None:
    ids = ids_of(tokenizer, parts)
    found = answered(tokenizer, ids, name, stop=stop, verbatim=True)
    whole = tokenizer.decode(ids, skip_special=False)
    cuts = [at for s in stop if (at := whole.find(s)) >= 0]
    assert found == ParsedAnswer(content=whole[: min(cuts, default=len(whole))])


@settings(max_examples=100, deadline=None)
@given(parts=answers())
def test_letters_that_spell_tokens_are_text(
    tokenizer: Tokenizer, parts: list[tuple[str, bool]]
) -> None:
    """Where the marks are tokens, an answer of other tokens has none."""
    known = set(tokenizer.added.values())
    for name in FORMATS:
        if not set(MARKS[name]) - {"<|endoftext|>"} <= known:
            continue
        ids = spelt(tokenizer, "".join(text for text, _ in parts))
        tools: Any = {"f": {}}
        found = answered(tokenizer, ids, name, ParserContext(tools=tools))
        text = tokenizer.decode(ids, skip_special=False)
        if "{" not in text:
            assert found == ParsedAnswer(content=text), name


def test_reasoning_stands_at_the_start_only(tokenizer: Tokenizer) -> None:
    for whole in (True, False):
        text = "a <think> b </think> c"
        ids = ids_of(tokenizer, [(text, whole)])
        assert answered(tokenizer, ids, "think") == ParsedAnswer(content=text)
    first = tokenizer.encode("\n<think>b</think> c <think>d</think>", special=False)
    found = answered(tokenizer, first, "think")
    assert (found.reasoning, found.content) == ("b", "c <think>d</think>")


def test_a_users_text_opens_nothing(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("so</think>x", special=False)
    prompt = "tell me of <think>"
    found = answered(tokenizer, ids, "think", ParserContext(prompt, begun=""))
    assert found == ParsedAnswer(content="so</think>x")
    found = answered(tokenizer, ids, "think", ParserContext(prompt, begun="<think>\n"))
    assert (found.reasoning, found.content) == ("so", "x")
    found = answered(tokenizer, ids, "think", ParserContext(prompt, begun="<think>a</think>b"))
    assert found == ParsedAnswer(content="so</think>x")


def test_harmony_by_tokens_and_by_letters(tmp_path: Path) -> None:
    marked_box(tmp_path / "box", dict.fromkeys(MARKS["harmony"], True))
    tokenizer = Tokenizer(tmp_path / "box", 2048)
    said = "Use <|channel|>analysis<|message|> and <|end|>."
    ids = [
        *tokenizer.encode("<|channel|>analysis<|message|>so<|end|><|start|>assistant<|channel|>"
                          "final<|message|>", special=False), *spelt(tokenizer, said),
        *tokenizer.encode("<|return|>", special=False),
    ]  # fmt: skip
    found = answered(tokenizer, ids, "harmony")
    assert (found.reasoning, found.content) == ("so", said)
    for text in ("assistant", "json", said):
        assert answered(tokenizer, spelt(tokenizer, text), "harmony") == ParsedAnswer(content=text)


@pytest.mark.parametrize(
    "name, text",
    [("hermes", '<tool_call>{"a": 1} and more</tool_call>'), ("mistral", "[TOOL_CALLS]  a b {x}"),
     ("mistral", "[TOOL_CALLS] [ 1, 2]"), ("llama", "<|python_tag|>  print(1)"),
     ("qwen-xml", "<tool_call>  x </tool_call>")],
)  # fmt: skip
def test_what_is_no_call_keeps_all_of_its_text(tokenizer: Tokenizer, name: str, text: str) -> None:
    ids = tokenizer.encode(text, special=False)
    assert answered(tokenizer, ids, name, ParserContext(tools={"f": {}})) == ParsedAnswer(
        content=text
    )


@settings(max_examples=80, deadline=None)
@given(content=st.text("ab <>/think{}\n", max_size=20), thought=st.text("ab {", max_size=6))
def test_a_form_after_reasoning_keeps_every_space(
    tokenizer: Tokenizer, content: str, thought: str
) -> None:
    make = choose(tokenizer, "hermes")[1]
    given = Given(make.marks, "<think>", "</think>", "\n\n", "<tool_call>")
    for opened in (True, False):
        text = f"{'' if opened else '<think>'}{thought}\n</think>\n\n"
        parser = given.parser(ParserContext(), opened, make)
        events = [e for c in make.marks.hide(text) + content for e in parser.feed(c)]
        found = message([*events, *parser.finish()])
        assert (found.content, found.reasoning) == (content, thought.strip())


def test_no_mask_ends_what_is_not_whole(folder: Path, tokenizer: Tokenizer) -> None:
    """Nor does forced text, or a mask, hold a special token or a mark, in any spelling."""
    marks = choose(tokenizer, "hermes")[1].marks.ids
    grammars = Grammars(tokenizer, 2048, [0, 5], marks)
    tokens, special = token_bytes(tokenizer, 2048)
    never = {*special, *marks, 0, 5}
    for literal in EVERY:
        constraint, said = grammars.compile(grammar.choice([f"x{literal}y"]))(), b""
        while not constraint.ended:
            assert not never & set(constraint.forced())
            mask = constraint.allowed()
            assert mask is not None
            allowed = set(np.flatnonzero(mask).tolist())
            assert allowed and not never & allowed
            token = min(allowed)
            constraint.accept(token)
            said += tokens[token]
        assert said.decode() == f"x{literal}y"
    with pytest.raises(UsageError, match="ends answers"):
        constraint = grammars.compile(grammar.grammar('start: <[5]> "b"'))()
        constraint.allowed()


@settings(max_examples=150, deadline=None)
@given(ids=st.lists(st.one_of(st.integers(1, 300), st.integers(0, 2047)), max_size=24),
       stop=st.sampled_from([(), ("a",), ("\ufffd",), ("bc", "e f"), ("ab" * 4,)]),
       special=st.booleans())  # fmt: skip
def test_tokens_come_with_their_text(
    tokenizer: Tokenizer, ids: list[int], stop: tuple[str, ...], special: bool
) -> None:
    """However the text is cut: a token comes with the text it begins, at its place."""
    texts = TextEnd(lambda: tokenizer.stream(special), stop)
    tokens, _ = token_bytes(tokenizer, 2048)
    sent, whole = list[SampledToken](), ""
    for i in ids:
        new, at = texts.read(i)
        text, found = texts.push(SampledToken(i, at=at), new)
        whole += text
        assert all(token.at < len(whole) for token in found) or texts.stopped is not None
        sent += found
        if texts.stopped is not None:
            break
    else:
        text, found = texts.finish()
        whole += text
        sent += found
    assert [token.id for token in sent] == ids[: len(sent)]
    everything = tokenizer.decode(ids[: len(sent)], skip_special=not special)
    cuts = [at for s in stop if (at := everything.find(s)) >= 0]
    assert whole == everything[: min(cuts, default=len(everything))]
    places = [token.at for token in sent]
    assert places == sorted(places) and all(at <= len(whole) for at in places)
    for token, at in zip(sent, places):
        try:
            letters = tokens[token.id].decode()
        except UnicodeDecodeError:
            continue
        if special or token.id not in tokenizer.added:
            assert letters.startswith(whole[at : at + len(letters)])
