"""Conversations kept on a disk: llama-server's slots, saved and restored."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
