"""Models by their names on a hub, against a stand-in for its HTTP surface."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from gguf_zoo import write_gguf
from hub_server import Hub, serving

from weft.cli.main import invoke
from weft.core.errors import HubError, ModelError, StorageError, WeftError
from weft.hub import fetch
from weft.hub.box import box_folder
from weft.hub.names import Name, cache, name_of, named, parse
from weft.hub.resolve import resolve
from weft.importers.safetensors import INDEX
from weft.models.run.entry import runnable
from weft.models.weights.adapter_base import base_of
from weft.models.weights.adapters import CONFIG, WEIGHTS as ADAPTER
from weft.models.weights.random_weights import random_folder

TINY = {
    "model_type": "llama", "vocab_size": 32, "hidden_size": 32, "intermediate_size": 32,
    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2,
    "max_position_embeddings": 32, "rms_norm_eps": 1e-5, "rope_theta": 10_000.0,
    "tie_word_embeddings": True,
}  # fmt: skip
MODEL = {"config.json": json.dumps(TINY).encode(), "model.safetensors": b"w" * 70_000}
OTHERS = {"README.md": b"#", "pytorch_model.bin": b"p", "model.py": b"import os", "tf.h5": b"h"}
NEVER = "http://127.0.0.1:9"  # nobody listens


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "weft"))
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_TOKEN", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    with serving() as made:
        monkeypatch.setenv("HF_ENDPOINT", made.url)
        yield made


def refused(model: str, kind: type[WeftError] = HubError) -> str:
    """The message of what `resolve` raises: one or two lines."""
    with pytest.raises(kind) as caught:
        resolve(model, check=runnable)
    text = str(caught.value)
    assert type(caught.value) is kind and len(text.splitlines()) <= 2 and "\x1b" not in text
    return text


def test_a_name_is_fetched_once_and_runs(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("WEFT_CACHE")  # which holds the model's kernels
    files = {f.name: f.read_bytes() for f in box_folder().glob("*.*")}
    commit = hub.add("loom/box", files | OTHERS | {"LICENSE": b"words"})
    asked = ["run", "loom/box", "def f(", "--max-new-tokens", "4", "--device", "cpu", "--json"]
    assert invoke(asked) == 0
    answer = json.loads(capsys.readouterr().out)
    assert set(hub.sent()) == set(files) - {"LICENSE"} and answer["finish_reason"]
    assert (cache() / "models--loom--box" / "refs" / "main").read_text() == commit
    hub.seen.clear()
    assert invoke(asked) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["ids"] == answer["ids"] and not hub.seen


def test_what_is_there_is_found_without_a_network(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.add("loom/a", MODEL)
    there = resolve("loom/a")
    monkeypatch.setenv("HF_ENDPOINT", NEVER)
    assert resolve("loom/a") == there and "127.0.0.1:9" not in capsys.readouterr().err
    monkeypatch.setenv("WEFT_CACHE", "off")  # as if another program had fetched it
    assert resolve("loom/a") == there
    assert "cannot be reached" in capsys.readouterr().err
    assert "cannot be reached" in refused("loom/b")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert resolve("loom/a") == there
    assert "HF_HUB_OFFLINE" in refused("loom/b")
    (there / "model.safetensors").unlink()
    assert "HF_HUB_OFFLINE" in refused("loom/a")


def test_a_path_goes_before_a_name(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add("loom/a", MODEL)
    (tmp_path / "loom" / "a").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert resolve("loom/a") == Path("loom/a") and not hub.seen
    monkeypatch.chdir("/")
    assert resolve(Path("loom/a")) == Path("loom/a") and not hub.seen  # a Path is no name


def test_names() -> None:
    assert parse("a/b") == Name("a/b") and parse("a/b@v1.0:Q4_K_M") == Name("a/b", "v1.0", "Q4_K_M")
    assert parse("a/b@refs/pr/1:x/y.gguf") == Name("a/b", "refs/pr/1", "x/y.gguf")
    none = ("a", "a/b/c", "../b", "a/..", "a/b@../x", "/a/b", "a--b/c", "a/b.git", "a/b@", "a/b:",
            "a /b", "a/b\n", "ä/b", "C:\\m\\a", "./m", "a/b@x//y", "-a/b")  # fmt: skip
    assert [text for text in none if parse(text)] == []
    assert all(str(parse(t)) == t for t in ("a/b", "a/b@v1", "a/b:Q8_0", "a/b@v1:f.gguf"))
    assert name_of(Name("a/b").snapshot("0" * 40) / "x" / "y.gguf") == "a/b:x/y.gguf"
    assert name_of(Path("m/llama")) == "llama"


def test_the_cache_is_where_huggingface_hub_has_it() -> None:
    code = (
        "import importlib, json, os, sys; import huggingface_hub.constants as c\n"
        "from weft.hub.names import cache\n"
        "clean = dict(os.environ)\n"
        "for more in json.loads(sys.argv[1]):\n"
        "    os.environ.clear(); os.environ.update(clean | more); importlib.reload(c)\n"
        "    assert str(cache()) == c.HF_HUB_CACHE, (cache(), c.HF_HUB_CACHE)"
    )
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "XDG_", "HUGGING"))}
    more = [{}, {"XDG_CACHE_HOME": "/x"}, {"HF_HOME": "~/h"}, {"HF_HUB_CACHE": "/c/$USER"},
            {"HUGGINGFACE_HUB_CACHE": "/old"}]  # fmt: skip
    subprocess.run([sys.executable, "-c", code, json.dumps(more)], env=clean, check=True)


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


def test_a_model_that_weft_cannot_read_is_refused_before_its_weights(hub: Hub) -> None:
    config = json.dumps({"model_type": "mamba", "architectures": ["Mamba"]}).encode()
    hub.add("loom/a", MODEL | {"config.json": config})
    assert "mamba / Mamba is not supported" in refused("loom/a", ModelError)
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


def test_a_cut_goes_on_where_it_was(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: None)
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 1 << 12)  # 10 MB
    hub.add("loom/a", MODEL)
    hub.cut["model.safetensors"] = [20_000, 30_000]
    there = resolve("loom/a")
    assert (there / "model.safetensors").read_bytes() == MODEL["model.safetensors"]
    assert hub.sent("SEND", "RESUME").count("model.safetensors") == 3
    assert hub.sent("RESUME") == ["model.safetensors"] * 2


@pytest.mark.parametrize("file", ["model.safetensors", "config.json"])
def test_other_bytes_than_the_hub_lists_are_refused(hub: Hub, file: str) -> None:
    hub.add("loom/a", MODEL)
    whole = MODEL[file]
    for sent in (b"x" + whole[1:], whole[:-1], whole + b"x" * 100_000):
        hub.sends[file] = sent
        said = refused("loom/a")
        assert "its digest is not" in said if len(sent) == len(whole) else "bytes" in said
        snapshots = list(cache().glob("models--loom--a/snapshots/*/" + file))
        assert not snapshots and not list(cache().glob("models--loom--a/blobs/*.incomplete"))
    hub.sends.clear()
    assert (resolve("loom/a") / file).read_bytes() == whole


REFUSALS = [
    ((401, "GatedRepo"), "is gated: accept its terms"),
    ((403, "GatedRepo"), "not open to you"),
    ((403, ""), "not open to you"),
    ((401, "RepoNotFound"), "no such model, or a private one"),
    ((404, "RepoNotFound"), "no such model, or a private one"),
    ((429, ""), "takes no more requests"),
    ((500, ""), "answered 500; try again later"),
]


def test_refusals(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "is no path here" in refused("loom/none")
    hub.add("loom/a", MODEL)
    for refusal, said in REFUSALS:
        hub.repos["loom/a"].refuses = refusal
        assert said in refused("loom/a")
    hub.repos["loom/a"].open_list = True
    for refusal, said in REFUSALS[:3]:
        hub.repos["loom/a"].refuses = refusal
        assert said in refused("loom/a")
    hub.repos["loom/a"].refuses, hub.repos["loom/a"].token = (401, "GatedRepo"), "hf_mine"
    monkeypatch.setenv("HF_TOKEN", "hf_mine")
    assert resolve("loom/a").is_dir()


LIES: list[tuple[dict[str, Any], str]] = [
    ({"size": -1, "lfs": None}, "of '-1' bytes"),
    ({"lfs": {"size": 1 << 70, "sha256": "0" * 64, "pointerSize": 1}}, "none of a model hub's"),
    ({"lfs": {"size": "many", "sha256": "", "pointerSize": 1}}, "of 'many' bytes"),
    ({"lfs": {"sha256": "0" * 64}}, "none of a model hub's"),
    ({"rfilename": 7}, "none of a model hub's"),
]


def test_listings_that_lie(hub: Hub) -> None:
    hub.add("loom/a", MODEL)
    for lie, said in LIES:
        hub.repos["loom/a"].listed = {"model.safetensors": lie}
        assert said in refused("loom/a")
    hub.repos["loom/a"].listed = {
        "model.safetensors": {"lfs": {"size": 1 << 59, "sha256": "0" * 64, "pointerSize": 1}}
    }
    assert "free some space" in refused("loom/a", StorageError)
    hub.repos["loom/a"].listed = {"config.json": {"size": 1 << 40}}
    assert "at most" in refused("loom/a")
    assert "model.safetensors" not in hub.sent()


def test_a_listing_of_hostile_names(hub: Hub, tmp_path: Path) -> None:
    evil = ["../x.gguf", "/tmp/x.gguf", "a/../../x.gguf", "a\\x.gguf", "c:x.gguf",
            ".git/x.gguf", "n\0l.gguf", "\x1b[2Jx.gguf", "n\nl.gguf", "a//x.gguf", "a /x.gguf",
            "x" * 300 + ".gguf"]  # fmt: skip
    hub.add("loom/a", dict.fromkeys(evil, b"g"))
    assert "nothing that weft reads" in refused("loom/a", ModelError)
    many = {f"{i}-Q4_0.gguf": b"" for i in range(5_000)}
    hub.add("loom/b", many)
    start = time.process_time()
    assert "and 4988 more" in refused("loom/b", ModelError)
    assert time.process_time() - start < 2
    assert not hub.sent()


@pytest.mark.parametrize("file", ["model.safetensors", "config.json"])
def test_an_etag_that_is_a_path(hub: Hub, tmp_path: Path, file: str) -> None:
    hub.add("loom/a", MODEL)
    outside = tmp_path / "outside"
    etags = ("../../../../outside", str(outside), "..", "a/b", "a\\b", "x" * 300, "\x1b[2Ja", "")
    for etag in etags:
        hub.etags[file] = etag
        said = refused("loom/a")
        assert "as the" in said and "of a file" in said, etag
    assert not list(tmp_path.glob("outside*")) and file not in hub.sent()
    hub.etags.clear()
    assert resolve("loom/a").is_dir()


def test_a_full_disk(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.file_download as download

    def full(url: str, temp_file: Any, **_: Any) -> None:
        temp_file.write(b"w" * 1000)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    hub.add("loom/a", MODEL)
    with monkeypatch.context() as patch:
        patch.setattr(download, "http_get", full)
        assert "the disk is full: free some space" in refused("loom/a", StorageError)
    assert not list(cache().rglob("*.incomplete"))
    assert resolve("loom/a").is_dir()


def pull(hub: Hub, *args: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", "from weft.cli.main import main; main()", "pull", *args]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_two_at_once_and_one_that_is_killed(hub: Hub) -> None:
    hub.add("loom/a", MODEL)
    hub.slow = 0.1
    killed = pull(hub, "loom/a")
    until(lambda: "SEND model.safetensors" in hub.seen)
    killed.kill()
    killed.communicate()
    hub.slow = 0.02
    both = [pull(hub, "loom/a") for _ in range(2)]
    out = [process.communicate(timeout=240) for process in both]
    assert [process.returncode for process in both] == [0, 0], out
    there = Path(out[0][0].strip())
    assert out[1][0] == out[0][0] and not any("Traceback" in err for _, err in out)
    assert (there / "model.safetensors").read_bytes() == MODEL["model.safetensors"]
    assert hub.sent().count("config.json") == 1  # whole before the kill


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_leftovers_of_the_killed_go_in_time(hub: Hub) -> None:
    hub.add("loom/a", MODEL)
    blobs = cache() / "models--loom--a" / "blobs"
    blobs.mkdir(parents=True)
    for age, name in ((7200, "old.incomplete"), (0, "new.incomplete")):
        (blobs / name).write_bytes(b"x")
        os.utime(blobs / name, (time.time() - age,) * 2)
    resolve("loom/a")
    assert [p.name for p in blobs.glob("*.incomplete")] == ["new.incomplete"]


def test_a_whole_model_in_a_cache_that_cannot_be_written_to_loads(hub: Hub) -> None:
    commit = hub.add("loom/a", MODEL)
    resolve(f"loom/a@{commit}")
    refs = cache() / "models--loom--a" / "refs"
    assert not refs.exists()  # a commit is its own name
    refs.write_text("in the way")
    assert resolve("loom/a").name == commit


def test_list_shows_what_loads(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = write_gguf(random_folder(tmp_path / "tiny", TINY), tmp_path / "a-F32.gguf")
    gguf = {"a-F32.gguf": made.read_bytes(), "b-F32.gguf": b"no GGUF"}
    hub.add("loom/text", MODEL | gguf, ref="v1")
    assert invoke(["list"]) == 0 and "weft pull ORG/NAME" in capsys.readouterr().err
    for name in ("loom/text@v1", "loom/text@v1:a-F32.gguf", "loom/text@v1:b-F32.gguf"):
        resolve(name)
    capsys.readouterr()
    assert invoke(["list"]) == 0
    assert capsys.readouterr().out.split("\n")[0].split() == ["name", "revision", "size", "kind"]
    assert invoke(["list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["models"]
    assert [(m["name"], m["revision"], m["kind"]) for m in found] == [
        ("loom/text@v1", "v1", "llama"), ("loom/text@v1:a-F32.gguf", "v1", "llama, GGUF"),
    ]  # fmt: skip
    for m in found:
        assert str(resolve(m["name"])) == m["path"]
    assert found[1]["bytes"] == made.stat().st_size


def test_a_terminal_is_asked_first(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import io

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    hub.add("loom/a", MODEL)
    monkeypatch.setattr(sys, "stderr", shown := Terminal())
    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    assert invoke(["pull", "loom/a"]) == 1 and "was not downloaded" in shown.getvalue()
    assert "loom/a: 1 file, 68.4 KiB" in shown.getvalue() and hub.sent() == ["config.json"]
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    assert invoke(["pull", "loom/a"]) == 0
    hub.add("loom/b", MODEL)
    monkeypatch.setattr(sys, "stdin", Terminal(""))
    assert invoke(["pull", "loom/b", "--yes"]) == 0


def test_an_adapter_finds_its_model_in_the_cache_and_fetches_none(hub: Hub, tmp_path: Path) -> None:
    said = {"base_model_name_or_path": "loom/a"}
    hub.add("loom/a", MODEL)
    hub.add("loom/tuned", {CONFIG: json.dumps(said).encode(), ADAPTER: b"w"})
    folder = resolve("loom/tuned")
    with pytest.raises(ModelError, match="fetch that: weft pull loom/a"):
        base_of(folder)
    assert "model.safetensors" not in hub.sent()
    there = resolve("loom/a")
    assert base_of(folder) == there
    assert named(str(base_of(folder))) == "loom/a" and named("my/base") == "my/base"


def test_training_starts_from_a_name(hub: Hub) -> None:
    from weft.cli.train import _with_paths
    from weft.training.settings import settings_from

    hub.add("loom/a", MODEL)
    given = {"model": {"from": "loom/a"}, "data": {"paths": ["x"]}}
    assert _with_paths(settings_from(given, "x.toml"), False).model.base == str(resolve("loom/a"))


def test_wrong_usage(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    for args in (["pull", "llama"], ["pull", "a/b@v1", "--revision", "v2"],
                 ["pull", "a/b", "--revision", "../x"], ["run", "a/b:c.gguf"]):  # fmt: skip
        assert invoke(args) == 2
    assert not hub.seen


def test_what_is_cached_needs_no_huggingface_hub(hub: Hub) -> None:
    hub.add("loom/a", MODEL)
    resolve("loom/a")
    code = (
        "import sys; import weft.cli.main; from weft.hub.resolve import resolve\n"
        "assert resolve('loom/a').is_dir() and 'huggingface_hub' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
