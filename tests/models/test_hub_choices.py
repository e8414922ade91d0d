"""Which files of a model on the Hub are fetched, of which revision, and what is refused."""

# ruff: noqa: F811 (a fixture of another file)

from __future__ import annotations

import json

import pytest
from hub_kit import MODEL, OTHERS, TINY, hub, pull, refused  # noqa: F401
from hub_server import Hub
from zoo_kit import here

from weft.cli.main import invoke
from weft.core.errors import ModelError, WeftError
from weft.hub import fetch
from weft.hub.names import Name
from weft.hub.resolve import resolve
from weft.importers.safetensors import INDEX


def parts(stem: str, count: int, have: int | None = None) -> dict[str, bytes]:
    return {f"{stem}-{i + 1:05d}-of-{count:05d}.gguf": b"g" for i in range(have or count)}


CHOICES = [
    ("", {"a-Q8_0.gguf": b"g"}, ["a-Q8_0.gguf"]),
    ("", MODEL | {"a.gguf": b"g"}, ["config.json", "model.safetensors"]),
    ("a.gguf", MODEL | {"a.gguf": b"g"}, ["a.gguf"]),
    ("q4_k", {"a-Q4_K.gguf": b"", "a-Q4_K_M.gguf": b"", "a-Q4_K_S.gguf": b""}, ["a-Q4_K.gguf"]),
    ("Q4_0", {"a.IQ4_0.gguf": b"", "x_Q4_0.gguf": b"", "mmproj-Q4_0.gguf": b""}, ["x_Q4_0.gguf"]),
    ("mmproj-Q4_0.gguf", {"a.gguf": b"", "mmproj-Q4_0.gguf": b""}, ["mmproj-Q4_0.gguf"]),
    ("Q8_0", parts("Q8_0/a", 3) | {"b-Q4_0.gguf": b""}, list(parts("Q8_0/a", 3))),
    ("a-00002-of-00002.gguf", parts("a", 2), list(parts("a", 2))),
    ("", {"adapter_config.json": b"", "adapter_model.safetensors": b""},
     ["adapter_config.json", "adapter_model.safetensors"]),
    ("", MODEL | {"modules.json": b"", "1_Pooling/config.json": b"", "onnx/config.json": b""},
     ["1_Pooling/config.json", "config.json", "modules.json", "model.safetensors"]),
    ("", MODEL | {"config_sentence_transformers.json": b"", "sentence_xlm-roberta_config.json": b"",
                  "sentence_bert_config.json": b"", "x/sentence_bert_config.json": b""},
     ["config.json", "config_sentence_transformers.json", "sentence_bert_config.json",
      "sentence_xlm-roberta_config.json", "model.safetensors"]),
]  # fmt: skip
REFUSED = [
    ("", {"a-Q8_0.gguf": b"", "a-Q4_0.gguf": b""}, "2 GGUF models: a-Q4_0.gguf, a-Q8_0.gguf"),
    ("Q4_0", {"a-Q4_0.gguf": b"", "b-Q4_0.gguf": b""}, "2 files of Q4_0: a-Q4_0.gguf, b-Q4_0.gguf"),
    ("Q5_0", {"a-Q4_0.gguf": b""}, "no Q5_0; it holds a-Q4_0.gguf"),
    ("b.gguf", {"a.gguf": b""}, "no b.gguf; it holds a.gguf"),
    ("Q8_0", parts("a-Q8_0", 3, 2), "of 00003 parts of a-Q8_0-00001-of-00003.gguf 2 are there"),
    ("", OTHERS, "pytorch_model.bin (pickles"),
    ("", {"x.onnx": b""}, "nothing that weft reads: x.onnx"),
    ("", {}, "it is empty"),
    ("../../etc/x.gguf", {"../../etc/x.gguf": b""}, "holds no"),
]  # fmt: skip


def test_what_is_chosen(hub: Hub) -> None:
    for part, files, wanted in CHOICES:
        found = fetch._chosen(listing(hub, part, files), fetch.Bar())
        assert found == wanted, (part, found)
    for part, files, said in REFUSED:
        with pytest.raises(ModelError) as caught:
            fetch._chosen(listing(hub, part, files), fetch.Bar())
        assert said in str(caught.value) and len(str(caught.value).splitlines()) <= 2


def listing(hub: Hub, part: str, files: dict[str, bytes]) -> fetch.Listing:
    commit = hub.add("loom/chosen", files)
    known = {name: fetch.Remote(len(data), "") for name, data in files.items()}
    return fetch.Listing(Name("loom/chosen", "main", part), commit, known)


def test_shards_are_those_of_the_index(hub: Hub) -> None:
    index = json.dumps({"weight_map": {"a": "s-1.safetensors", "b": "s-2.safetensors"}}).encode()
    files = {"config.json": MODEL["config.json"], INDEX: index, "other.safetensors": b"o"}
    hub.add("loom/a", files | {"s-1.safetensors": b"1", "s-2.safetensors": b"2"})
    resolve("loom/a")
    assert hub.sent()[-2:] == ["s-1.safetensors", "s-2.safetensors"]
    assert "other.safetensors" not in hub.sent()
    hub.add("loom/b", files | {"s-1.safetensors": b"1"})
    assert "s-2.safetensors is missing" in refused("loom/b", ModelError)
    hub.add("loom/c", files | {INDEX: b'{"weight_map": {"a": "../x.safetensors"}}'})
    with pytest.raises(WeftError, match="plain name"):
        resolve("loom/c")


def test_a_model_that_weft_cannot_read_is_refused_before_its_weights(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weft.models.zoo.ask._asked", here)
    config = json.dumps({"model_type": "no_such", "architectures": ["None"]}).encode()
    hub.add("loom/a", MODEL | {"config.json": config})
    assert "architecture no_such is not supported" in refused("loom/a", ModelError)
    packed = json.dumps(TINY | {"quantization_config": {"quant_method": "hqq"}}).encode()
    hub.add("loom/b", MODEL | {"config.json": packed})
    assert "hqq" in refused("loom/b", ModelError)
    assert hub.sent() == ["config.json"] * 2


def test_revisions(hub: Hub) -> None:
    first = hub.add("loom/a", MODEL, ref="v1")
    second = hub.add("loom/a", MODEL | {"tokenizer.json": b"{}"})
    assert resolve("loom/a@v1").name == first and resolve("loom/a").name == second
    assert resolve(f"loom/a@{first}").name == first
    assert "no revision v2" in refused("loom/a@v2")
    third = hub.add("loom/a", MODEL | {"tokenizer.json": b"[]"})
    assert resolve("loom/a").name == second  # until it is pulled
    assert invoke(["pull", "loom/a"]) == 0 and resolve("loom/a").name == third
    assert hub.sent().count("model.safetensors") == 1  # the same in all
