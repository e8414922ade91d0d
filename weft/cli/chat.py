"""`weft chat`."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Sequence
from typing import Any

import click

from weft.cli.loading import Loading
from weft.cli.run import SpeedMeter, drawn, generates, load_decoder, stream
from weft.core.errors import FileFormatError, LimitError, StorageError, UsageError, WeftError
from weft.core.hints import command
from weft.host.files import write_text
from weft.models.run.talk import Talk

HELP = (
    "/clear begins anew, /image FILE shows a picture with the next message, /save [FILE] writes "
    "the conversation, an empty line leaves"
)


@click.command(
    epilog="""\b
Example:  weft chat
          weft chat MODEL --temperature 0.7 --system 'Answer in one line.'
"""
)
@click.argument("path", metavar="[MODEL]", type=click.Path(), required=False)
@generates(None)
@click.option("--system", help="The system message.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per turn.")
def chat(
    path: str | None, system: str | None, as_json: bool, loading: Loading, **given: Any
) -> None:  # fmt: skip
    """Talk with MODEL, a folder, a GGUF file or ORG/NAME with a chat template. The default is
    box-chat, which comes with weft and answers questions about Python's library. When the context
    is full, weft drops the oldest turns.

    /clear begins a new conversation. /image FILE shows a picture to a model that sees. /save
    [FILE] writes the conversation as a line of JSON that `weft train` reads. An empty line
    leaves."""
    from weft.hub.box import CHAT

    path = path or CHAT
    model = load_decoder(path, loading, given)
    if model.tokenizer is None or not model.tokenizer.has_chat:
        raise UsageError(
            f"{path} lacks a chat template; give it a prompt instead: "
            f"{command('run', path, 'PROMPT')}"
        )
    talk = Talk(model, system)
    interactive = sys.stdin.isatty()
    if interactive:
        _say(HELP)
    while True:
        if interactive:
            print("> ", end="", file=sys.stderr, flush=True)
        line = _read_turn()
        if not line:
            return
        if not _done(line, talk):
            _turn(talk, line, as_json, dict(given))


def _done(line: str, talk: Talk) -> bool:
    """True if a line is a command, which is done."""
    name, _, rest = line.partition(" ")
    name = name.lower()
    if name == "/clear":
        talk.clear()
        _say("a new conversation")
    elif name == "/save":
        _save(talk, rest.strip())
    elif name == "/image":
        _show(talk, os.path.expanduser(rest.strip()))
    elif re.fullmatch(r"/[a-z?]+", line.lower()):
        _say(f"there is no {line}: {HELP}")
    else:
        return False
    return True


def _show(talk: Talk, path: str) -> None:
    """Adds a picture to the next message, if the model reads it."""
    try:
        seen = talk.model.need_eyes().see(path, path)
    except WeftError as e:
        return _fail(e)
    talk.pictures.append(path)
    _say(f"{path} goes with your next message: {len(seen.vectors)} tokens")


def _save(talk: Talk, path: str) -> None:
    """Writes the conversation to a file that is not there yet, and says where."""
    path = os.path.expanduser(path) or time.strftime("chat-%Y%m%d-%H%M%S.jsonl")
    if not talk.messages:
        return _say("nothing was said yet")
    try:
        if os.path.lexists(path):
            return _say(f"{path} is there already; give another name: /save FILE")
        write_text(path, json.dumps({"messages": talk.whole}, ensure_ascii=False) + "\n")
    except StorageError as e:
        return _say(str(e))
    except (OSError, ValueError) as e:
        return _say(f"{path}: {getattr(e, 'strerror', None) or e}; give another name: /save FILE")
    _say(f"saved in {path}")


def _turn(talk: Talk, line: str, as_json: bool, options: dict[str, Any]) -> None:
    """One turn: the user's message and the model's answer; if it fails or is stopped, both are
    removed."""
    defaults, before = talk.model.defaults, talk.start
    limit = options.pop("max_new_tokens") or defaults.max_new_tokens
    try:
        ids = talk.ask(line, limit)
    except WeftError as e:
        return _fail(e)
    if talk.start and not before:
        _say(f"the context of {talk.model.context} tokens is full: the oldest turns are no longer "
             "read")  # fmt: skip
    seed = drawn(talk.model, options)
    try:
        count = talk.room(ids, defaults.limit(len(ids), limit))
        options |= {"seed": seed.get("seed", 0), "max_new_tokens": count}
        text, finish = (_answer_json if as_json else _answer)(talk.model, ids, options, seed)
    except KeyboardInterrupt:
        talk.take_back()
        return print("\n(interrupted)", file=sys.stderr)
    except WeftError as e:
        talk.take_back()
        return _fail(e)
    if finish == "length" and count == talk.room(ids) != limit:
        _say("the answer was cut off: the context is full")
    talk.answer(text)


def _fail(error: WeftError) -> None:
    """Reports the error of a turn. Without a terminal it raises the error instead, unless the
    message was too long."""
    if not (isinstance(error, LimitError) or sys.stdin.isatty()):
        raise error
    _say(str(error))


def _read_turn() -> str:
    """The next line of standard input, "" at its end."""
    try:
        return sys.stdin.buffer.readline().decode("utf-8").strip()
    except UnicodeDecodeError:
        raise FileFormatError("a line is not UTF-8 text; check the terminal") from None


def _answer(
    model: Any, ids: Sequence[int], options: dict[str, Any], seed: dict[str, int]
) -> tuple[str, str]:
    """Prints a turn's text as it comes; returns it, and how it ended."""
    pieces = model.generate(ids, stream=True, **options)
    text = stream(pieces)
    click.echo()
    if seed:
        _say(f"seed {seed['seed']}")
    return text, pieces.results[0].finish_reason


def _answer_json(
    model: Any, ids: Sequence[int], options: dict[str, Any], seed: dict[str, int]
) -> tuple[str, str]:
    """Prints a turn as one line of JSON; returns its text, and how it ended."""
    watch = SpeedMeter()
    result = model.generate(ids, **options)
    click.echo(json.dumps({
        "text": result.text, "ids": list(result.ids), "finish_reason": result.finish_reason,
        "device": model.device.info.id if model.device else "oracle", **seed,
        "prompt_tokens": len(ids), "reused_tokens": result.reused,
        **watch.as_json(len(result.ids)),
    }))  # fmt: skip
    return result.text, result.finish_reason


def _say(text: str) -> None:
    print(f"weft: {text}", file=sys.stderr)
