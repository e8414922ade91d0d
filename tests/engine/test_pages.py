"""The books of pages: what is found again, what goes first, what may not happen twice."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from weft.engine.pages import Chain, Pages, link, root

START = root(b"", "")


def filled(pages: Pages, tokens: list[int], start: bytes = START) -> list[int]:
    """Pages that hold `tokens`, as a sequence leaves them."""
    size, chain = pages.size, Chain(start, pages.size)
    taken = pages.take(-(-len(tokens) // size))
    assert taken is not None
    for n, page in enumerate(taken):
        part = tokens[n * size : (n + 1) * size]
        digest = chain.at(n + 1, tokens) if len(part) == size else None
        pages.fill(page, chain.at(n, tokens), digest, part)
    return taken


def found(pages: Pages, tokens: list[int], start: bytes = START) -> list[int]:
    held = pages.find(Chain(start, pages.size), tokens, len(tokens))
    pages.release(held)
    pages.check()
    return held


def test_a_page_is_not_freed_twice() -> None:
    pages = Pages(4, 2)
    taken = pages.take(2)
    assert taken is not None
    pages.release(taken)
    with pytest.raises(AssertionError, match="freed twice"):
        pages.release(taken)


def test_what_is_shared_is_freed_by_the_last() -> None:
    pages = Pages(4, 2)
    mine = filled(pages, [1, 2, 3, 4])
    assert pages.find(Chain(START, 2), [1, 2, 3, 4, 5], 5) == mine and pages.idle == 2
    pages.release(mine)
    assert pages.idle == 2 and pages.cached == 0
    pages.release(mine)
    assert pages.idle == 4 and pages.cached == 2
    assert found(pages, [1, 2, 3, 4]) == mine


def test_ends_of_chains_go_before_beginnings_and_the_longest_unused_first() -> None:
    pages = Pages(4, 2)
    first = filled(pages, [1, 2, 3, 4])
    pages.release(first)
    second = filled(pages, [5, 6, 7, 8])
    pages.release(second)
    assert found(pages, [1, 2, 3, 4]) == first  # used again: now the second is older
    assert pages.take(2) == [second[1], second[0]]
    assert found(pages, [1, 2, 3, 4]) == first
    assert pages.take(1) == [first[1]]
    assert found(pages, [1, 2, 3, 4]) == first[:1]


def test_a_child_whose_parent_went_is_found_once_the_parent_is_back() -> None:
    pages = Pages(4, 2)
    held = filled(pages, [1, 2, 3, 4])
    pages.release(held[:1])
    assert pages.take(3) is not None and pages.idle == 0  # the parent's page among them
    assert pages.find(Chain(START, 2), [1, 2, 3, 4], 4) == []
    pages.release(held[1:])
    assert found(pages, [1, 2, 3, 4]) == []


def test_equal_chains_are_kept_once() -> None:
    pages = Pages(4, 2)
    first, second = filled(pages, [1, 2]), filled(pages, [1, 2])
    pages.release(second)
    pages.release(first)
    assert found(pages, [1, 2]) == first and pages.cached == 1
    assert pages.take(3) is not None and found(pages, [1, 2]) == first  # the nameless went first


def test_more_than_there_is_is_not_given_in_part() -> None:
    pages = Pages(3, 2)
    assert pages.take(4) is None and pages.idle == 3
    assert pages.take(0) == []


def test_an_end_is_taken_over_by_one_and_loses_what_differs() -> None:
    pages = Pages(4, 4)
    pages.release(filled(pages, [1, 2, 3, 4, 5, 6, 7]))
    chain = Chain(START, 4)
    held = pages.find(chain, [1, 2, 3, 4, 5, 6, 8, 9], 7)
    end, shared = pages.alike(chain.at(1, [1, 2, 3, 4]), [5, 6, 8], idle=True)
    pages.take_over(end)
    assert shared == 2 and pages.refs[end] == 1
    assert pages.alike(chain.at(1, [1, 2, 3, 4]), [5, 6, 7], idle=False) == (-1, 0)
    pages.release([*held, end])
    pages.check()


def test_what_is_held_or_followed_is_copied_and_not_taken_over() -> None:
    pages = Pages(4, 2)
    held = filled(pages, [1, 2, 3, 4])
    assert pages.alike(START, [1, 9], idle=True) == (-1, 0)
    assert pages.alike(START, [1, 9], idle=False) == (held[0], 1)
    pages.release(held)
    assert pages.alike(START, [1, 9], idle=True) == (-1, 0)  # [3, 4] follows it
    assert pages.alike(START, [1, 9], idle=False) == (held[0], 1)
    assert pages.take(3) is not None  # and does no more
    assert pages.alike(START, [1, 9], idle=True) == (held[0], 1)


@given(st.binary(max_size=4), st.text(max_size=4), st.binary(max_size=4), st.text(max_size=4))
def test_salts_and_adapters_do_not_run_together(s: bytes, a: str, t: bytes, b: str) -> None:
    assert (root(s, a) == root(t, b)) == ((s, a) == (t, b))


def test_tokens_do_not_run_together() -> None:
    chains = [[1, 2], [2, 1], [258], [1, 2, 0], [0, 1, 2], [1 << 40]]
    assert len({link(START, tokens) for tokens in chains}) == len(chains)
    assert link(link(START, [1]), [2]) != link(START, [1, 2])
