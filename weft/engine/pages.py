"""The contents of cache pages: reference counts, lookup by prefix, and eviction.

The content of a page is its tokens and all tokens before them. A full page is found by the digest
of its chain: BLAKE2b of the parent's digest and the page's tokens. The root of a chain names salt
and adapter. Digests have 256 bits, so equal digests mean equal chains.

Sequences share full pages only. An unreferenced page stays until its space is needed: the longest
unused goes first, and ends of chains go before their beginnings. A page that is partly filled, or
only partly wanted, is not shared. A sequence may take it over if it is unreferenced and without
successor; else it may copy it.
"""

from __future__ import annotations

import hashlib
import struct
from collections import OrderedDict
from collections.abc import Iterator, Sequence

from weft.core.records import dataclass
from weft.engine.windows import Windows

# successors of a page that are compared: among equal beginnings any one will do
_MOST_LOOKED_AT = 64


def root(salt: bytes, adapter: str) -> bytes:
    """Returns the digest that chains of this salt and adapter begin with."""
    name = adapter.encode()
    parts = struct.pack("<QQ", len(salt), len(name)) + salt + name
    return hashlib.blake2b(parts, digest_size=32, person=b"weft.pages").digest()


def link(parent: bytes, tokens: Sequence[int]) -> bytes:
    """Returns the digest of a full page of `tokens` after the chain `parent`."""
    packed = struct.pack(f"<{len(tokens)}q", *tokens)
    return hashlib.blake2b(parent + packed, digest_size=32).digest()


class Chain:
    """The digests of a growing list of tokens; each page is hashed once."""

    def __init__(self, start: bytes, size: int) -> None:
        self._size, self._digests = size, [start]

    def anew(self) -> Chain:
        """Returns the chain of another list of tokens with this one's salt and adapter."""
        return Chain(self._digests[0], self._size)

    def at(self, pages: int, tokens: Sequence[int]) -> bytes:
        """Returns the digest of the first `pages` pages of `tokens`."""
        made, size = self._digests, self._size
        while len(made) <= pages:
            begin = (len(made) - 1) * size
            made.append(link(made[-1], tokens[begin : begin + size]))
        return made[pages]


@dataclass(frozen=True)
class _Content:
    parent: bytes
    tokens: tuple[int, ...]
    digest: bytes | None  # None if the page is not full


class Pages:
    """A pool of `count` pages of `size` positions each. `windows`: their twins in layers that keep
    only their window, without which a page is of no use to a sequence. Not thread-safe."""

    def __init__(self, count: int, size: int, windows: Windows | None = None) -> None:
        self.count, self.size, self.windows = count, size, windows
        self.refs = [0] * count
        self._idle: OrderedDict[int, None] = OrderedDict.fromkeys(range(count))
        self._content: dict[int, _Content] = {}
        self._found: dict[bytes, int] = {}
        # maps a parent's digest to the pages that follow it
        self._after: dict[bytes, dict[int, None]] = {}

    @property
    def idle(self) -> int:
        """The number of unreferenced pages: as many as `take` can give."""
        return len(self._idle)

    @property
    def cached(self) -> int:
        """The number of unreferenced pages that can be found again."""
        return sum(page in self._content for page in self._idle)

    def take(self, n: int) -> list[int] | None:
        """Returns n pages of unknown content with one reference each; None if there are too few."""
        if n > len(self._idle):
            return None
        taken = []
        for _ in range(n):
            page, _ = self._idle.popitem(last=False)
            self._forget(page)
            if self.windows is not None:
                self.windows.drop(page)
            self.refs[page] = 1
            taken.append(page)
        return taken

    def find(self, chain: Chain, tokens: Sequence[int], most: int) -> list[int]:
        """Returns the full pages that hold the beginning of `tokens`, up to `most` tokens, and adds
        a reference to each."""
        pages = list(self._known(chain, tokens, most))
        if self.windows is not None:
            del pages[self.windows.resumable(pages) :]
        for page in pages:
            self._hold(page)
        return pages

    def lacks(self, chain: Chain, tokens: Sequence[int], most: int) -> bytes | None:
        """Returns the digest of the first full page of `tokens`, up to `most` tokens, that `find`
        would not return; None if it would return all."""
        n = sum(1 for _ in self._known(chain, tokens, most))
        return chain.at(n + 1, tokens) if (n + 1) * self.size <= most else None

    def _known(self, chain: Chain, tokens: Sequence[int], most: int) -> Iterator[int]:
        for n in range(1, most // self.size + 1):
            page = self._found.get(chain.at(n, tokens))
            if page is None:
                return
            yield page

    def alike(self, parent: bytes, rest: Sequence[int], idle: bool) -> tuple[int, int]:
        """Returns the page after `parent` that shares the longest prefix with `rest`, and the
        number of shared tokens (0 if there is none). With `idle`, only an unreferenced page
        without successor, which `take_over` may have."""
        rest = tuple(rest[: self.size])
        best, most = -1, 0
        for _, page in zip(range(_MOST_LOOKED_AT), reversed(self._after.get(parent, {}))):
            content = self._content[page]
            follows = content.digest is not None and content.digest in self._after
            if idle and (self.refs[page] or follows):
                continue
            if not self._whole(page):
                continue
            common = _common(content.tokens, rest)
            if common > most:
                best, most = page, common
        return best, most

    def take_over(self, page: int) -> None:
        """Gives an unreferenced page to the caller alone: it is not found any more."""
        self._forget(page)
        self._hold(page)

    def fill(self, page: int, parent: bytes, digest: bytes | None, tokens: Sequence[int]) -> None:
        """Records the tokens of a referenced page, with `digest` if it is full. If another page
        already holds that chain, the other one stays, unless it lacks its twin."""
        other = None if digest is None else self._found.get(digest)
        if other is not None:
            if self._whole(other) or not self._whole(page):
                return
            self._forget(other)
            if other in self._idle:
                self._idle.move_to_end(other, last=False)
        self._content[page] = _Content(parent, tuple(tokens), digest)
        self._after.setdefault(parent, {})[page] = None
        if digest is not None:
            self._found[digest] = page

    def known(self, page: int) -> bool:
        """Returns True if the page's tokens are recorded."""
        return page in self._content

    def _whole(self, page: int) -> bool:
        """Returns True if a sequence could resume after the page: its twin, if any, is there."""
        return self.windows is None or self.windows.has(page)

    def release(self, pages: Sequence[int]) -> None:
        """Drops one reference to each page of a sequence. Raises AssertionError for an unreferenced
        page."""
        for page in reversed(pages):  # the end of a chain goes before its beginning
            assert self.refs[page] > 0, f"page {page} is freed twice"
            self.refs[page] -= 1
            if not self.refs[page]:
                self._idle[page] = None
                if page not in self._content:
                    self._idle.move_to_end(page, last=False)

    def clear(self) -> None:
        """Forgets the contents of all pages, so that none is found again."""
        self._content.clear()
        self._found.clear()
        self._after.clear()

    def check(self) -> None:
        """Raises AssertionError if the bookkeeping is inconsistent."""
        assert all(refs >= 0 for refs in self.refs)
        assert {p for p, refs in enumerate(self.refs) if not refs} == set(self._idle)
        for digest, page in self._found.items():
            content = self._content[page]
            assert content.digest == digest == link(content.parent, content.tokens)
            assert len(content.tokens) == self.size
        for page, content in self._content.items():
            assert page in self._after[content.parent]
            assert content.digest is None or self._found[content.digest] == page
            assert content.digest is not None or not self.refs[page]
        assert sum(map(len, self._after.values())) == len(self._content)
        assert all(self._after.values())

    def _hold(self, page: int) -> None:
        self.refs[page] += 1
        self._idle.pop(page, None)

    def _forget(self, page: int) -> None:
        content = self._content.pop(page, None)
        if content is None:
            return
        beside = self._after[content.parent]
        del beside[page]
        if not beside:
            del self._after[content.parent]
        if content.digest is not None:
            del self._found[content.digest]


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """Returns the length of the common prefix."""
    for n, (x, y) in enumerate(zip(a, b)):
        if x != y:
            return n
    return min(len(a), len(b))
