"""Who gets a request: conversations stay, loads are bounded, what differs is kept out."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from weft.core.errors import UsageError
from weft.serve.router.asked import BLOCK, RoutedRequest, asked_of
from weft.serve.router.exchange import ReplicaAddress
from weft.serve.router.fleet import LOAD, Fleet, ranked
from weft.serve.router.replica import Replica

NAMES = [f"10.0.0.{i}:8000" for i in range(4)]
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def homes(count: int) -> list[bytes]:
    return [i.to_bytes(32, "big") for i in range(count)]


def test_a_removal_moves_only_its_own_share() -> None:
    before = {home: ranked(home, NAMES) for home in homes(4000)}
    assert all(900 < n < 1100 for n in Counter(order[0] for order in before.values()).values())
    left = NAMES[:2] + NAMES[3:]
    for home, order in before.items():
        assert ranked(home, left) == [name for name in order if name != NAMES[2]]


def test_what_moves_is_spread() -> None:
    moved = [order for home in homes(4000) if (order := ranked(home, NAMES))[0] == NAMES[2]]
    second = Counter(order[1] for order in moved)
    assert all(n > len(moved) / 4 for n in second.values()) and len(second) == 3


def models(**marks: str | None) -> dict[str, Any]:
    """Models as replicas tell of them, with these fingerprints."""
    return {
        name: {"id": name, **({"fingerprint": mark} if mark else {})}
        for name, mark in marks.items()
    }


def fleet(count: int = 4, mixed: bool = False) -> Fleet:
    """Replicas that are up and have one model."""
    made = Fleet([Replica(ReplicaAddress.of(f"http://{name}")) for name in NAMES[:count]], mixed)
    for replica in made.replicas:
        replica.status, replica.models = "up", models(box="fp_1")
    made.agree()
    return made


@given(st.lists(st.integers(0, 9), min_size=1, max_size=200), st.integers(1, 4))
@settings(max_examples=50, deadline=None)
def test_no_replica_has_more_than_its_share(conversations: list[int], count: int) -> None:
    made = fleet(count)
    for n, i in enumerate(conversations, 1):
        chosen = made.choose(RoutedRequest(b"", "box", homes(10)[i]))
        assert chosen is not None
        chosen._open.add(object())  # type: ignore[arg-type]
        most = -(-LOAD * n // count)
        assert max(r.outstanding for r in made.replicas) <= most


def test_without_a_conversation_the_least_load_decides() -> None:
    made = fleet()
    for replica in made.replicas[:3]:
        replica._open.add(object())  # type: ignore[arg-type]
    assert made.choose(RoutedRequest(b"{}")) is made.replicas[3]
    assert made.choose(RoutedRequest(b"{}"), made.replicas[:]) is None


def test_who_has_the_model_is_asked() -> None:
    made = fleet()
    made.replicas[2].models = models(other="fp_2", box="fp_1")
    for home in homes(20):
        assert made.choose(RoutedRequest(b"", "other", home)) is made.replicas[2]
        chosen = made.choose(RoutedRequest(b"", None, home))
        assert chosen is not made.replicas[2]  # whose first model is another
        assert made.choose(RoutedRequest(b"", "missing", home)) is not None  # it says so


def test_another_fingerprint_is_kept_out() -> None:
    made = fleet()
    made.replicas[0].models = models(box="fp_2")
    made.replicas[0].joined = None  # as one that comes back does
    made.agree()
    assert made.ready == made.replicas[1:]
    assert made.replicas[0].told()["status"] == "differs"
    assert made.replicas[0].told()["differs"] == ["box"]
    for replica in made.replicas[1:]:
        replica.status = "down"
    made.agree()
    assert made.ready == made.replicas[:1]  # nobody is left that it differs from
    for replica in made.replicas[1:]:
        replica.status = "up"
    made.agree()
    assert made.ready == made.replicas[:1]  # who comes back has to agree with it


def test_mixed_replicas_when_told_so() -> None:
    made = fleet(mixed=True)
    made.replicas[0].models = models(box="fp_2")
    made.agree()
    assert made.ready == made.replicas


def test_a_model_that_is_loaded_later_is_compared_then() -> None:
    made = fleet(2)
    for replica in made.replicas:
        replica.models = models(box=None)
    made.agree()
    assert len(made.ready) == 2
    for replica, mark in zip(made.replicas, ("fp_1", "fp_2")):
        replica.models = models(box=mark)
    made.agree()
    assert made.ready == made.replicas[:1]


def home(path: str, value: Any, key: bytes = b"") -> bytes | None:
    return asked_of(path, json.dumps(value).encode(), key).home


def turn(role: str, text: str) -> dict[str, str]:
    return {"role": role, "content": text}


def test_turns_of_a_conversation_have_one_home() -> None:
    opening = [turn("system", "Be short."), turn("user", "Hello")]
    later = [*opening, turn("assistant", "Hi"), turn("user", "And now?")]
    first = home(CHAT, {"model": "box", "messages": opening})
    assert first is not None
    assert home(CHAT, {"model": "box", "messages": later, "temperature": 0}) == first
    others = [
        home(CHAT, {"model": "box", "messages": [opening[0], turn("user", "Good day")]}),
        home(CHAT, {"model": "other", "messages": opening}),
        home(CHAT, {"model": "box", "messages": opening, "cache_salt": "mine"}),
        home(CHAT, {"model": "box", "messages": opening, "tools": [{"type": "function"}]}),
        home(CHAT, {"model": "box", "messages": opening}, key=b"somebody else"),
        home("/v1/messages", {"model": "box", "messages": opening[1:], "system": "Be short."}),
        home("/v1/responses", {"model": "box", "input": opening, "instructions": "Be long."}),
    ]
    assert len({first, *others}) == 1 + len(others)


def test_a_line_that_changes_does_not_move_a_conversation() -> None:
    """Claude Code's, at the front of its system prompt (anthropic.input.BILLING)."""
    found = set()
    for mark in ("cch=1;", "cch=2;"):
        system = [{"type": "text", "text": f"x-anthropic-billing-header: {mark}\nBe short."}]
        asked = {"model": "box", "system": system, "messages": [turn("user", "Hello")]}
        found.add(home("/v1/messages", asked))
        asked["messages"] = [turn("user", "Good day")]
        assert home("/v1/messages", asked) not in found
    assert len(found) == 1


def test_prompts_that_begin_alike_have_one_home() -> None:
    text = "word " * 100
    ids = list(range(BLOCK))
    assert home(TEXT, {"prompt": text + "a"}) == home(TEXT, {"prompt": text + "b"}) is not None
    assert home(TEXT, {"prompt": [text, "short"]}) == home(TEXT, {"prompt": text})
    assert home(TEXT, {"prompt": [*ids, 1]}) == home(TEXT, {"prompt": [[*ids, 2]]}) is not None
    assert home(TEXT, {"prompt": "short"}) is home(TEXT, {"prompt": [1, 2]}) is None
    assert home("/v1/embeddings", {"input": text}) is None


def test_a_seed_is_put_in_where_none_is() -> None:
    asked = {"model": "box", "prompt": "x", "logit_bias": {"5": 0.1}, "seed": None}
    made = json.loads(asked_of(TEXT, json.dumps(asked).encode(), b"").body)
    assert isinstance(made["seed"], int) and made == {**asked, "seed": made["seed"]}
    given = json.dumps({**asked, "seed": 0}).encode()
    assert asked_of(TEXT, given, b"").body == given
    inner = json.loads(asked_of("/api/chat", b'{"messages": []}', b"").body)
    assert isinstance(inner["options"]["seed"], int)
    assert asked_of("/v1/embeddings", b'{"input": "x"}', b"").body == b'{"input": "x"}'


ODD = [
    b"", b"null", b"[1]", b"{", b'{"a": 1e400}', b"\xff{", b'{"prompt": "\\ud800"}', b"[" * 9999,
    b'{"a":' * 200 + b"1" + b"}" * 200,
]  # fmt: skip


@pytest.mark.parametrize("body", ODD, ids=range(len(ODD)))
def test_what_is_no_json_goes_on_as_it_is(body: bytes) -> None:
    assert asked_of(CHAT, body, b"") == RoutedRequest(body)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=3)
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)
FIELDS = st.sampled_from(["messages", "prompt", "input", "options", "seed", "model", "tools"])


@given(st.sampled_from([CHAT, TEXT, "/v1/messages", "/api/chat", "/v1/responses"]),
       st.dictionaries(FIELDS, JSON))  # fmt: skip
@settings(max_examples=300, deadline=None)
def test_no_body_does_harm(path: str, value: dict[str, Any]) -> None:
    body = json.dumps(value, allow_nan=False).encode()
    found = json.loads(asked_of(path, body, b"").body)
    found.pop("seed", None), value.pop("seed", None)
    if path.startswith("/api"):
        found.pop("options", None), value.pop("options", None)
    assert found == value


@pytest.mark.parametrize(
    "url",
    ["127.0.0.1:80", "https://a:1", "http://a", "http://a:0", "http://a:1/x", "http://u@a:1",
     "http://a:99999", "http://[::1", "ftp://a:1", ""],
)  # fmt: skip
def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises(UsageError, match="expected http"):
        ReplicaAddress.of(url)


def test_addresses() -> None:
    assert ReplicaAddress.of("http://127.0.0.1:80/") == ReplicaAddress("127.0.0.1", 80)
    assert ReplicaAddress.of("http://[::1]:8000").netloc == "[::1]:8000"
    with pytest.raises(UsageError, match="twice"):
        Fleet([Replica(ReplicaAddress("a", 1)), Replica(ReplicaAddress("a", 1))])
