"""Patterns of response templates, against Python's re."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings, strategies as st

from weft.core.errors import UsageError
from weft.serve.toolcalls.pattern import END, Match, Pattern, PatternSearch, find_all

PATTERNS = [
    r"\s*<tool_call>", r"a|ab|abc", r"(?P<name>[^>\n]+)>", r"(?:^|<t>\s*)",
    r"<p=(?P<k>\w+)>\s*(?P<v>.*?)\s*</p>",
    r"a*?b", r"a{2,3}", r"a{2}b?", r"[a-c]+[^a-c]", r"(a|b)*c", r"x\.y\|", r"\n?</r>",
    r"(?:a?b?)*c", r"\x61+",
    r"a$", r"(?P<x>a+)(?P<y>a*)b", r"[\w.-]+:", r"\s*(?:<\|e\|>|<\|f\|>)", r"a{,2}b", r"{x}",
]  # fmt: skip
LETTERS = "abc<>p=/ \n|x.y{}1-:rtek"


@st.composite
def patterns(draw: st.DrawFn) -> str:
    atoms = st.sampled_from(["a", "b", "c", ".", r"\s", "[ab]", "[^a]", r"\w", "<", "x"])
    parts = st.recursive(
        atoms,
        lambda inner: st.one_of(
            st.tuples(inner, inner).map("".join),
            st.tuples(inner, inner).map(lambda t: f"(?:{t[0]}|{t[1]})"),
            st.tuples(inner, st.sampled_from(["*", "+", "?", "*?", "+?", "??", "{1,2}"])).map(
                lambda t: f"(?:{t[0]}){t[1]}"
            ),
        ),
        max_leaves=6,
    )
    return draw(parts)


def expected(pattern: str, text: str) -> list[tuple[int, int]]:
    out, at = [], 0
    compiled = re.compile(pattern, re.DOTALL)
    while at <= len(text) and (m := compiled.search(text, at)):
        out.append(m.span())
        at = max(m.end(), m.start() + 1)
    return out


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.sampled_from(PATTERNS), patterns()), st.text(LETTERS, max_size=14))
def test_matches_are_those_of_re(pattern: str, text: str) -> None:
    if "$" in pattern and text.endswith("\n"):
        return  # re lets $ stand before a last line's end as well
    first = re.compile(pattern, re.DOTALL).search(text)
    found = find_all(Pattern(pattern), text)
    assert (first is None) == (not found)
    if first is None:
        return
    assert (found[0].start, found[0].end) == first.span()
    if "(?P" in pattern:
        theirs = {n: first.span(n) for n, v in first.groupdict().items() if v is not None}
        assert found[0].groups == theirs
    if "^" not in pattern.replace("[^", ""):
        assert [(m.start, m.end) for m in found] == expected(pattern, text)


@pytest.mark.parametrize(
    "pattern", [r"(?=a)b", r"(?<!a)b", r"(a)\1", "a++", "(?i)a", "(a", "a)", "*a", "[a", "a{3,2}",
                "(" * 80 + ")" * 80, "((a{100}){100}){100}", r"\p{L}", "(?P<1>a)", "a{5000}"],
)  # fmt: skip
def test_what_is_not_supported_is_refused(pattern: str) -> None:
    with pytest.raises(UsageError):
        Pattern(pattern)


def test_what_backtracking_engines_do_not_survive() -> None:
    text = "a" * 3000
    assert find_all(Pattern(r"(?:a*)*b"), text) == []
    assert find_all(Pattern(r"(?:a|a)*$"), text)[0] == Match(0, 3000, {})


def test_a_search_says_from_where_on_text_may_belong_to_a_match() -> None:
    search = PatternSearch(Pattern("<tool>"), 0, whole=True)
    for at, c in enumerate("ab<to"):
        search.push(c)
        assert search.pending == (2 if at >= 2 else None)
    search.push("x")
    assert search.pending is None and search.found is None
    search.push(END)
    assert search.found is None
