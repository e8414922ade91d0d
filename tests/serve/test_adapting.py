"""Adapters put in and taken out while a server runs: the answers are those of a model loaded with
them, nothing of an earlier adapter is left, and only the operator's folder is read."""

from __future__ import annotations

import json
import os
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from adapter_kit import adapter
from serve_kit import Running, serving, until

import weft
from weft.models.run.model import Decoder

POST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
SHAPES = {
    "shy": (("q_proj", "v_proj"), 4, 1), "loud": (("q_proj", "down_proj", "up_proj"), 9, 2),
    "third": (("k_proj", "o_proj"), 16, 3),
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(chatty: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("adapters")
    for name, (targets, rank, seed) in SHAPES.items():
        adapter(made / name, chatty, targets, rank, seed)
    adapter(made / "large", chatty, ("q_proj",), 17, 4)
    (made / "empty").mkdir()
    return made


@pytest.fixture(scope="module")
def own(chatty: Path, folder: Path) -> Decoder:
    """The model with all adapters from the start."""
    adapters = {name: folder / name for name in SHAPES}
    made = weft.load(chatty, device="cpu", adapters=adapters)
    assert isinstance(made, Decoder)
    return made


@pytest.fixture(scope="module")
def server(chatty: Path, folder: Path) -> Iterator[Running]:
    load = {"device": "cpu", "adapter_slots": 2, "adapter_rank": 16}
    with serving({"box": str(chatty)}, load=load, adapter_folder=str(folder)) as made:
        yield made


def load(server: Running, name: str, path: str, **more: Any) -> tuple[int, Any]:
    body = {"lora_name": name, "lora_path": path, **more}
    return server.ask("POST", LOAD, body)[:2]


def unload(server: Running, name: str) -> tuple[int, Any]:
    return server.ask("POST", UNLOAD, {"lora_name": name})[:2]


def text(server: Running, model: str, prompt: str = "def size(self):") -> str:
    body = {"model": model, "prompt": prompt, "max_tokens": 12, "temperature": 1, "seed": 4}
    status, made, _ = server.ask("POST", "/v1/completions", body)
    assert status == 200, made
    return made["choices"][0]["text"]


def wanted(own: Decoder, name: str, prompt: str = "def size(self):") -> str:
    given: Any = {"max_new_tokens": 12, "temperature": 1.0, "seed": 4, "adapter": name}
    return own.generate(prompt, **given).text  # type: ignore[union-attr]


def names(server: Running) -> dict[str, str | None]:
    data = server.ask("GET", "/v1/models")[1]["data"]
    return {one["id"]: one.get("parent") for one in data}


def test_they_come_and_go(server: Running, own: Decoder) -> None:
    plain = text(server, "box")
    assert plain == wanted(own, "")
    assert load(server, "a", "shy") == (200, "Success: LoRA adapter 'a' added successfully.")
    assert load(server, "b", "loud")[0] == 200
    assert names(server) == {"box": None, "a": "box", "b": "box"}
    assert text(server, "a") == wanted(own, "shy") != plain
    assert text(server, "b") == wanted(own, "loud") != plain
    prints = {m: server.ask("GET", f"/v1/models/{m}")[1]["fingerprint"] for m in ("box", "a", "b")}
    assert len(set(prints.values())) == 3
    status, said = load(server, "c", "third")
    assert status == 409 and "all 2 slots" in said["error"]["message"]
    assert unload(server, "a") == (200, "Success: LoRA adapter 'a' removed successfully.")
    status, said, _ = server.ask("POST", "/v1/completions", {"model": "a", "prompt": "x"})
    assert status == 404 and "unknown model 'a'" in said["error"]["message"]
    # The name and the slot serve another adapter, and nothing cached is of the first.
    assert load(server, "a", "third")[0] == 200
    assert text(server, "a") == wanted(own, "third")
    assert text(server, "b") == wanted(own, "loud") and text(server, "box") == plain
    for name in ("a", "b"):
        assert unload(server, name)[0] == 200
    assert names(server) == {"box": None} and text(server, "box") == plain


def test_metrics_name_those_that_are_served(server: Running) -> None:
    """By the name that requests use; the series go with the adapter, also where its last answer
    ends after that."""
    told = lambda: re.findall(r'adapter="([^"]*)"', server.ask("GET", "/metrics")[1])  # noqa: E731
    text(server, "box")
    for _ in range(2):
        assert load(server, "a", "shy")[0] == load(server, "b", "loud")[0] == 200
        text(server, "a")
        assert {*told()} == {"", "a"}
        assert unload(server, "b")[0] == 200
        body = {"model": "a", "prompt": "x", "max_tokens": 300, "stream": True, "ignore_eos": True}
        with socket.create_connection((server.host, server.port), timeout=240) as s:
            data = json.dumps(body).encode()
            s.sendall(POST % len(data) + data)
            until(lambda: not all(m.idle for m in server.shelf.decoders()))
            assert unload(server, "a")[0] == 200
        until(lambda: server.shelf.decoders()[0].model.adapters == ())
        until(lambda: all(m.idle for m in server.shelf.decoders()))
        text(server, "box")
        assert {*told()} == {""} and not server.shelf.metrics.adapters


def test_a_running_answer_keeps_its_adapter(server: Running, own: Decoder) -> None:
    assert load(server, "a", "shy")[0] == 200
    prompt, made = "class Long:", []
    body = {"model": "a", "prompt": prompt, "max_tokens": 300, "temperature": 0, "ignore_eos": True}

    def ask() -> None:
        made.append(server.ask("POST", "/v1/completions", body)[1]["choices"][0]["text"])

    thread = threading.Thread(target=ask)
    thread.start()
    until(lambda: not all(m.idle for m in server.shelf.decoders()))
    assert unload(server, "a")[0] == 200
    assert load(server, "b", "loud")[0] == 200
    assert load(server, "c", "third")[0] in (200, 409)  # the first slot may not be free yet
    assert text(server, "b") == wanted(own, "loud")
    thread.join(240)
    given: Any = {"max_new_tokens": 300, "adapter": "shy"}
    alone: Any = own.generate(prompt, **given)
    assert alone.text and made[0].startswith(alone.text)  # the server's goes on after its end
    for name in ("b", "c"):
        unload(server, name)
    until(lambda: server.shelf.decoders()[0].model.adapters == ())


@pytest.mark.parametrize(("body", "status", "said"), [
    ({"lora_name": "a", "lora_path": "nowhere"}, 404, "no adapter 'nowhere'"),
    ({"lora_name": "a", "lora_path": "../"}, 404, "no adapter"),
    ({"lora_name": "a", "lora_path": "."}, 404, "no adapter"),
    ({"lora_name": "a", "lora_path": "/etc"}, 404, "no adapter '/etc'"),
    ({"lora_name": "a", "lora_path": "x\x00y"}, 404, "no adapter"),
    ({"lora_name": "a", "lora_path": "x" * 5000}, 404, "no adapter"),
    ({"lora_name": "a", "lora_path": "link"}, 404, "no adapter 'link'"),
    ({"lora_name": "a", "lora_path": "empty"}, 400, "adapter_config.json"),
    ({"lora_name": "a", "lora_path": "large"}, 409, "rank 17 in 0.q; there is room for 16"),
    ({"lora_name": "a", "lora_path": "broken"}, 400, "NaN"),
    ({"lora_name": "", "lora_path": "shy"}, 400, "printable"),
    ({"lora_name": "a\nb", "lora_path": "shy"}, 400, "printable"),
    ({"lora_name": "x" * 300, "lora_path": "shy"}, 400, "printable"),
    ({"lora_name": "box", "lora_path": "shy"}, 400, "served already"),
    ({"lora_name": "a"}, 400, "lora_path"),
    ({"lora_name": "a", "lora_path": "shy", "base_model_name": "other"}, 400, "adapters are of"),
    ({"lora_name": "a", "lora_path": "shy", "load_inplace": True}, 400, "unload the adapter"),
    ({"lora_name": "a", "lora_path": "shy", "swirl": 1}, 400, "swirl"),
    ({"lora_name": 5, "lora_path": "shy"}, 400, "lora_name"),
])  # fmt: skip
def test_what_is_refused(
    server: Running, folder: Path, body: dict[str, Any], status: int, said: str
) -> None:
    if not (folder / "link").is_symlink():
        os.symlink("/etc", folder / "link")
        made = adapter(folder / "broken", server.shelf.paths["box"], ("q_proj",), 4, 5)  # type: ignore
        path = made / "adapter_model.safetensors"
        data = bytearray(path.read_bytes())
        data[-4:] = np.float32(np.nan).tobytes()
        path.write_bytes(bytes(data))
    got, made, _ = server.ask("POST", LOAD, body)
    assert got == status and said in json.dumps(made)
    assert str(folder) not in json.dumps(made) and "/tmp" not in json.dumps(made)
    assert names(server) == {"box": None}


def test_unknown_ones_are_not_unloaded(server: Running) -> None:
    for name in ("nobody", "box", ""):
        assert unload(server, name)[0] == 404


def test_the_operator_has_to_allow_it(chatty: Path, folder: Path) -> None:
    with serving({"box": str(chatty)}, adapters={"shy": str(folder / "shy")}) as other:
        assert load(other, "a", "shy")[0] == 404
        status, said = unload(other, "shy")
        assert status == 404 and "--adapter-folder" in said["error"]["message"]
        assert names(other) == {"box": None, "shy": "box"}


def test_beside_adapters_of_the_start(chatty: Path, folder: Path, own: Decoder) -> None:
    options = {"device": "cpu", "adapter_slots": 1, "adapter_rank": 4}
    adapters = {"loud": str(folder / "loud")}
    with serving(
        {"box": str(chatty)}, load=options, adapters=adapters, adapter_folder=str(folder)
    ) as other:
        assert load(other, "a", "shy")[0] == 200
        assert text(other, "a") == wanted(own, "shy") and text(other, "loud") == wanted(own, "loud")
        assert unload(other, "loud")[0] == 200
        until(lambda: len(other.shelf.decoders()[0].model.adapters) == 1)
        assert load(other, "b", "shy")[0] == 200
        assert text(other, "b") == wanted(own, "shy") and text(other, "box") == wanted(own, "")
