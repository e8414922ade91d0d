"""Models by their names on a hub, against a stand-in for its HTTP surface."""

# ruff: noqa: F811 (a fixture of another file)

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gguf_zoo import write_gguf
from hub_kit import MODEL, OTHERS, SHARED, TINY, hub, pull, refused  # noqa: F401
from hub_server import Hub

from weft.cli.main import invoke
from weft.core.errors import ModelError, StorageError
from weft.hub.box import box_folder
from weft.hub.names import Name, cache, name_of, named, parse
from weft.hub.resolve import resolve
from weft.models.weights.adapter_base import base_of
from weft.models.weights.adapters import CONFIG, WEIGHTS as ADAPTER
from weft.models.weights.random_weights import random_folder

NEVER = "http://127.0.0.1:9"  # nobody listens


def test_a_name_is_fetched_once_and_runs(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WEFT_CACHE", SHARED)  # which holds the model's kernels
    files = {f.name: f.read_bytes() for f in box_folder().glob("*.*")}
    commit = hub.add("loom/box", files | OTHERS | {"LICENSE": b"words"})
    asked = ["run", "loom/box", "def f(", "--max-new-tokens", "4", "--device", "cpu", "--json"]
    assert invoke(asked) == 0
    answer = json.loads(capsys.readouterr().out)
    assert set(hub.sent()) == set(files) | {"LICENSE", "README.md"} and answer["finish_reason"]
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
