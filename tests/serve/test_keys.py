"""Several keys: their limits, their counts, their file."""

from __future__ import annotations

import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from serve_kit import Running, serving, until

from weft.cli.main import cli
from weft.cli.server_files import read_keys
from weft.core.errors import UsageError
from weft.serve.keys import ApiKey, ApiKeys, Bucket, KeyLimits
from weft.serve.wire import HttpError

ASKED = {"prompt": "def f(", "max_tokens": 4, "seed": 1, "ignore_eos": True}
TEXT = "/v1/completions"


def by(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


def test_a_bucket_refills() -> None:
    now = [0.0]
    bucket = Bucket(60, 60.0, lambda: now[0])
    assert bucket.wait(60) == 0 and bucket.wait(61) == 1
    bucket.take(90)
    assert bucket.wait(1) == 31
    now[0] = 31.0
    assert bucket.wait(1) == 0
    now[0] = 1e6
    assert bucket.wait(60) == 0 and bucket.wait(61) > 0  # never more than its amount


@pytest.mark.parametrize("limits, uses, wait", [
    (KeyLimits(requests_per_minute=2), 2, 31), (KeyLimits(tokens_per_minute=10), 1, 7),
    (KeyLimits(tokens_per_day=10), 1, 8641), (KeyLimits(), 9, None),
])  # fmt: skip
def test_limits(limits: KeyLimits, uses: int, wait: int | None) -> None:
    now = [0.0]
    key = ApiKey("a", b"x" * 16, limits, lambda: now[0])
    for _ in range(uses):
        key.enter()
        key.leave()
    key.spend(10)
    if wait is None:
        key.enter()
        return
    with pytest.raises(HttpError) as refused:
        key.enter()
    assert refused.value.status == 429 and refused.value.retry == wait
    assert (key.requests, key.refused, key.running) == (uses, 1, 0)
    now[0] = wait
    key.enter()


@pytest.fixture
def keyed(chatty: Path) -> Any:
    keys = [
        ApiKey("ann", b"ann-" * 4, KeyLimits(tokens_per_minute=20)),
        ApiKey("bob", b"bob-" * 4, KeyLimits(running=1)),
        ApiKey("", b"root" * 4),
    ]
    with serving({"box": str(chatty)}, key=ApiKeys(keys)) as running:
        yield running


def test_a_server_counts_by_key(keyed: Running) -> None:
    assert keyed.ask("POST", TEXT, ASKED)[0] == 401
    assert keyed.ask("POST", TEXT, ASKED, by("ann-" * 3))[0] == 401
    first = keyed.ask("POST", TEXT, ASKED, by("ann-" * 4))
    assert first[0] == 200
    used = first[1]["usage"]["total_tokens"]
    answers = [keyed.ask("POST", TEXT, ASKED, by("ann-" * 4)) for _ in range(4)]
    refused = [(made, headers) for status, made, headers in answers if status == 429]
    assert 1 <= len(refused) <= 3
    made, headers = refused[0]
    assert "20 tokens per minute" in made["error"]["message"]
    assert int({k.lower(): v for k, v in headers.items()}["retry-after"]) > 0
    assert keyed.ask("GET", "/v1/models", None, by("ann-" * 4))[0] == 200  # costs nothing
    assert keyed.ask("POST", TEXT, ASKED, by("root" * 4))[0] == 200
    text = keyed.ask("GET", "/metrics", None, by("root" * 4))[1]
    assert 'weft_key_requests_total{key="ann"} 5.0' in text
    assert f'weft_key_refused_total{{key="ann"}} {len(refused)}.0' in text
    assert f'weft_key_tokens_total{{key="ann"}} {used * (5 - len(refused))}.0' in text
    assert 'weft_key_requests_total{key=""}' not in text
    mine = f'weft_new_tokens_total{{adapter="",key="ann",model="box"}} {4 * (5 - len(refused))}.0'
    assert mine in text
    (key, *_) = keyed.server.config.app._keys.keys  # type: ignore[union-attr]
    key.spend(40)
    asked = {"messages": [], "max_tokens": 1}
    status, said, _ = keyed.ask("POST", "/v1/messages", asked, by("ann-" * 4))
    assert status == 429 and said["error"]["type"] == "rate_limit_error"  # in Anthropic's form


def test_running_requests_of_a_key(keyed: Running) -> None:
    body = json.dumps({**ASKED, "max_tokens": 480, "n": 16, "stream": True})
    connection = HTTPConnection(keyed.host, keyed.port, timeout=240)
    connection.request("POST", TEXT, body, by("bob-" * 4))
    assert connection.getresponse().status == 200  # and it is not read
    status, made, _ = keyed.ask("POST", TEXT, ASKED, by("bob-" * 4))
    assert status == 429 and "1 requests of this key are running" in made["error"]["message"]
    connection.close()
    until(lambda: not any(m.users for m in keyed.shelf.loaded()))
    until(lambda: keyed.ask("POST", TEXT, ASKED, by("bob-" * 4))[0] == 200)


def file_of(folder: Path, text: str, mode: int = 0o600) -> str:
    path = folder / "keys.toml"
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def test_a_file_of_keys(tmp_path: Path) -> None:
    path = file_of(tmp_path, '[ann]\nkey = "annannannannannann"\nrunning = 3\n[bob]\nkey = "'
                   'bobbobbobbobbobbob"\n')  # fmt: skip
    ann, bob = read_keys(path)
    assert (ann.name, bob.name) == ("ann", "bob")
    assert ApiKeys([ann, bob]).find([b"nothing", b"bobbobbobbobbobbob"]) is bob


@pytest.mark.parametrize("text, expected", [
    ("", "has no keys"), ("[ann]\nrunning = 3", "'ann' lacks a key"),
    ('ann = "x"', "'ann' is a text; write a table"), ("running = 3", "'running' is an integer"),
    ("[ann]\nkey = 5", "the key of 'ann' is an integer; expected a text in quotes"),
    ("[ann]\nkey = ['x']", "the key of 'ann' is a list"),
    ("[ann]\nkey = 2026-01-01", "the key of 'ann' is a date"),
    ('[ann]\nkey = "short"', "at least 16 ASCII"), ("[ann", "is not TOML"),
    ('[ann]\nkey = "annannannannannann"\nrpm = 3', "'rpm'; known are key, requests_per_minute"),
    ('[ann]\nkey = "annannannannannann"\nrunning = 0', "expected a whole number above 0"),
    ('[ann]\nkey = "annannannannannann"\nrunning = true', "expected a whole number above 0"),
    ('[a]\nkey = "annannannannannann"\n[b]\nkey = "annannannannannann"', "the same key"),
])  # fmt: skip
def test_files_that_are_wrong(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        read_keys(file_of(tmp_path, text))


def test_a_file_that_others_can_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="chmod 600"):
        read_keys(file_of(tmp_path, "", 0o644))


def checked(*words: str) -> tuple[int, str]:
    found = CliRunner().invoke(cli, ["serve", "--check", *words])
    return found.exit_code, found.output


def test_a_configuration_file(chatty: Path, tmp_path: Path) -> None:
    path = tmp_path / "serve.toml"
    path.write_text(f'models = ["mine={chatty}"]\nmax-batch = 4\nallow_host = ["a.example"]\n'
                    'log-json = true\nkeep-alive = "5m"\n')  # fmt: skip
    status, said = checked("--config", str(path))
    assert status == 0 and f"mine: {chatty}" in said and "can be served" in said
    path.write_text("max-batches = 4\n")
    status, said = checked("--config", str(path))
    assert status != 0
    with pytest.raises(UsageError, match="lacks an option 'max-batches'; did you mean max-batch"):
        cli.main(["serve", "--check", "--config", str(path)], standalone_mode=False)
    path.write_text('allow-host = "a.example"\n')
    with pytest.raises(UsageError, match="expected a list"):
        cli.main(["serve", "--check", "--config", str(path)], standalone_mode=False)
    for line, expected in (
        ("max-batch = [1]", "one value"), ("memory = true", "one value: a text or a number"),
        ("[memory]\nmost = 1", "one value: a text or a number"), ("models = [5]", "list of texts"),
        ("allow-host = [['a']]", "list of texts"), ('log-json = "maybe"', "true or false"),
        ("log-json = 1", "true or false"), ("keep-alive = 2026-01-01", "a text or a number"),
    ):  # fmt: skip
        path.write_text(line + "\n")
        with pytest.raises(UsageError, match=f"expected .*{expected}"):
            cli.main(["serve", "--check", "--config", str(path)], standalone_mode=False)


def test_logs_in_json() -> None:
    import logging

    from weft.serve.logs import _JsonLines

    try:
        raise ValueError("x")
    except ValueError:
        import sys

        record = logging.LogRecord(
            "weft.serve", logging.WARNING, "f", 1, 'said "%s"\n', ("é",), sys.exc_info()
        )
    line = _JsonLines().format(record)
    assert "\n" not in line
    made = json.loads(line)
    assert made["message"] == 'said "é"\n' and made["level"] == "warning"
    assert "ValueError: x" in made["exception"] and made["time"].endswith("Z")


def test_a_request_that_no_wait_makes_fit(chatty: Path) -> None:
    """What is larger than its key's whole quota is refused at once, in every protocol, and takes
    nothing of it: clients would wait and ask again for ever."""
    ann, said = by("ann-" * 4), [{"role": "user", "content": "hi"}]
    keys = ApiKeys([ApiKey("ann", b"ann-" * 4, KeyLimits(tokens_per_minute=60))])
    with serving({"box": str(chatty)}, key=keys) as server:
        for path, body in (
            (TEXT, {**ASKED, "max_tokens": 60}), (TEXT, {**ASKED, "max_tokens": 15, "n": 4}),
            (TEXT, {**ASKED, "prompt": ["def f("] * 12}), (TEXT, {"prompt": "x = 1\n" * 40}),
            ("/v1/chat/completions", {"messages": said, "max_completion_tokens": 60}),
            ("/v1/messages", {"messages": said, "max_tokens": 60}),
            ("/v1/responses", {"input": "hi", "max_output_tokens": 60}),
            ("/api/generate", {"model": "box", "prompt": "hi", "options": {"num_predict": 60}}),
        ):  # fmt: skip
            status, made, headers = server.ask("POST", path, body, ann)
            assert status == 400, (path, made)
            assert "60 tokens per minute" in json.dumps(made) and "asks for" in json.dumps(made)
            assert "retry-after" not in {name.lower() for name in headers}
        assert keys.keys[0].tokens == 0 and keys.keys[0].refused == 8
        assert server.ask("POST", TEXT, ASKED, ann)[0] == 200


def test_requests_that_fit_alone_do_not_overdraw_together(chatty: Path, tmp_path: Path) -> None:
    """Each holds what it may take, until it ends and the rest is given back."""
    now, ann = [0.0], by("ann-" * 4)
    key = ApiKey("ann", b"ann-" * 4, KeyLimits(tokens_per_minute=60), lambda: now[0])
    body = {
        **ASKED,
        "max_tokens": 20,
        "ignore_eos": False,
        "stop": [*"aeiou( _:="],
        "prompt": "def f",
    }
    with (
        serving({"box": str(chatty)}, key=ApiKeys([key, ApiKey("", b"root" * 4)])) as server,
        ThreadPoolExecutor(2) as pool,
    ):
        assert server.ask("POST", TEXT, ASKED, by("root" * 4))[0] == 200
        player = server.shelf.decoders()[0].player
        go, check = threading.Event(), player._check
        player._check = lambda: (go.wait(60), check())[1]
        asked = [pool.submit(server.ask, "POST", TEXT, body, ann) for _ in range(2)]
        until(lambda: player.stats.running + player.stats.waiting == 2)
        status, made, headers = server.ask("POST", TEXT, body, ann)
        assert status == 429 and "left of its 60 tokens per minute" in made["error"]["message"]
        assert int({k.lower(): v for k, v in headers.items()}["retry-after"]) > 0
        go.set()
        used = [one.result()[1]["usage"]["total_tokens"] for one in asked]
        until(lambda: key.running == 0)
        assert key.tokens == sum(used) and key._tokens[0][1].left == 60 - key.tokens > 20
        assert server.ask("POST", TEXT, body, ann)[0] == 200


def test_headers_tell_what_a_key_has_left(chatty: Path) -> None:
    """In OpenAI's names, as whole numbers within the limit, also of refusals and many at once."""
    limits = KeyLimits(requests_per_minute=9, tokens_per_minute=60)
    ann = ApiKey("ann", b"ann-" * 4, limits)
    with serving({"box": str(chatty)}, key=ApiKeys([ann, ApiKey("", b"root" * 4)])) as server:
        with ThreadPoolExecutor(12) as pool:
            again = [("POST", TEXT, ASKED, by("ann-" * 4))] * 12
            asked = [pool.submit(server.ask, *each) for each in again]
            answers = [each.result() for each in asked]
        assert {status for status, _, _ in answers} == {200, 429}
        for status, _, headers in answers:
            told = {k.lower()[12:]: v for k, v in headers.items() if "x-ratelimit" in k.lower()}
            assert told["limit-requests"] == "9" and told["limit-tokens"] == "60"
            assert 0 <= int(told["remaining-requests"]) <= 9
            assert 0 <= int(told["remaining-tokens"]) <= 60
            assert re.fullmatch(r"\d+s", told["reset-requests"])
            assert re.fullmatch(r"\d+s", told["reset-tokens"])
            left = {int(told[f"remaining-{unit}"]) for unit in ("requests", "tokens")}
            assert status == 200 or 0 in left or int(told["remaining-tokens"]) < 8
        free = server.ask("POST", TEXT, ASKED, by("root" * 4))[2]
        assert not any("ratelimit" in name.lower() for name in free)
