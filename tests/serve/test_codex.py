"""Requests in the shape of Codex CLI's (0.169): fields, items and their order, several turns that
each bring the whole conversation. Its words are not here: others as long are."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from serve_kit import Running, chatty_box, serving

THREAD = "01a2148f-ea98-75f0-886f-85a923b168fb"
RULES = "\n".join(f"{i}. Look before you change file {i}, and say what you did." for i in range(60))
EXEC = {
    "type": "function", "name": "exec_command", "description": "Runs a command.", "strict": False,
    "parameters": {"type": "object", "properties": {"cmd": {"type": "string"}},
                   "required": ["cmd"], "additionalProperties": False},
}  # fmt: skip
PATCH = {
    "type": "custom", "name": "apply_patch", "description": "Edits files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "*** Begin" /.+/s'},
}  # fmt: skip
AGENTS = {"type": "namespace", "name": "multi_agent_v1", "description": "Tools for sub-agents.",
          "tools": [{**EXEC, "name": "close_agent"}]}  # fmt: skip
TOOLS = [
    EXEC, PATCH, AGENTS, {"type": "web_search", "external_web_access": False},
    {"type": "image_generation", "output_format": "png"}, {"type": "local_shell"},
    {"type": "tool_search", "execution": "client", "description": "Finds tools.", "parameters": {}},
]  # fmt: skip
ANSWERS = (
    '<think>\nI should look.\n</think>\n\nI look.\n<tool_call>\n{"name": "exec_command", '
    '"arguments": {"cmd": "cat a.py"}}\n</tool_call>',
    '<think>\nIt needs one line.\n</think>\n\n<tool_call>\n{"name": "apply_patch", "arguments": '
    '{"input": "*** Begin Patch\\n+x = 1\\n*** End Patch"}}\n</tool_call>',
    "Done: a.py has a line more.",
)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server of a model with a context that holds what Codex sends."""
    folder: Path = chatty_box(tmp_path_factory.mktemp("models") / "box", context=8192)
    with serving({"box": str(folder)}, load={"device": "cpu", "context": 8192}) as running:
        yield running


@pytest.mark.slow
def test_the_program_itself(tmp_path: Path, says: Callable[..., None]) -> None:
    """`codex exec`, as npm installs it: it runs a command, changes a file and ends its turn."""
    program = os.environ.get("CODEX") or shutil.which("codex")
    if program is None:
        pytest.skip("no codex; CODEX names it: docs/testing.md")
    patch = "*** Begin Patch\n*** Add File: a.txt\n+weft was here\n*** End Patch\n"
    call = {"name": "apply_patch", "arguments": {"input": patch}}
    run = {"name": "exec_command", "arguments": {"cmd": "echo $((6 * 7))"}}
    calls = [f"<tool_call>\n{json.dumps(c)}\n</tool_call>" for c in (run, call)]
    says(*calls, "Done.")
    name = "gpt-5.5"  # one whose tools Codex knows: apply_patch is among them
    box, home, work = (tmp_path / part for part in ("box", "home", "work"))
    home.mkdir()
    work.mkdir()
    models = {name: str(chatty_box(box, context=32_768))}
    with serving(models, load={"device": "cpu", "context": 32_768}) as server:
        (home / "config.toml").write_text(
            f'model = "{name}"\nmodel_provider = "weft"\n[model_providers.weft]\nname = "weft"\n'
            f'base_url = "{server.url}/v1"\nwire_api = "responses"\n'
        )
        flags = ("exec", "--json", "--skip-git-repo-check", "-s", "workspace-write")
        done = subprocess.run(
            [program, *flags, "Do it."], cwd=work, env={**os.environ, "CODEX_HOME": str(home)},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=True,
        )  # fmt: skip
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    items = [e["item"] for e in told if e["type"] == "item.completed"]
    ran = next(item for item in items if item["type"] == "command_execution")
    assert ran["aggregated_output"].strip() == "42"
    assert (work / "a.txt").read_text() == "weft was here\n"
    assert items[-1]["text"] == "Done."
    usage = told[-1]["usage"]
    assert usage["cached_input_tokens"] > 0.6 * usage["input_tokens"]  # two turns of three


def message(role: str, text: str) -> dict[str, Any]:
    part = {"type": "input_text", "text": text}
    return {"type": "message", "id": f"msg_{len(text)}", "role": role, "content": [part]}


def request(items: list[dict[str, Any]], turn: int) -> dict[str, Any]:
    return {
        "model": "box", "input": items, "tools": TOOLS, "tool_choice": "auto",
        "parallel_tool_calls": True, "reasoning": {"summary": "auto", "effort": "medium"},
        "store": False, "stream": True, "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": THREAD, "service_tier": "default", "text": {"verbosity": "low"},
        "stream_options": {"reasoning_summary_delivery": "sequential_cutoff"},
        "client_metadata": {"x-codex-installation-id": THREAD, "x-codex-turn": str(turn)},
    }  # fmt: skip


def played(server: Running, body: dict[str, Any]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """What Codex keeps of a stream, by the events that it reads: items, and the usage."""
    status, text, _ = server.ask("POST", "/v1/responses", body)
    assert status == 200, text
    made = [json.loads(part.split("data: ", 1)[1]) for part in text.strip().split("\n\n")]
    assert made[0]["type"] == "response.created" and made[-1]["type"] == "response.completed"
    items = [e["item"] for e in made if e["type"] == "response.output_item.done"]
    return items, made[-1]["response"]["usage"]


def sent_back(item: dict[str, Any]) -> dict[str, Any]:
    """An item as Codex sends it back: raw reasoning goes, summaries stay."""
    return {**item, "content": None} if item["type"] == "reasoning" else item


def test_a_conversation_of_several_turns(large: Running, says: Callable[..., None]) -> None:
    says(*ANSWERS)
    items = [
        message("developer", RULES), message("developer", "Ask before you delete anything."),
        message("user", "<environment_context><cwd>/work</cwd></environment_context>"),
        message("user", "Add a line to a.py."),
    ]  # fmt: skip
    kinds = []
    shares = []
    for turn in range(len(ANSWERS)):
        made, usage = played(large, request(items, turn))
        kinds.append([item["type"] for item in made])
        shares.append(usage["input_tokens_details"]["cached_tokens"] / usage["input_tokens"])
        assert usage["input_tokens"] > 1500
        items += map(sent_back, made)
        for call in made:
            if call["type"].endswith("call"):
                items.append({"type": f"{call['type']}_output", "call_id": call["call_id"],
                              "output": "Chunk ID: 9a26de\nOutput:\nx = 0\n"})  # fmt: skip
    assert kinds == [["reasoning", "message", "function_call"], ["reasoning", "custom_tool_call"],
                     ["message"]]  # fmt: skip
    assert all(share > 0.9 for share in shares[1:]), shares
    calls = [item for item in items if item["type"] == "custom_tool_call"]
    assert calls[0]["input"] == "*** Begin Patch\n+x = 1\n*** End Patch"


def test_a_schema_beside_tools(large: Running) -> None:
    """As `codex exec --output-schema` asks: JSON of that form, or a call."""
    schema = {"type": "object", "properties": {"done": {"enum": ["yes", "no"]}},
              "required": ["done"], "additionalProperties": False}  # fmt: skip
    form = {"type": "json_schema", "strict": True, "schema": schema, "name": "codex_output_schema"}
    tool = {**EXEC, "parameters": {**schema, "properties": {"done": {"enum": ["yes"]}}}}
    for seed in range(4):
        body = {**request([message("user", "Are you done?")], 0), "text": {"format": form},
                "tools": [tool], "seed": seed}  # fmt: skip
        made, _ = played(large, body)
        for item in made:
            if item["type"] == "message":
                assert json.loads(item["content"][0]["text"])["done"] in ("yes", "no")
            else:
                assert json.loads(item["arguments"]) == {"done": "yes"}
