"""Pages of other origins that `--allow-origin` names: what they may send and read, and that nothing
else changes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from serve_kit import Running, serving

from weft.core.errors import UsageError
from weft.serve.origins import origin_of

KEY = b"a key of sixteen or more"
PAGE, NOTES = "https://chat.example.org", "app://notes"
VIEW = "vscode-webview://0abc1def"
ASK = {"Access-Control-Request-Method": "POST"}
BEARER = {"Authorization": f"Bearer {KEY.decode()}"}
SHARED = "access-control-allow-origin"


@pytest.fixture(scope="module")
def open_server(chatty: Path) -> Iterator[Running]:
    with serving({"box": str(chatty)}, KEY, origins=[PAGE, NOTES, VIEW]) as made:
        yield made


@pytest.mark.parametrize("origin", [PAGE, NOTES, VIEW])
def test_an_allowed_page(open_server: Running, origin: str) -> None:
    asked = {
        "Origin": origin,
        **ASK,
        "Access-Control-Request-Headers": "authorization,content-type",
    }
    status, _, headers = open_server.ask("OPTIONS", "/v1/chat/completions", None, asked)
    assert (status, headers[SHARED], headers["vary"]) == (204, origin, "Origin")
    assert headers["access-control-allow-headers"] == "authorization,content-type"
    assert "POST" in headers["access-control-allow-methods"]
    assert "access-control-allow-credentials" not in headers
    body = {"prompt": "def f(", "max_tokens": 2}
    status, made, headers = open_server.ask(
        "POST", "/v1/completions", body, {"Origin": origin, **BEARER}
    )
    assert status == 200 and made["choices"] and headers[SHARED] == origin
    # Pages can read why they are refused.
    for path, more, wanted in (("/v1/models", {}, 401), ("/v1/none", BEARER, 404)):
        status, _, headers = open_server.ask("GET", path, None, {"Origin": origin, **more})
        assert (status, headers[SHARED]) == (wanted, origin)


def test_streams_are_shared(open_server: Running) -> None:
    body = {"prompt": "def f(", "max_tokens": 2, "stream": True}
    status, text, headers = open_server.ask(
        "POST", "/v1/completions", body, {"Origin": NOTES, **BEARER}
    )
    assert status == 200 and "data:" in text and headers[SHARED] == NOTES


@pytest.mark.parametrize("origin", [
    "http://chat.example.org", "https://chat.example.org:8443", "https://chat.example.org.evil.org",
    "https://evil.org", "null", "app://notes2", "app://", "https://chat.example.org/", "*",
])  # fmt: skip
def test_other_pages_are_not(open_server: Running, origin: str) -> None:
    for method, more in (("OPTIONS", ASK), ("GET", BEARER)):
        status, _, headers = open_server.ask(method, "/v1/models", None, {"Origin": origin, **more})
        assert status == 403
        assert not [name for name in headers if name.lower().startswith("access-control")]


def test_a_preflight_opens_nothing(open_server: Running) -> None:
    """Hosts are checked first, the key after; without an origin there is no preflight."""
    asked = {"Origin": PAGE, **ASK, "Host": "evil.example"}
    assert open_server.ask("OPTIONS", "/v1/models", None, asked)[0] == 421
    assert open_server.ask("OPTIONS", "/v1/models", None, ASK)[0] == 401
    assert open_server.ask("OPTIONS", "/v1/models", None, {"Origin": PAGE, **BEARER})[0] == 405
    status, _, headers = open_server.ask("GET", "/v1/models", None, BEARER)
    assert status == 200 and SHARED not in headers


@pytest.mark.parametrize("names", ["x\ty", "a" * 2000, "a,,b", "a\x7f", ""])
def test_odd_lists_of_headers_are_not_repeated(open_server: Running, names: str) -> None:
    asked = {"Origin": PAGE, **ASK, "Access-Control-Request-Headers": names}
    status, _, headers = open_server.ask("OPTIONS", "/v1/models", None, asked)
    assert status in (204, 400) and "access-control-allow-headers" not in headers


def test_a_private_network(open_server: Running) -> None:
    asked = {"Origin": PAGE, **ASK, "Access-Control-Request-Private-Network": "true"}
    _, _, headers = open_server.ask("OPTIONS", "/v1/models", None, asked)
    assert headers["access-control-allow-private-network"] == "true"


@pytest.mark.parametrize(("given", "want"), [
    ("https://Chat.Example.org/", PAGE), ("https://chat.example.org:443", PAGE), (NOTES, NOTES),
    ("http://localhost:5173", "http://localhost:5173"), ("http://[::1]:80", "http://[::1]"),
    ("capacitor://localhost", "capacitor://localhost"), (VIEW, VIEW),
])  # fmt: skip
def test_names_of_origins(given: str, want: str) -> None:
    assert origin_of(given) == want


@pytest.mark.parametrize("given", [
    "*", "null", "", "https://*.example.org", "example.org", "https://", "https://a.org/path",
    "https://a.org?x", "https://user@a.org", "https://a.org,https://b.org", "https://ä.org",
    "https://a.org:123456", "https://a b", "https://a.org\r\nx: y",
])  # fmt: skip
def test_names_that_are_not_taken(given: str) -> None:
    with pytest.raises(UsageError, match="expected one exact origin"):
        origin_of(given)
