"""Models that requests make of served ones: Ollama's /api/create, /api/copy and /api/delete."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ollama
import pytest
from adapter_kit import adapter
from serve_kit import Running, serving

from weft.core.errors import UsageError
from weft.host.files import naming
from weft.models.run.model import Decoder
from weft.serve import recipes
from weft.serve.ollama.go_template import GoTemplate
from weft.serve.ollama.modelfile import read_modelfile

HELLO = [{"role": "user", "content": "Write a loop."}]
SYSTEM = {"role": "system", "content": "Be short."}
MARIO = {"num_predict": 12, "temperature": 0.9, "top_k": 0, "top_p": 1, "seed": 7, "stop": ["zzz"]}
OPEN: dict[str, Any] = {"num_predict": 12, "temperature": 0}
TALK = [SYSTEM, {"role": "user", "content": "A"}, {"role": "assistant", "content": "B"},
        {"role": "user", "content": "C"}]  # fmt: skip


@pytest.fixture(scope="module")
def made(chatty: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("made")
    with serving({"box": str(chatty)}, model_folder=str(folder)) as running:
        yield running


@pytest.fixture(scope="module")
def client(made: Running) -> ollama.Client:
    return ollama.Client(host=made.url)


def test_a_model_is_made_and_answers(made: Running, client: ollama.Client, alone: Decoder) -> None:
    said = client.create("mario", from_="box", system="Be short.", parameters=MARIO, stream=True)
    assert [part.status for part in said] == ["using box", "writing manifest", "success"]
    ids = alone.chat_ids([SYSTEM, *HELLO])
    expected = alone.generate(ids, max_new_tokens=12, temperature=0.9, seed=7).text
    assert client.chat("mario", HELLO).message.content == expected
    status, answer, _ = made.ask("POST", "/v1/chat/completions",
                                 {"model": "mario", "messages": HELLO})  # fmt: skip
    assert status == 200 and answer["choices"][0]["message"]["content"] == expected
    assert answer["model"] == "mario" and len(made.shelf.loaded()) == 1
    own = client.chat("mario", [{"role": "system", "content": "x"}, *HELLO], options=OPEN)
    base = client.chat("box", [{"role": "system", "content": "x"}, *HELLO], options=OPEN)
    assert own.message.content == base.message.content  # what a request says wins
    client.create("luigi", from_="mario:latest", parameters={"temperature": 0})  # all but this
    assert made.shelf.recipes["luigi"].parameters == {**MARIO, "temperature": 0}
    shown = client.show("luigi")
    assert "temperature" in str(shown.parameters) and {"mario", "luigi"} <= listed(client)
    client.copy("luigi", "me/peach:small")
    client.delete("luigi")
    assert "luigi" not in listed(client)
    assert client.chat("me/peach:small", HELLO).message.content is not None
    assert made.ask("GET", "/v1/models/mario")[1]["parent"] == "box"


def listed(client: ollama.Client) -> set[str | None]:
    return {model.model for model in client.list().models}


def test_turns_and_a_template(client: ollama.Client, alone: Decoder) -> None:
    template = "{{ if .System }}[{{ .System }}]{{ end }}Q: {{ .Prompt }}\nA: {{ .Response }}\n"
    turns: Any = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    client.create("talks", from_="box", template=template, system="S", messages=turns)
    prompt = "[S]Q: hi\nA: ho\nQ: Write a loop.\nA: "
    ids = alone.tokenizer.encode(prompt, special=False)
    expected = alone.generate(ids, max_new_tokens=12, temperature=0.0).text
    assert client.chat("talks", HELLO, options=OPEN).message.content == expected
    assert client.generate("talks", "Write a loop.", options=OPEN).response == expected
    assert client.show("talks").template == template


def test_a_modelfile(made: Running) -> None:
    text = '''# a plumber
FROM box
PARAMETER temperature 0.5
PARAMETER stop "<|x|>"
PARAMETER stop b
system """You are
Mario."""
MESSAGE user Is it "you"?
MESSAGE assistant """It is
me."""
TEMPLATE "{{ .Prompt }}"
LICENSE MIT
'''
    found = read_modelfile(text)
    assert found["parameters"] == {"temperature": 0.5, "stop": ["<|x|>", "b"]}
    assert found["system"] == "You are\nMario." and found["from"] == "box"
    assert [m.content for m in found["messages"]] == ['Is it "you"?', "It is\nme."]
    asked = {"name": "plumber", "modelfile": text, "stream": False}
    assert made.ask("POST", "/api/create", asked)[:2] == (200, {"status": "success"})
    for wrong in ("FROM", "RUN x", 'SYSTEM """x', "MESSAGE tool x"):
        with pytest.raises(UsageError):
            read_modelfile(wrong)


def test_a_model_is_made_with_an_adapter(chatty: Path, tmp_path: Path) -> None:
    given = {"shy": adapter(tmp_path / "shy", chatty, ("q_proj", "v_proj"), 4, 1)}
    asked = {"model": "new", "stream": False}
    with serving({"box": str(chatty)}, adapters=given, model_folder=str(tmp_path)) as running:
        form = "FROM box\nADAPTER {}\nPARAMETER temperature 0\nPARAMETER num_predict 12"
        made = running.ask("POST", "/api/create", {**asked, "modelfile": form.format("shy")})
        assert made[0] == 200, made
        own = ollama.Client(host=running.url).chat("new", HELLO).message.content
        plain = ollama.Client(host=running.url).chat("shy", HELLO, options=OPEN).message.content
        assert own == plain
        for wrong in ("loud", "./shy", "box"):
            status, said, _ = running.ask(
                "POST", "/api/create", {**asked, "modelfile": form.format(wrong)}
            )
            assert status == 400 and "by its name: shy" in said["error"]


@pytest.mark.parametrize(
    "asked, status, named",
    [
        ({"from": "../etc"}, 404, "unknown model"), ({}, 400, "from"),
        ({"from": "box", "files": {"a.gguf": "sha256:1"}}, 400, "files"),
        ({"from": "box", "adapters": {"a": "sha256:1"}}, 400, "--adapter"),
        ({"from": "box", "quantize": "q4_0"}, 400, "quantise"),
        ({"from": "box", "model": "../x"}, 400, "name"),
        ({"from": "box", "model": "a/b/c"}, 400, "name"),
        ({"from": "box", "model": "box"}, 400, "server itself"),
        ({"from": "box", "parameters": {"temprature": 1}}, 400, "temprature"),
        ({"from": "box", "parameters": {"mirostat": 1}}, 400, "mirostat"),
        ({"from": "box", "parameters": {"temperature": 9}}, 400, "temperature"),
        ({"from": "box", "template": "{{ .Tools }}"}, 400, ".Tools"),
        ({"from": "box", "messages": [{"role": "tool", "content": "x"}]}, 400, "messages"),
        ({"from": "box", "system": "x" * (1 << 20)}, 413, "bytes"),
    ],
)  # fmt: skip
def test_refusals_name_what_is_wrong(
    made: Running, asked: dict[str, Any], status: int, named: str
) -> None:
    assert made.shelf.folder is not None
    before = sorted(made.shelf.folder.path.iterdir())
    found, said, _ = made.ask("POST", "/api/create", {"model": "bad", **asked})
    assert found == status and named in said["error"]
    assert sorted(made.shelf.folder.path.iterdir()) == before and "bad" not in made.shelf.paths


def test_deleting_and_a_server_without_a_folder(made: Running, server: Running) -> None:
    assert made.ask("DELETE", "/api/delete", {"model": "box"})[0] == 400
    assert made.ask("DELETE", "/api/delete", {"model": "none"})[0] == 404
    status, said, _ = server.ask("POST", "/api/create", {"model": "a", "from": "box"})
    assert status == 404 and "--model-folder" in said["error"]


def test_they_survive_a_restart(chatty: Path, tmp_path: Path) -> None:
    models = {"box": str(chatty)}
    with serving(models, model_folder=str(tmp_path)) as first:
        for name in ("kept", "a/b:c"):
            assert first.ask("POST", "/api/create", {"model": name, "from": "box"})[0] == 200
    good = next(tmp_path.glob("kept*")).read_bytes()
    gone = good.replace(b"kept", b"gone").replace(b"box", b"xob")
    files = {"odd": b"{", "other": good, "gone": gone, "big": b"x" * (recipes.MAX_BYTES + 1)}
    for name, data in files.items():
        (tmp_path / f"{name}.model.json").write_bytes(data)
    os.symlink("/etc/passwd", tmp_path / "link.model.json")
    with serving(models, model_folder=str(tmp_path)) as again:
        assert set(again.shelf.paths) == {"box", "kept", "a/b:c"}
        change = again.shelf.change
        again.loop.call_soon_threadsafe(change, {"box": str(chatty), "x": "y"}, None, None, 300.0)
        asked = {"model": "kept", "prompt": "x", "options": OPEN, "stream": False}
        assert again.ask("POST", "/api/generate", asked)[0] == 200


def test_a_full_disk_makes_nothing(made: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: Any) -> None:
        with naming(Path("a file")):  # as what writes files does
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(recipes, "write_bytes", full)
    status, said, _ = made.ask("POST", "/api/create", {"model": "full", "from": "box"})
    assert status == 507 and "No space" in json.dumps(said) and "full" not in made.shelf.paths


def test_go_templates() -> None:
    rounds = "{{ if .System }}<s>{{ .System }}{{ end }}<u>{{ .Prompt }}<a>{{ .Response }}</a>"
    assert GoTemplate(rounds).render(TALK, True, {}, {}) == ("<s>Be short.<u>A<a>B</a><u>C<a>")
    each = (
        '{{- range .Messages }}{{ if eq .Role "user" }}[{{ .Content }}]{{ else if and (ne .Role '
        '"system") .Content }}({{ .Content }}){{ else }}{{/* the rest */}}{{ $.System }}'
        "{{ end }}\n{{- end }} >"
    )
    assert GoTemplate(each).render(TALK, True, {}, {}) == "Be short.[A](B)[C] >"
    assert GoTemplate("{{ .Prompt }}").render(TALK[3:], True, {}, {}) == "C"
    wrongs = (
        "{{ .Tools }}", "{{ range $i, $m := .Messages }}{{ end }}", "{{ if .System }}x",
        "{{ end }}", "{{ .Prompt | upper }}", "{{", "{{ .Messages }}", "{{ .Role }}",
        "{{ if }}x{{ end }}", "{{ not }}", "{{ if .System }}" * 40, "x" * 70_000,
    )  # fmt: skip
    for wrong in wrongs:
        with pytest.raises(UsageError, match=r"template has|too many"):
            GoTemplate(wrong)
    with pytest.raises(UsageError, match="tools"):
        GoTemplate(rounds).render(TALK, True, {}, {"tools": [{}]})
