"""Names that clients invent: of users, keys, salts, models, adapters, sessions, files, batches,
tools, schemas, paths. No table of the server grows with them; none is a label of its metrics."""

from __future__ import annotations

import asyncio
import gc
import json
import re
from collections import deque
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from adapter_kit import adapter
from serve_kit import Running, serving, until

from weft.engine import suffixes
from weft.serve import sessions
from weft.serve.batches import routes
from weft.serve.ollama import go_template

COUNT = 24  # invented names of each kind
FORM = (
    '--xx\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--xx\r\n'
    'Content-Disposition: form-data; name="file"; filename="NAME"\r\n\r\n{}\r\n--xx--\r\n'
)
HI = [{"role": "user", "content": "hi"}]


def rounds(server: Running, names: list[str]) -> None:
    """A request of each kind for each name, and its end where it has one."""
    connection = HTTPConnection(server.host, server.port, timeout=240)

    def ask(method: str, path: str, body: Any = None, key: str = "") -> Any:
        headers = {"X-Api-Key": key, "X-Custom": key, "traceparent": key} if key else {}
        connection.request(method, path, json.dumps(body) if body is not None else None, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()

    for name in names:
        tool = {"type": "function", "function": {"name": name, "description": name}}
        form = {
            "type": "json_schema",
            "json_schema": {
                "name": name,
                "schema": {"type": "object", "properties": {name: {"const": name}}},
            },
        }
        more: list[dict[str, Any]] = [
            {"user": name, "metadata": {name: name}, "cache_salt": name, "stop": [name]},
            {"tools": [tool], "safety_identifier": name},
            {"response_format": form}, {"model": name}, {name: 1}, {"id_slot": 3},
        ]  # fmt: skip
        for each in more:
            body = {"messages": HI, "max_tokens": 2, **each}
            assert ask("POST", "/v1/chat/completions", body, name)[0] in (200, 400, 404)
        assert ask("POST", "/v1/load_lora_adapter", {"lora_name": name, "lora_path": "a"})[0] == 200
        body = {"model": name, "prompt": "x", "max_tokens": 2}
        assert ask("POST", "/v1/completions", body)[0] == 200
        assert ask("POST", "/v1/unload_lora_adapter", {"lora_name": name})[0] == 200
        made = {"model": name, "from": "box", "system": name, "stream": False}
        template = {**made, "template": f"{name} {{{{ .Prompt }}}}"}
        for body in (made, template):
            assert ask("POST", "/api/create", body)[0] == 200
            asked = {"model": name, "prompt": "x", "options": {"num_predict": 1}}
            assert ask("POST", "/api/generate", asked)[0] == 200
            assert ask("DELETE", "/api/delete", {"model": name})[0] == 200
        for path in (f"/{name}", f"/v1/files/{name}", f"/v1/batches/{name}", f"/v1/models/{name}",
                     f"/slots?model={name}"):  # fmt: skip
            assert ask("GET", path)[0] == 404
        assert ask("POST", "/slots/0?action=save", {"filename": name}, name)[0] == 200
        form = FORM.replace("NAME", name).encode()
        more_ = {"X-Api-Key": name, "Content-Type": "multipart/form-data; boundary=xx"}
        connection.request("POST", "/v1/files", form, more_)
        file = json.loads(connection.getresponse().read())["id"]
        body = {"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"}
        batch = json.loads(ask("POST", "/v1/batches", body, name)[1])["id"]
        path = f"/v1/batches/{batch}"
        until(lambda path=path, name=name: b'"status":"failed"' in ask("GET", path, None, name)[1])
        assert ask("DELETE", f"/v1/files/{file}", None, name)[0] == 200
    connection.close()


def tables() -> dict[int, tuple[Any, int]]:
    """The containers of this process, with their sizes."""
    gc.unfreeze()  # a server sets loaded models apart
    gc.collect()
    kinds = (dict, list, set, deque)
    return {id(o): (o, len(o)) for o in gc.get_objects() if isinstance(o, kinds)}


@pytest.mark.slow
def test_no_table_grows_with_invented_names(
    chatty: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables that remember a bounded number of such names are bounded low here."""
    monkeypatch.setattr(sessions, "MAX_NOTED", 4)
    monkeypatch.setattr(suffixes, "POOLS", 4)
    monkeypatch.setattr(suffixes, "KEPT", 16)
    monkeypatch.setattr(routes, "MAX_RECORDS", 10**6)
    for name in ("adapters", "made", "slots"):
        (tmp_path / name).mkdir()
    adapter(tmp_path / "adapters" / "a", chatty, ("q_proj",), 4, 1)
    load = {"device": "cpu", "adapter_slots": 1, "adapter_rank": 4, "context": 128}
    with serving(
        {"box": str(chatty)}, load=load, adapter_folder=str(tmp_path / "adapters"), sequences=4,
        model_folder=str(tmp_path / "made"), sessions=str(tmp_path / "slots"), memory=1 << 22,
        batches=tmp_path / "batches",
    ) as server:  # fmt: skip
        rounds(server, [f"warm{i}" for i in range(4)])
        before = tables()
        rounds(server, [f"zq{i}" for i in range(COUNT)])
        go_template.parsed.cache_clear()
        grown = [
            o for i, (o, size) in tables().items()
            if i in before and before[i][0] is o and size >= before[i][1] + COUNT - 4
        ]  # fmt: skip
        worker = server.server.config.app._app.state.batches  # type: ignore[union-attr]
        known: list[Any] = [worker.folder.batches]  # of invented keys, MAX_RECORDS of all
        told = server.ask("GET", "/metrics")[1]
        assert not re.search(r"zq\d", told) and "weft_answers_total" in told
        known += [o for o in grown if isinstance(next(iter(o)), asyncio.TimerHandle)]
        known += [o for o in grown if '{"grammars"' in str(next(iter(o)))]  # bounded by bytes
        bad = [o for o in grown if not any(o is each for each in (*known, before))]
        assert not bad, [f"{type(o).__name__} of {len(o)}: {str(o)[-300:]}" for o in bad]
