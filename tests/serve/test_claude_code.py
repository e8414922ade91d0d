"""Requests in the shape of Claude Code's: later turns find what earlier ones left in the cache."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from serve_kit import Running, chatty_box, serving


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server of a model with a context that holds what Claude Code sends."""
    folder = chatty_box(tmp_path_factory.mktemp("models") / "box", context=16_384)
    load = {"device": "cpu", "context": 16_384}
    with serving({"box": str(folder)}, sequences=2, memory=256 << 20, load=load) as running:
        yield running


def code_request(turn: int, messages: Sequence[Any]) -> dict[str, Any]:
    """A request in the shape of Claude Code's (2.1.332): fields, blocks and their order; its words
    are not."""
    kept = {"cache_control": {"type": "ephemeral"}}
    tools = [
        {"name": name, "description": f"{name}: " + "what it does and when it is used. " * 12,
         "input_schema": {
             "$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object",
             "properties": {"path": {"type": "string", "description": "where"},
                            "limit": {"type": "integer"}},
             "required": ["path"], "additionalProperties": False}}
        for name in ("Read", "Edit", "Bash", "ToolSearch", "Fetch")
    ]  # fmt: skip
    tools[-1]["defer_loading"] = True
    return {
        "model": "box", "max_tokens": 24, "stream": True, "tools": tools,
        "messages": messages,
        "system": [
            {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1.332.a{turn}f; "
             f"cc_entrypoint=cli; cch={turn * 7919:05x};"},
            {"type": "text", "text": "You write code on the command line.", **kept},
            {"type": "text", "text": "Use tools; say little; keep to the style. " * 120, **kept},
        ],
        "metadata": {"user_id": f"user_{'0' * 64}_account__session_{turn}"},
        "thinking": {"type": "adaptive", "display": "omitted"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "medium"},
    }  # fmt: skip


def later_turns(turns: int) -> Iterator[list[dict[str, Any]]]:
    """The messages of each request of one conversation: each has the last one's, a call and its
    result; a note of the system's on tokens follows each result."""
    text = "Please mend the test that fails. " * 5
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": [
            {"type": "text", "text": "<system-reminder>\nThe project's rules.\n</system-reminder>"},
            {"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}]},
    ]  # fmt: skip
    for turn in range(turns):
        yield json.loads(json.dumps(messages))
        for message in messages:
            for block in message["content"]:
                if isinstance(block, dict):  # only the last one is marked
                    block.pop("cache_control", None)
        search = turn == 2
        call = {"type": "tool_use", "id": f"toolu_{turn}",
                "name": "ToolSearch" if search else "Read",
                "input": {"path": f"src/part{turn}.py", "limit": 20}}  # fmt: skip
        messages.append({"role": "assistant", "content": [
            {"type": "thinking", "thinking": "I read it first.", "signature": "c2ln"},
            {"type": "text", "text": "I read it."}, call]})  # fmt: skip
        result = {"type": "tool_result", "tool_use_id": call["id"], "is_error": turn == 1,
                  "content": [{"type": "tool_reference", "tool_name": "Fetch"} if search else
                              {"type": "text", "text": "def part():\n    return 1\n"}],
                  "cache_control": {"type": "ephemeral"}}  # fmt: skip
        messages.append({"role": "user", "content": [result]})
        note = f"{100_000 - 700 * turn} tokens are left."
        messages.append({"role": "system", "content": note})


def test_later_turns_of_claude_code_are_cached(long: Running) -> None:
    headers = {
        "anthropic-version": "2023-06-01", "x-app": "cli", "x-api-key": "sk-ant-none",
        "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14",
    }  # fmt: skip
    for turn, messages in enumerate(later_turns(4)):
        asked = code_request(turn, messages)
        counted = {k: v for k, v in asked.items() if k not in ("max_tokens", "stream")}
        _, count, _ = long.ask("POST", "/v1/messages/count_tokens?beta=true", counted, headers)
        status, text, _ = long.ask("POST", "/v1/messages?beta=true", asked, headers)
        assert status == 200, text
        events = [json.loads(data) for data in re.findall(r"^data: (.*)$", text, re.M)]
        end = next(event for event in events if event["type"] == "message_delta")
        cached = end["usage"]["cache_read_input_tokens"]
        assert cached + end["usage"]["input_tokens"] == count["input_tokens"] > 2000
        assert cached > 0.9 * count["input_tokens"] or turn == 0


@pytest.mark.slow
def test_the_program_itself(tmp_path: Path, says: Callable[..., None]) -> None:
    """`claude -p`, as npm installs it: it looks up a tool, reads a file and ends its turn."""
    program = os.environ.get("CLAUDE") or shutil.which("claude")
    if program is None:
        pytest.skip("no claude; CLAUDE names it: docs/testing.md")
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    work.mkdir()
    (work / "a.txt").write_text("weft was here")
    search = {"name": "ToolSearch", "arguments": {"query": "select:NotebookEdit", "max_results": 1}}
    read = {"name": "Read", "arguments": {"file_path": str(work / "a.txt")}}
    calls = [f"<tool_call>\n{json.dumps(c)}\n</tool_call>" for c in (search, read)]
    says(*calls, "Done.")
    folder = chatty_box(tmp_path / "box", context=65_536)
    with serving({"box": str(folder)}, load={"device": "cpu", "context": 65_536}) as server:
        done = subprocess.run(
            [program, "-p", "Read a.txt.", "--output-format", "json"], cwd=work,
            env={
                "PATH": os.environ["PATH"], "HOME": str(home), "ANTHROPIC_BASE_URL": server.url,
                "ANTHROPIC_API_KEY": "sk-none", "ANTHROPIC_MODEL": "box",
                "ANTHROPIC_DEFAULT_HAIKU_MODEL": "box", "DISABLE_AUTOUPDATER": "1",
                "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
                "HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": "127.0.0.1",  # none but ours
            },
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=290, check=True,
        )  # fmt: skip
    told = json.loads(done.stdout)
    assert told["result"] == "Done." and not told["is_error"] and told["num_turns"] == 3
    usage = told["usage"]
    cached = usage["cache_read_input_tokens"]
    assert cached > 0.6 * (cached + usage["input_tokens"])  # two turns of three
