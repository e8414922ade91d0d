"""Several adapters behind one server: whoever asks beside, each answer is its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from adapter_kit import adapter
from serve_kit import Running, serving

import weft
from weft.cli.main import invoke
from weft.models.run.model import Decoder

PROMPT = "def fibonacci(n):"
NAMES = ("box", "shy", "loud")


@pytest.fixture(scope="module")
def folders(chatty: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("adapters")
    return {
        "shy": adapter(place / "one", chatty, ("q_proj", "v_proj"), 4, 1),
        "loud": adapter(place / "two", chatty, ("o_proj", "up_proj", "down_proj"), 8, 2),
    }


@pytest.fixture(scope="module")
def adapted(chatty: Path, folders: dict[str, Path]) -> Iterator[Running]:
    given = {name: str(path) for name, path in folders.items()}
    with serving({"box": str(chatty)}, adapters=given) as running:
        yield running


@pytest.fixture(scope="module")
def here(chatty: Path, folders: dict[str, Path]) -> Decoder:
    """The model and its adapters by themselves."""
    model = weft.load(chatty, device="cpu", adapters=folders)
    assert isinstance(model, Decoder)
    return model


def test_all_at_once(adapted: Running, here: Decoder) -> None:
    """Two adapters and the model, drawn and greedy, beside one another."""
    asked = [
        {"model": name, "prompt": PROMPT[: 9 + i], "max_tokens": 12, "temperature": t, "seed": i}
        for i in range(3)
        for name in NAMES
        for t in (0, 1.0)
    ]
    got: dict[int, Any] = {}

    def ask(number: int, body: Any) -> None:
        got[number] = adapted.ask("POST", "/v1/completions", body)

    threads = [threading.Thread(target=ask, args=pair) for pair in enumerate(asked)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    texts = set()
    for number, body in enumerate(asked):
        status, answer, _ = got[number]
        assert status == 200 and answer["model"] == body["model"]
        name = "" if body["model"] == "box" else body["model"]
        want = here.generate(
            body["prompt"], 12, adapter=name, temperature=body["temperature"], seed=body["seed"]
        )
        assert answer["choices"][0]["text"] == want.text
        texts.add((body["prompt"], body["temperature"], want.text))
    assert len(texts) == len(asked)  # no two models say the same


def test_without_adapters_the_model_says_the_same(adapted: Running, server: Running) -> None:
    body = {"model": "box", "prompt": PROMPT, "max_tokens": 9, "temperature": 0, "logprobs": 3}
    one, other = (s.ask("POST", "/v1/completions", body)[1] for s in (adapted, server))
    assert one["choices"] == other["choices"]


def test_they_are_listed(adapted: Running) -> None:
    told = {m["id"]: m for m in adapted.ask("GET", "/v1/models")[1]["data"]}
    assert list(told) == list(NAMES)
    assert [told[name].get("parent") for name in NAMES] == [None, "box", "box"]
    assert len({m["fingerprint"] for m in told.values()}) == 3
    assert adapted.ask("GET", "/v1/models/loud")[1] == told["loud"]
    status, error, _ = adapted.ask("POST", "/v1/completions", {"model": "odd", "prompt": "x"})
    assert status == 404 and "served: box, shy, loud" in error["error"]["message"]


def test_every_protocol_names_them(adapted: Running) -> None:
    said = [{"role": "user", "content": "hello"}]
    body = {"model": "loud", "messages": said, "max_tokens": 8, "temperature": 0}
    chat = adapted.ask("POST", "/v1/chat/completions", body)[1]
    message = adapted.ask("POST", "/v1/messages", body)[1]
    given = {**body, "stream": False, "options": {"temperature": 0, "num_predict": 8}}
    del given["max_tokens"], given["temperature"]
    status, ollama, _ = adapted.ask("POST", "/api/chat", given)
    assert status == 200 and chat["model"] == message["model"] == ollama["model"] == "loud"
    text = chat["choices"][0]["message"]["content"]
    assert message["content"][0]["text"] == ollama["message"]["content"] == text
    plain = adapted.ask("POST", "/v1/chat/completions", {**body, "model": "box"})[1]
    assert plain["choices"][0]["message"]["content"] != text
    assert adapted.ask("POST", "/api/show", {"model": "loud"})[0] == 200


def test_no_cache_is_shared(adapted: Running) -> None:
    """A prefix that the model has read is none that an adapter has."""
    body = {"prompt": [7] * 150, "max_tokens": 1, "cache_salt": "once"}

    def found(name: str) -> int:
        usage = adapted.ask("POST", "/v1/completions", {**body, "model": name})[1]["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    assert [found(name) for name in NAMES] == [0, 0, 0]
    assert all(found(name) >= 128 for name in NAMES)


def test_what_the_command_refuses(
    chatty: Path, folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    serve, shy = ["serve", f"box={chatty}", "--device", "cpu"], f"shy={folders['shy']}"
    cases = [
        (["--adapter", "shy"], 1, "shy does not exist"),
        (["--adapter", shy, "--adapter", shy], 2, "each name once"),
        (["--adapter", f"box={folders['shy']}"], 2, "rename one"),
        (["--adapter", f"x={tmp_path}"], 1, "adapter_config.json"),
        (["--adapter", shy, f"more={chatty}"], 2, "one model"),
    ]
    for arguments, status, said in cases:
        assert invoke([*serve, *arguments]) == status
        err = capsys.readouterr().err
        assert said in err and "Traceback" not in err
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 4, "lora_alpha": 4}')
    (tmp_path / "adapter_model.safetensors").write_bytes(b"\xff" * 64)
    assert invoke([*serve, "--adapter", f"x={tmp_path}"]) == 1
    err = capsys.readouterr().err
    assert "adapter_model.safetensors" in err and "Traceback" not in err
