"""Regular expressions of JSON schemas in the dialect that llguidance reads.

Schemas mean JavaScript's or Python's expressions; llguidance reads Rust's. Where the three differ,
a pattern here matches only what all of them match, so that every validator takes the answer.
"""

from __future__ import annotations

import re

from weft.core.errors import UsageError
from weft.models.grammar.schema_decimals import without_look_ahead

HIDDEN = re.compile(r"[\x00-\x07\x0b\x0e-\x1f\x7f]")
"""Characters that JSON writes with \\u alone."""
_META = r"\.+*?()|[]{}^$#&-~"
_COUNT = re.compile(r"\{\d+(,\d*)?\}")
_FLAGS = re.compile(r"\?([a-zA-Z-]*)([:)])")

# The members of \d, \w and \s inside a class: at least, exactly as in Python, and at most.
_LEAST = {"d": "0-9", "w": "0-9A-Za-z_", "s": r"\x20\t\n\r\x0b\x0c"}
_EXACT = {"d": r"\p{Nd}", "w": r"\p{L}\p{N}_", "s": r"\p{White_Space}\x1c-\x1f"}
_MOST = {"d": r"\p{Nd}", "w": r"\p{L}\p{N}\p{M}_", "s": _EXACT["s"] + r"\x{feff}"}
_CONTROLS = {"n", "r", "t", "f", "v"}

_YEAR = "(?:000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
_DAY = (
    "(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    "|02-(?:0[1-9]|1[0-9]|2[0-8])"
)
_FOURS = "(?:0[48]|[2468][048]|[13579][26])"
_DATE = f"(?:{_YEAR}-(?:{_DAY})|(?:[0-9]{{2}}{_FOURS}|{_FOURS}00)-02-29)"
_HOUR = "(?:[01][0-9]|2[0-3]):[0-5][0-9]"
_TIME = rf"{_HOUR}:[0-5][0-9](?:\.[0-9]{{1,9}})?(?:Z|[+-]{_HOUR})"
_POINTER = "(?:/(?:[^/~]|~[01])*)*"
_PATH = "[A-Za-z0-9._~/-]|%[0-9A-F]{2}"
_QUERY = f"(?:{_PATH}|[!$&'()*+,;=:@?])*"
_64 = "[A-Za-z0-9+/]"
_ATOM = r"[A-Za-z0-9_ ,:;=@%]|\\[dws.]|\.|\[[A-Za-z0-9_]{1,20}\]"  # of a regular expression
FORMATS = {
    "date": f"^{_DATE}$", "time": f"^{_TIME}$", "date-time": f"^{_DATE}T{_TIME}$",
    "json-pointer": f"^{_POINTER}$",
    "relative-json-pointer": f"^(?:0|[1-9][0-9]{{0,8}})(?:#|{_POINTER})$",
    "uri-reference": f"^(?:{_PATH})*(?:\\?{_QUERY})?(?:#{_QUERY})?$",
    "uri-template": f"^(?:{_PATH}|\\{{[A-Za-z0-9_]+\\}})*$",
    "regex": rf"^\^?(?:(?:{_ATOM})[*+?]?)*\$?$",
    "byte": f"^(?:{_64}{{4}})*(?:{_64}{{2}}==|{_64}{{3}}=)?$",
}  # fmt: skip
"""Formats that llguidance lacks, or of which it also lets through what does not exist (February 30,
12:00:60)."""
NARROWER = {"idn-email": "email", "idn-hostname": "hostname", "iri": "uri",
            "iri-reference": "uri-reference"}  # fmt: skip
"""Formats whose texts include those of another."""
FREE = {"binary", "path", "file-path", "directory-path", "password"}
"""Formats of OpenAPI and pydantic that any text has."""


def translated(pattern: str, exact: bool = False) -> str:
    """`pattern` in Rust's dialect; exact: matching all that Python matches. Raises UsageError for
    what means something else from one dialect to the next."""
    if not exact and (plain := without_look_ahead(pattern)) is not None:
        return plain
    return _Translation(pattern, exact).text()


def others(names: list[str]) -> str:
    """A pattern, without anchors, of all texts that are none of `names`."""
    by_first: dict[str, list[str]] = {}
    for name in names:
        if name:
            by_first.setdefault(name[0], []).append(name[1:])
    made = [] if "" in names else [""]
    made += [_literal(first) + others(rest) for first, rest in by_first.items()]
    known = "".join(map(_literal, by_first))
    made.append(f"[^{known}](?s:.*)" if known else "(?s:.+)")
    return f"(?:{'|'.join(made)})"


class _Translation:
    def __init__(self, pattern: str, exact: bool) -> None:
        self._source, self._exact, self._at = pattern, exact, 0
        self._inside = _EXACT if exact else _LEAST
        self._outside = _EXACT if exact else _MOST

    def text(self) -> str:
        made = []
        repeated = False  # True if the last part was a repetition
        while self._at < len(self._source):
            c = self._next()
            repeats = c in "*+?" or (c == "{" and self._count() is not None)
            if repeats and repeated and c != "?":
                self._refuse(f"a repetition that {c!r} repeats")
            made.append(self._part(c))
            repeated = repeats and not (repeated and c == "?")
        return "".join(made)

    def _part(self, c: str) -> str:
        if c == "\\":
            return self._escape()
        if c == "[":
            return self._class()
        if c == ".":
            return r"[^\n]" if self._exact else r"[^\n\r\x{2028}\x{2029}]"
        if c == "$" and self._exact:
            return r"\n?$"  # Python's $ also matches before a last line's end
        if c == "(":
            return self._group()
        if c == "{":
            found = self._count()
            if found is None:
                if self._source.startswith(",", self._at):
                    self._refuse("{,n}")
                return r"\{"
            self._at += len(found) - 1
            return found
        return c if c in "()|*+?^$" else _literal(c)

    def _count(self) -> str | None:
        found = _COUNT.match(self._source, self._at - 1)
        return None if found is None else found[0]

    def _group(self) -> str:
        flags = _FLAGS.match(self._source, self._at)
        if flags is None:
            return "("
        if set(flags[1]) - set("i" if self._exact else "is"):
            self._refuse(f"the flags {flags[1]}")
        self._at = flags.end()
        return f"({flags[0]}"

    def _escape(self) -> str:
        c = self._next()
        if c in "dws":
            return f"[{self._inside[c]}]"
        if c in "DWS":
            return f"[^{self._outside[c.lower()]}]"
        return self._escaped(c)

    def _escaped(self, c: str) -> str:
        if c in _CONTROLS:
            return f"\\{c}"
        if c in "xu" and (digits := self._digits(2 if c == "x" else 4)):
            return f"\\x{{{digits}}}"
        if c in "pP" and (found := re.compile(r"\{\w+(=\w+)?\}").match(self._source, self._at)):
            self._at = found.end()
            return f"\\{c}{found[0]}"
        if c.isalnum():
            self._refuse(f"\\{c}")
        return _literal(c)

    def _digits(self, count: int) -> str:
        digits = self._source[self._at : self._at + count]
        if not re.fullmatch(f"[0-9a-fA-F]{{{count}}}", digits):
            return ""
        self._at += count
        return digits

    def _class(self) -> str:
        negated = self._source.startswith("^", self._at)
        self._at += negated
        # More inside of a negated class is less outside.
        inside = self._outside if negated else self._inside
        outside = self._inside if negated else self._outside
        made: list[str] = []
        quotes = False  # True if " or \, which JSON itself escapes, is among the members
        while (c := self._next()) != "]" or not made:
            if c == "]":
                self._refuse("a class that is empty or begins with ]")
            if c == "\\" and self._source[self._at : self._at + 1] in tuple("dwsDWS"):
                kind = self._next()
                more = inside[kind] if kind in inside else f"[^{outside[kind.lower()]}]"
                made.append(more)
                if self._source.startswith("-", self._at) and not self._source.startswith(
                    "-]", self._at
                ):
                    self._refuse(f"a range from \\{kind}")
                continue
            first = last = self._member(c)
            if self._source.startswith("-", self._at) and not self._source.startswith(
                "-]", self._at
            ):
                self._at += 1
                last = self._member(self._next())
            quotes |= any(_code(first) <= ord(q) <= _code(last) for q in '"\\')
            made.append(first if first == last else f"{self._low(first, last, negated)}-{last}")
        if negated and quotes:
            # llguidance accepts \" and \\ if a class holds all control characters.
            if self._exact:
                self._refuse("a class without quotes")
            made.append(r"\x00-\x1f")
        return f"[{'^' * negated}{''.join(made)}]"

    def _low(self, first: str, last: str, negated: bool) -> str:
        """The first of a range, which begins at the space where it would hold such characters."""
        if negated or _code(first) >= 0x20:
            return first
        if self._exact or _code(last) < 0x20:
            self._refuse("a range of control characters")
        return r"\x20"

    def _member(self, c: str) -> str:
        if c != "\\":
            return _literal(c)
        c = self._next()
        return r"\x08" if c == "b" else self._escaped(c)

    def _next(self) -> str:
        if self._at >= len(self._source):
            self._refuse("an end too early")
        self._at += 1
        return self._source[self._at - 1]

    def _refuse(self, what: str) -> None:
        raise UsageError(
            f"the pattern {self._source[:60]!r} has {what}, which JSON schema's readers understand "
            "differently or llguidance does not implement; write it in another way"
        )


def _literal(c: str) -> str:
    return f"\\{c}" if c in _META else c


def _code(member: str) -> int:
    """The character that a member of a class is, as it was written for Rust."""
    if len(member) == 1:
        return ord(member)
    if member.startswith("\\x"):
        return int(member[2:].strip("{}"), 16)
    controls = {"n": 10, "r": 13, "t": 9, "f": 12, "v": 11}
    return controls.get(member[1], ord(member[1])) if len(member) == 2 else -1
