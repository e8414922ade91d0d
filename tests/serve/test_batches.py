"""Batch files: OpenAI's client, wrong files, owners, expiry, and a server killed in the middle."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import openai
import pytest
from serve_kit import Running, process, serving, until

from weft.core.errors import FileFormatError, UsageError
from weft.serve.batches import lines, work
from weft.serve.batches.folder import BatchFolder, check_folder
from weft.serve.batches.journal import Journal
from weft.serve.batches.routes import routes
from weft.serve.batches.types import Batch
from weft.serve.keys import ApiKey, ApiKeys, KeyLimits

TEXT = "/v1/completions"


def asked(count: int, **more: Any) -> list[dict[str, Any]]:
    body = {"max_tokens": 4, "seed": 1, "ignore_eos": True, **more}
    return [
        {"custom_id": f"r{i}", "method": "POST", "url": TEXT, "body": {"prompt": f"x{i}", **body}}
        for i in range(count)
    ]


def jsonl(rows: Iterable[Any]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def client_of(server: Any, key: str = "unused") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0)


def sent(client: openai.OpenAI, data: bytes, endpoint: Any = TEXT, window: Any = "24h") -> Any:
    file = client.files.create(file=("in.jsonl", data), purpose="batch")
    return client.batches.create(
        input_file_id=file.id, endpoint=endpoint, completion_window=window, metadata={"a": "b"}
    )


def ended(client: openai.OpenAI, batch: Any) -> Any:
    over = {"completed", "failed", "expired", "cancelled"}
    until(lambda: client.batches.retrieve(batch.id).status in over)
    return client.batches.retrieve(batch.id)


def rows_of(client: openai.OpenAI, file: str | None) -> list[dict[str, Any]]:
    assert file is not None
    return [json.loads(line) for line in client.files.content(file).text.splitlines()]


@pytest.fixture(scope="module")
def batching(chatty: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    with serving({"box": str(chatty)}, batches=tmp_path_factory.mktemp("kept") / "b") as running:
        yield running


def test_a_batch_equals_single_requests(batching: Running) -> None:
    client = client_of(batching)
    bad = {"custom_id": "bad", "method": "POST", "url": TEXT, "body": {"prompt": "x", "nn": 1}}
    made = sent(client, jsonl([*asked(6), bad]))
    assert made.status == "validating" and made.metadata == {"a": "b"} and made.object == "batch"
    batch = ended(client, made)
    assert batch.status == "completed"
    counts = batch.request_counts
    assert (counts.total, counts.completed, counts.failed) == (7, 6, 1)
    found = {row["custom_id"]: row for row in rows_of(client, batch.output_file_id)}
    assert sorted(found) == [f"r{i}" for i in range(6)]
    for line in asked(6):
        row = found[line["custom_id"]]
        alone = batching.ask("POST", TEXT, line["body"])[1]
        assert row["error"] is None and row["response"]["status_code"] == 200
        assert row["response"]["body"]["choices"] == alone["choices"]
    (wrong,) = rows_of(client, batch.error_file_id)
    assert wrong["custom_id"] == "bad" and wrong["response"]["status_code"] == 400
    assert "nn" in wrong["response"]["body"]["error"]["message"]
    kept = client.files.retrieve(str(batch.output_file_id))
    assert kept.purpose == "batch_output" and kept.bytes > 100
    listed = [one.id for one in client.batches.list(limit=1)]
    assert batch.id in listed
    assert client.files.delete(kept.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.content(kept.id)


def test_other_endpoints(batching: Running) -> None:
    client, chat = client_of(batching), "/v1/chat/completions"
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 3}
    batch = sent(client, jsonl([{"custom_id": "a", "method": "POST", "url": chat, "body": body}]),
                 chat)  # fmt: skip
    (row,) = rows_of(client, ended(client, batch).output_file_id)
    assert row["response"]["body"]["object"] == "chat.completion"


WRONG = [
    (b"", "empty_file"), (b"{", "invalid_json_line"), (jsonl([{}]), "invalid_request"),
    (jsonl(asked(1) * 2), "duplicate_custom_id"), (jsonl(asked(1, stream=True)), "invalid_request"),
    (jsonl([{**asked(1)[0], "url": "/v1/embeddings"}]), "mismatched_url"),
    (jsonl([{**asked(1)[0], "method": "GET"}]), "invalid_request"),
    (b"\xff\xfe\n", "invalid_json_line"), (b'{"a":' * 200 + b"\n", "invalid_request"),
]  # fmt: skip


def test_files_that_are_wrong(tmp_path: Path) -> None:
    for data, code in WRONG:
        path = tmp_path / "in"
        path.write_bytes(data)
        assert lines.lines_of(path, TEXT).errors[0].code == code, data[:40]


def test_limits_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "in"
    path.write_bytes(jsonl(asked(3)))
    monkeypatch.setattr(lines, "MAX_REQUESTS", 2)
    assert lines.lines_of(path, TEXT).errors[0].code == "too_many_requests"
    monkeypatch.setattr(lines, "MAX_BODY", 20)
    assert lines.lines_of(path, TEXT).errors[0].code == "line_too_long"


def test_a_batch_of_a_wrong_file_fails(batching: Running) -> None:
    client = client_of(batching)
    batch = ended(client, sent(client, jsonl([*asked(1), *asked(1)])))
    assert batch.status == "failed" and batch.errors is not None and batch.errors.data is not None
    assert batch.errors.data[0].line == 2 and batch.output_file_id is None


@pytest.mark.parametrize("fields, status, said", [
    ({"endpoint": "/v1/nothing"}, 400, "endpoint"), ({"input_file_id": "file-x"}, 404, "file-x"),
    ({"completion_window": "1y"}, 400, "completion_window"), ({"more": 1}, 400, "more"),
])  # fmt: skip
def test_batches_that_are_refused(
    batching: Running, fields: dict[str, Any], status: int, said: str
) -> None:
    file = client_of(batching).files.create(file=("x", b"{}"), purpose="batch").id
    body = {"input_file_id": file, "endpoint": TEXT, "completion_window": "24h", **fields}
    found = batching.ask("POST", "/v1/batches", body, {"Authorization": "Bearer unused"})
    assert found[0] == status and said in found[1]["error"]["message"]


def test_uploads_that_are_refused(batching: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    client = client_of(batching)
    with pytest.raises(openai.BadRequestError, match="purpose is 'vision'"):
        client.files.create(file=("x", b"{}"), purpose="vision")
    assert batching.ask("POST", "/v1/files", {"a": 1})[0] == 400
    big = {"Content-Type": "multipart/form-data; boundary=x", "Content-Length": str(1 << 40)}
    assert batching.ask("POST", "/v1/files", None, big)[0] == 413
    kept = client.files.list().data
    for number, word in ((28, "No space left"), (30, "Read-only")):
        with monkeypatch.context() as patch, pytest.raises(openai.APIStatusError) as refused:
            full = mock.Mock(side_effect=OSError(number, ""))
            patch.setattr("weft.serve.batches.upload.shutil.copyfileobj", full)
            client.files.create(file=("x", b"{}"), purpose="batch")
        assert refused.value.status_code == 507 and word in refused.value.message
    assert client.files.list().data == kept


def test_a_server_without_a_folder(server: Running) -> None:
    status, found, _ = server.ask("GET", "/v1/batches")
    assert status == 404 and "--batch-folder" in found["error"]["message"]


def test_owners_and_limits_of_keys(chatty: Path, tmp_path: Path) -> None:
    ann = ApiKey("ann", b"ann-" * 4, KeyLimits(running=1))
    keys = ApiKeys([ann, ApiKey("bob", b"bob-" * 4)])
    with serving({"box": str(chatty)}, key=keys, batches=tmp_path / "b") as running:
        anns, bobs = client_of(running, "ann-" * 4), client_of(running, "bob-" * 4)
        batch = sent(anns, jsonl(asked(2)))
        for look in (
            lambda: bobs.batches.retrieve(batch.id), lambda: bobs.batches.cancel(batch.id),
            lambda: bobs.files.content(batch.input_file_id), lambda: sent_of(bobs, batch),
        ):  # fmt: skip
            with pytest.raises(openai.NotFoundError):
                look()
        assert list(bobs.files.list()) == [] and list(bobs.batches.list()) == []
        until(lambda: running.ask("GET", f"/v1/batches/{batch.id}", None,
              {"x-api-key": "ann-" * 4})[1]["status"] == "completed")  # fmt: skip
        assert ann.tokens >= 8  # the batch's tokens are its key's
    assert b"ann-" * 4 not in b"".join(
        path.read_bytes() for path in (tmp_path / "b").rglob("*") if path.is_file()
    )


def sent_of(client: openai.OpenAI, batch: Any) -> Any:
    return client.batches.create(
        input_file_id=batch.input_file_id, endpoint=TEXT, completion_window="24h"
    )


def test_cancelling_and_expiring(batching: Running) -> None:
    client = client_of(batching)
    slow = jsonl(asked(60, max_tokens=400))
    batch = sent(client, slow)
    until(lambda: client.batches.retrieve(batch.id).status == "in_progress")
    with pytest.raises(openai.ConflictError):
        client.files.delete(batch.input_file_id)
    assert client.batches.cancel(batch.id).status in ("cancelling", "cancelled")
    late = sent(client, slow, window="1s")
    for one, status in ((batch, "cancelled"), (late, "expired")):
        found = ended(client, one)
        assert found.status == status
        rows = rows_of(client, found.error_file_id)
        rows += rows_of(client, found.output_file_id) if found.output_file_id else []
        assert sorted(row["custom_id"] for row in rows) == sorted(f"r{i}" for i in range(60))
        assert rows[0]["error"]["code"] == f"batch_{status}"


def test_a_killed_server_goes_on(chatty: Path, tmp_path: Path) -> None:
    """No request is lost or answered twice, whenever the server is killed."""
    kept, count = tmp_path / "b", 40
    words = ("serve", f"box={chatty}", "--device", "cpu", "--batch-folder", str(kept),
             "--max-batch", "4")  # fmt: skip
    with process(*words) as first:
        batch = sent(client_of(first), jsonl(asked(count, max_tokens=12)))
        output = kept / "work" / batch.id / "output.jsonl"
        until(lambda: output.exists() and output.read_bytes().count(b"\n") >= 5)
        os.kill(first.popen.pid, signal.SIGKILL)
        first.popen.wait()
    before = output.read_bytes().count(b"\n")
    assert 5 <= before < count
    with output.open("ab") as file:
        file.write(b'{"custom_id": "r39", "resp')  # a line that was being written
    with process(*words) as second:
        client = client_of(second)
        found = ended(client, batch)
        assert found.status == "completed" and found.request_counts.completed == count
        rows = rows_of(client, found.output_file_id)
        assert sorted(row["custom_id"] for row in rows) == sorted(f"r{i}" for i in range(count))
    assert not (kept / "work" / batch.id).exists()


def test_ends_that_were_interrupted(tmp_path: Path) -> None:
    """A server killed while it makes the output files makes them once."""
    with_batch = BatchFolder(tmp_path / "b", lambda: 5.0)
    batch = Batch(id="batch_1", endpoint=TEXT, input_file_id="file-1", completion_window="24h",
                  created_at=1, expires_at=9, owner="", output_seconds=3600)  # fmt: skip
    journal = Journal(with_batch, batch)
    journal.write("a", {"custom_id": "a"}, True)
    journal.write("b", {"custom_id": "b"}, False)
    batch.output_file_id, batch.error_file_id = "file-2", "file-3"
    batch.finalizing_at, batch.status = 4, "finalizing"
    with_batch.save(batch)
    with_batch.finish(batch)
    with_batch.close()
    again = BatchFolder(tmp_path / "b", lambda: 5000.0)
    again.finish(again.batches["batch_1"])
    assert again.content(again.files["file-2"]).read_bytes() == b'{"custom_id":"a"}\n'
    assert again.files["file-3"].expires_at == 3605
    again.sweep()
    assert not again.files
    with pytest.raises(UsageError, match="another process"):
        BatchFolder(tmp_path / "b", lambda: 5.0)
    again.close()


def test_folders_that_are_wrong(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="is a file"):
        check_folder(tmp_path / "file")
    with pytest.raises(UsageError, match="holds 'file'"):
        check_folder(tmp_path)
    (tmp_path / "b" / "batches").mkdir(parents=True)
    (tmp_path / "b" / "batches" / "x.json").write_text("{")
    with pytest.raises(FileFormatError, match=r"x\.json"):
        BatchFolder(tmp_path / "b", lambda: 0.0)


def test_answers_are_as_the_file_says(batching: Running) -> None:
    client = client_of(batching)
    batch = ended(client, sent(client, jsonl(asked(1))))
    by = {"Authorization": "Bearer unused"}
    for path in ("/v1/files", f"/v1/files/{batch.input_file_id}", "/v1/batches",
                 f"/v1/batches/{batch.id}"):  # fmt: skip
        found = batching.ask("GET", path, None, by)[1]
        route = next(r for r in routes() if r.path_regex.fullmatch(path) and "GET" in r.methods)
        msgspec.convert(found, route.answer, strict=True)
        assert "owner" not in json.dumps(found)


def test_a_priority_of_null_is_the_last_place() -> None:
    for given, expected in (("", work.LATER), (', "priority": null', work.LATER),
                            (', "priority": -7', -7)):  # fmt: skip
        made = work._later(f'{{"prompt": "a"{given}}}'.encode())
        assert json.loads(made) == {"prompt": "a", "priority": expected}
