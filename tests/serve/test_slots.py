"""Conversations kept on a disk: llama-server's slots, saved and restored."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from serve_kit import Running, serving

from weft.serve.keys import ApiKey, ApiKeys

LONG = "def f(x):\n" * 30
ASKED = {"prompt": LONG, "n_predict": 40, "seed": 3, "temperature": 1, "n_probs": 2}
ANN, BOB = ({"x-api-key": c * 16} for c in "ab")


def at(server: Running, action: str, name: str, slot: int = 0, key: Any = ANN) -> tuple[int, Any]:
    return server.ask("POST", f"/slots/{slot}?action={action}", {"filename": name}, key)[:2]


def complete(server: Running, key: Any = ANN, **more: Any) -> Any:
    status, answer, _ = server.ask("POST", "/completion", {**ASKED, **more}, key)
    assert status == 200
    return answer


def cached(server: Running, key: Any = ANN) -> int:
    asked = {"prompt": LONG, "max_tokens": 1, "id_slot": 7}
    found = server.ask("POST", "/v1/completions", asked, key)[1]["usage"]
    return int(found["prompt_tokens_details"]["cached_tokens"])


def keyed(chatty: Path, folder: Path, **more: Any) -> Any:
    keys = ApiKeys([ApiKey("ann", b"a" * 16), ApiKey("bob", b"b" * 16)])
    return serving({"box": str(chatty)}, key=keys, sessions=str(folder), **more)


@pytest.fixture
def kept(chatty: Path, tmp_path: Path) -> Iterator[Running]:
    with keyed(chatty, tmp_path / "slots") as made:
        yield made


def test_a_conversation_survives_a_restart_with_its_bits(chatty: Path, tmp_path: Path) -> None:
    with keyed(chatty, tmp_path / "slots") as first:
        complete(first, id_slot=2)
        status, saved = at(first, "save", "talk.bin", 2)
        assert status == 200 and saved["n_saved"] > 150 and saved["id_slot"] == 2
        expected = complete(first, prompt=LONG + "y = ", seed=9)
    (file,) = (tmp_path / "slots").glob("*/*")
    assert file.stat().st_size == saved["n_written"] and file.stat().st_mode & 0o077 == 0
    with keyed(chatty, tmp_path / "slots") as second:
        assert at(second, "restore", "talk.bin", key=BOB)[0] == 404  # it is ann's
        status, restored = at(second, "restore", "talk.bin", 1)
        assert (status, restored["n_restored"]) == (200, saved["n_saved"])
        second.shelf.decoders()[0].engine.check()
        assert cached(second, BOB) == 0 and cached(second) > 150
        made = complete(second, prompt=LONG + "y = ", seed=9)
        for field in ("content", "completion_probabilities"):
            assert made[field] == expected[field]
        shown = second.ask("GET", "/slots", headers=ANN)[1]
        assert shown[1]["n_tokens"] == saved["n_saved"] and len(shown) == 8
        assert at(second, "restore", "talk.bin", 1)[1]["n_restored"] == saved["n_saved"]  # again
        assert at(second, "erase", "x", 1)[1]["n_erased"] == saved["n_saved"]
        assert second.ask("GET", "/slots", headers=ANN)[1][1]["n_tokens"] == 0


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "a\0b", "x" * 200, "C:x"])
def test_names_that_are_more_than_a_files(kept: Running, name: str) -> None:
    complete(kept)
    for action in ("save", "restore"):
        status, said = at(kept, action, name)
        assert status == 400 and "plain name" in said["error"]["message"]


def test_files_that_are_wrong(kept: Running, tmp_path: Path) -> None:
    complete(kept)
    assert at(kept, "save", "good")[0] == 200
    (file,) = (tmp_path / "slots").glob("*/good.session")
    good = file.read_bytes()
    head = good.index(b"{")
    wrongs = [
        b"",
        good[:-1],
        good + b"x",
        good[:60],
        b"PK" + good,
        good.replace(b'"page":', b'"pagf":'),
    ]
    wrongs += [bytes([*good[:i], good[i] ^ 1, *good[i + 1 :]]) for i in range(0, head + 90, 7)]
    wrongs += [bytes([*good[:-i], good[-i] ^ 1, *good[len(good) - i + 1 :]]) for i in (1, 40, 4000)]
    wrongs.append(good[:15] + (1 << 62).to_bytes(8, "little") + good[23:])
    for wrong in wrongs:
        file.write_bytes(wrong)
        status, said = at(kept, "restore", "good")
        assert status == 400 and "session" in said["error"]["message"], wrong[:80]
    file.unlink()
    file.symlink_to("/etc/passwd")
    assert at(kept, "restore", "good")[0] == at(kept, "restore", "none")[0] == 404
    kept.shelf.decoders()[0].engine.check()
    file.unlink()
    file.write_bytes(good)
    assert at(kept, "restore", "good")[0] == 200


def signed(good: bytes, change: Callable[[dict[str, Any]], Any], planes: bytes | None) -> bytes:
    """A session as anybody could write it: another head, other planes, and the digest of both."""
    at = good.index(b"{")
    end = at + int.from_bytes(good[at - 8 : at], "little")
    head = json.loads(good[at:end])
    change(head)
    made = json.dumps(head).encode()
    data = good[end:-32] if planes is None else planes
    whole = good[: at - 8] + len(made).to_bytes(8, "little") + made + data
    return whole + hashlib.blake2b(whole, digest_size=32).digest()


def test_files_that_were_written_by_hand(kept: Running, tmp_path: Path, alone: Any) -> None:
    """They are whole, and their head fits their planes; only a right one changes anything."""
    complete(kept)
    assert at(kept, "save", "good")[0] == 200
    expected = complete(kept, prompt=LONG + "y = ", seed=9)
    (file,) = (tmp_path / "slots").glob("*/good.session")
    good = file.read_bytes()
    begin = good.index(b"{")
    planes = good[begin + int.from_bytes(good[begin - 8 : begin], "little") : -32]
    wide = np.frombuffer(planes, np.float16).astype(np.float32).tobytes()

    def forms(change: Callable[[list[Any]], Any]) -> Callable[[dict[str, Any]], Any]:
        return lambda head: change(head["planes"])

    def each(**more: Any) -> Callable[[dict[str, Any]], Any]:
        return forms(lambda given: [one.update(more) for one in given])

    vocab = alone.config.vocab
    wrongs: list[tuple[Callable[[dict[str, Any]], Any], bytes | None]] = [
        (each(dtype="float32"), wide), (each(dtype="int16"), None), (each(dtype="O"), None),
        (each(dtype=">f2"), None), (each(dtype="x" * 9), None), (each(dtype="(2,"), None),
        (forms(lambda given: given[0].update(shape=[])), None),
        (forms(lambda given: given[0].update(shape=[-1, -64])), None),
        (forms(lambda given: given[0]["shape"].reverse()), None), (forms(list.reverse), None),
        (forms(lambda given: given[1].update(name=given[0]["name"])), None),
        (forms(lambda given: given.append(given[0])), None), (forms(list.clear), b""),
        (lambda head: head["tokens"].__setitem__(0, vocab), None),
        (lambda head: head["tokens"].__setitem__(0, -1), None),
        (lambda head: head["tokens"].__setitem__(0, True), None),
        (lambda head: head["tokens"].append(5), None), (lambda head: head.update(page=1), None),
        (lambda head: head.update(fingerprint="fp_" + "0" * 16), None),
        (lambda head: head.update(tokens=head["tokens"] * 999), None),
        (lambda head: head.update(more=1), None), (each(shape=[1 << 40]), None),
    ]  # fmt: skip
    if planes[:2] and b"float16" not in good[:4000]:
        raise AssertionError("the cache of this model is of another dtype")
    assert signed(good, lambda head: None, None)[-40:] != good[-40:]  # other spaces in the head
    for change, data in wrongs:
        file.write_bytes(signed(good, change, data))
        status, said = at(kept, "restore", "good")
        assert status == 400 and "session" in said["error"]["message"], (said, file.read_bytes())
    for name in ("folder", "pipe", "shared"):
        path = file.with_name(f"{name}.session")
        if name == "folder":
            path.mkdir()
        elif name == "pipe":
            os.mkfifo(path)
        else:
            path.write_bytes(good)
            path.chmod(0o666)
        status, said = at(kept, "restore", name)
        assert status == 400 and "the session cannot be read" in said["error"]["message"]
        assert str(tmp_path) not in str(said)
    (file.with_name("dangling.session")).symlink_to("nowhere")
    assert at(kept, "restore", "dangling")[0] == 404
    status, said = at(kept, "save", "folder")
    assert status == 507 and "Is a directory" in said["error"]["message"]
    assert at(kept, "save", "dangling")[0] == 200  # the link is replaced, and not followed
    assert not file.with_name("nowhere").exists()
    assert not [p for p in file.parent.iterdir() if not p.name.endswith(".session")]
    kept.shelf.decoders()[0].engine.check()
    file.write_bytes(signed(good, lambda head: None, None))
    assert at(kept, "restore", "good")[0] == 200
    made = complete(kept, prompt=LONG + "y = ", seed=9)
    assert made["content"] == expected["content"]


def test_what_is_asked_wrongly(kept: Running, server: Running, monkeypatch: Any) -> None:
    assert at(kept, "save", "a", 8)[0] == at(kept, "save", "a", 10**9)[0] == 404
    assert at(kept, "delete", "a")[0] == 400
    # llama-server needs no body for it
    assert kept.ask("POST", "/slots/0?action=erase", headers=ANN)[0] == 200
    status, said, _ = kept.ask("POST", "/slots/0?action=save", headers=ANN)
    assert status == 400 and "filename" in str(said)
    assert at(kept, "save", "empty")[1]["n_saved"] == 0  # nothing was said yet
    assert server.ask("GET", "/slots")[0] == 404
    complete(kept)
    monkeypatch.setattr("weft.serve.sessions.MAX_FOLDER", 100)
    assert at(kept, "save", "big")[0] == 507
    monkeypatch.undo()

    def full(*given: Any) -> None:
        raise OSError(28, "")

    monkeypatch.setattr("weft.serve.sessions.np.ascontiguousarray", full)
    status, said = at(kept, "save", "full")
    assert status == 507 and "No space left" in said["error"]["message"]
    monkeypatch.undo()
    assert at(kept, "restore", "full")[0] == 404  # nothing is half written
    assert at(kept, "save", "full")[0] == 200


def test_a_cache_that_is_too_small(chatty: Path, tmp_path: Path, kept: Running) -> None:
    """Pages of a restored conversation take no place from answers that run."""
    complete(kept)
    assert at(kept, "save", "talk")[0] == 200
    with keyed(chatty, tmp_path / "slots", memory=1) as small:
        engine = small.shelf.decoders() or (complete(small, prompt="x") and small.shelf.decoders())
        pages = engine[0].engine._pages
        held = pages.take(pages.idle - 2)
        assert at(small, "restore", "talk")[0] in (400, 503)
        pages.release(held or [])
        assert at(small, "restore", "talk")[0] == 200
