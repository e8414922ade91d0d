"""Regular expressions of response templates, matched as a text grows, in linear time.

A subset of Python's `re` with DOTALL (what Hugging Face's format asks for): literals, classes,
dots, groups with names or none, alternatives, greedy and lazy repetition, ^ and $. Looking around,
backreferences and flags are refused by name. Matching simulates all ways at once, in the order of
their priority (Pike's virtual machine; R. Cox, Regular Expression Matching: the Virtual Machine
Approach, 2009), so nothing backtracks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from weft.core.errors import UsageError

MAX_CODE = 4000  # instructions of a pattern
MAX_NESTING = 50
MAX_COUNT = 1000  # most times of a counted repetition
END = ""  # the character after the last

Test = Callable[[str], bool]
_CLASSES: dict[str, Test] = {
    "s": str.isspace, "S": lambda c: not c.isspace(),
    "d": str.isdecimal, "D": lambda c: not c.isdecimal(),
    "w": lambda c: c.isalnum() or c == "_", "W": lambda c: not (c.isalnum() or c == "_"),
}  # fmt: skip
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "0": "\0", "a": "\a"}


@dataclass
class Instruction:
    """An instruction: "test" a character, "split" to `to` (first the likelier), "save" a position
    under `name`, assert "begin" or "end", or "match"."""

    kind: str
    test: Test | None = None
    to: tuple[int, ...] = ()
    name: str = ""


class Pattern:
    """A compiled pattern. Raises UsageError for one that is wrong or not supported."""

    def __init__(self, source: str) -> None:
        self.source, self.names = source, set[str]()
        self.code: list[Instruction] = []
        self._at = 0
        self._alternatives(0)
        if self._at < len(source):
            self._refuse("an unbalanced parenthesis")
        self._emit(Instruction("match"))

    @classmethod
    def literals(cls, texts: list[str]) -> Pattern:
        """One of `texts`, the longest that fits."""
        escaped = [
            "".join(c if c.isalnum() or c.isspace() else f"\\{c}" for c in text)
            for text in sorted(set(texts), key=len, reverse=True)
        ]
        return cls("|".join(escaped))

    def _emit(self, op: Instruction) -> int:
        if len(self.code) >= MAX_CODE:
            self._refuse(f"more than {MAX_CODE} steps")
        self.code.append(op)
        return len(self.code) - 1

    def _refuse(self, what: str) -> None:
        raise UsageError(f"the pattern {self.source[:60]!r} has {what}, which is not supported")

    def _peek(self, text: str) -> bool:
        return self.source.startswith(text, self._at)

    def _take(self, text: str) -> bool:
        found = self._peek(text)
        self._at += len(text) * found
        return found

    def _next(self) -> str:
        if self._at >= len(self.source):
            self._refuse("an end too early")
        self._at += 1
        return self.source[self._at - 1]

    def _alternatives(self, depth: int) -> None:
        if depth > MAX_NESTING:
            self._refuse(f"more than {MAX_NESTING} nested groups")
        ends: list[int] = []
        while True:
            split = self._emit(Instruction("split"))
            self._sequence(depth)
            if not self._take("|"):
                self.code[split].to = (split + 1,)
                break
            ends.append(self._emit(Instruction("split")))
            self.code[split].to = (split + 1, len(self.code))
        for end in ends:
            self.code[end].to = (len(self.code),)

    def _sequence(self, depth: int) -> None:
        while self._at < len(self.source) and self.source[self._at] not in "|)":
            begin = len(self.code)
            self._atom(depth)
            self._repeat(begin)

    def _atom(self, depth: int) -> None:
        c = self._next()
        if c == "(":
            self._group(depth)
        elif c == "[":
            self._emit(Instruction("test", self._set()))
        elif c == ".":
            self._emit(Instruction("test", lambda c: True))
        elif c == "^":
            self._emit(Instruction("begin"))
        elif c == "$":
            self._emit(Instruction("end"))
        elif c == "\\":
            self._escape()
        elif c in "*+?":
            self._refuse("a repetition of nothing")
        else:
            self._emit(Instruction("test", c.__eq__))

    def _escape(self) -> None:
        c = self._next()
        if c in "AZ":
            self._emit(Instruction("begin" if c == "A" else "end"))
            return
        self._emit(Instruction("test", self._escaped(c)))

    def _escaped(self, c: str) -> Test:
        if c in _CLASSES:
            return _CLASSES[c]
        if c in ("x", "u"):
            width = 2 if c == "x" else 4
            digits = "".join(self._next() for _ in range(width))
            try:
                return chr(int(digits, 16)).__eq__
            except ValueError:
                self._refuse(f"\\{c}{digits}")
        if c in _CONTROLS:
            return _CONTROLS[c].__eq__
        if c.isalnum():
            self._refuse(f"\\{c}")
        return c.__eq__

    def _group(self, depth: int) -> None:
        name = ""
        if self._take("?P<"):
            end = self.source.find(">", self._at)
            name = self.source[self._at : max(end, self._at)]
            if not name.isidentifier() or name in self.names:
                self._refuse("a group of a wrong name")
            self.names.add(name)
            self._at = end + 1
        elif self._take("?:"):
            pass
        elif self._peek("?"):
            self._refuse(f"({self.source[self._at : self._at + 3]}")
        if name:
            self._emit(Instruction("save", name=f"<{name}"))
        self._alternatives(depth + 1)
        if not self._take(")"):
            self._refuse("an unbalanced parenthesis")
        if name:
            self._emit(Instruction("save", name=f">{name}"))

    def _set(self) -> Test:
        negated = self._take("^")
        tests: list[Test] = []
        first = True
        while first or not self._peek("]"):
            first = False
            c = self._next()
            if c == "\\":
                escape = self._next()
                if escape in _CLASSES:
                    tests.append(_CLASSES[escape])
                    continue
                c = _CONTROLS.get(escape, escape)
            if self._peek("-") and not self._peek("-]"):
                self._next()
                high = self._next()
                high = self._next() if high == "\\" else high
                tests.append(lambda x, a=c, b=high: a <= x <= b)  # type: ignore[misc]
            else:
                tests.append(c.__eq__)
        self._next()
        return lambda x: any(t(x) for t in tests) != negated

    def _repeat(self, begin: int) -> None:
        if self._at >= len(self.source):
            return
        if self._take("*"):
            low, high = 0, -1
        elif self._take("+"):
            low, high = 1, -1
        elif self._take("?"):
            low, high = 0, 1
        elif self._peek("{") and (counts := self._counts()) is not None:
            low, high = counts
        else:
            return
        lazy = self._take("?")
        if self._peek("+") or self._peek("*"):
            self._refuse("a possessive or repeated repetition")
        self._build(begin, low, high, lazy)

    def _counts(self) -> tuple[int, int] | None:
        end = self.source.find("}", self._at)
        low, comma, high = self.source[self._at + 1 : max(end, 0)].partition(",")
        if not (low or high) or not (low + high).isdecimal():
            return None  # a literal brace
        self._at = end + 1
        counts = int(low or 0), (int(high) if high else -1) if comma else int(low)
        if max(counts) > MAX_COUNT or (counts[1] >= 0 and counts[1] < counts[0]):
            self._refuse("a repetition of wrong counts")
        return counts

    def _build(self, begin: int, low: int, high: int, lazy: bool) -> None:
        """Repeats the instructions from `begin` on."""
        body, base = self.code[begin:], begin
        if any(op.kind == "save" for op in body) and (low, high) not in ((0, 1), (0, -1), (1, -1)):
            self._refuse("a named group that is counted")
        del self.code[begin:]

        def copy() -> None:
            shift = len(self.code) - base
            for op in body:
                self._emit(Instruction(op.kind, op.test, tuple(t + shift for t in op.to), op.name))

        for _ in range(low):
            copy()
        if high < 0:
            split = self._emit(Instruction("split"))
            copy()
            back = self._emit(Instruction("split", to=(split,)))
            self.code[split].to = _either(split + 1, back + 1, lazy)
            return
        splits = []
        for _ in range(high - low):
            splits.append(self._emit(Instruction("split")))
            copy()
        for split in splits:
            self.code[split].to = _either(split + 1, len(self.code), lazy)


def _either(go_on: int, leave: int, lazy: bool) -> tuple[int, int]:
    return (leave, go_on) if lazy else (go_on, leave)


@dataclass(frozen=True)
class Match:
    """The position of a match, and the positions of its named groups."""

    start: int
    end: int
    groups: dict[str, tuple[int, int]]


Saved = tuple[tuple[str, int], ...]


class PatternSearch:
    """The first match of a pattern in a text that is given character by character, from position
    `at` on; `whole` where the text begins there."""

    def __init__(self, pattern: Pattern, at: int, whole: bool) -> None:
        self._code, self._at = pattern.code, at
        self._begin = at if whole else -1
        self._threads: list[tuple[int, int, Saved]] = []  # instruction, start, saved
        self.found: Match | None = None
        self.steps = 0

    @property
    def pending(self) -> int | None:
        """The start of a match that may still come and would count, or None."""
        return self._threads[0][1] if self._threads else None

    def push(self, c: str) -> None:
        """Takes the next character, or END. It finds matches that end before `c`."""
        before = self._threads
        if self.found is None:
            before = [*before, (0, self._at, ())]
        self._threads, waiting = [], self._follow(before, c)
        if c != END:
            self._threads = [
                (pc + 1, start, saved)
                for pc, start, saved in waiting
                if self._code[pc].test(c)  # type: ignore[misc]
            ]
        self._at += 1

    def _follow(
        self, threads: list[tuple[int, int, Saved]], c: str
    ) -> list[tuple[int, int, Saved]]:
        """The tests that the threads come to, in the order of priority, up to a match."""
        seen: set[int] = set()
        out = []
        for thread in threads:
            stack = [thread]
            while stack:
                pc, start, saved = stack.pop()
                if pc in seen:
                    continue
                seen.add(pc)
                op = self._code[pc]
                if op.kind == "test":
                    out.append((pc, start, saved))
                elif op.kind == "split":
                    stack += [(to, start, saved) for to in reversed(op.to)]
                elif op.kind == "save":
                    stack.append((pc + 1, start, (*saved, (op.name, self._at))))
                elif op.kind == "match":
                    self.found = Match(start, self._at, _groups(saved))
                    self.steps += len(seen)
                    return out
                elif (self._at == self._begin) if op.kind == "begin" else (c == END):
                    stack.append((pc + 1, start, saved))
        self.steps += len(seen)
        return out


def _groups(saved: Saved) -> dict[str, tuple[int, int]]:
    last = dict(saved)
    begins = {name[1:]: at for name, at in last.items() if name[0] == "<"}
    return {n: (at, last[f">{n}"]) for n, at in begins.items() if f">{n}" in last}


def find_all(pattern: Pattern, text: str) -> list[Match]:
    """Matches that do not overlap, left to right. Raises UsageError where finding them takes more
    than some hundred steps per character."""
    out: list[Match] = []
    at, steps, allowed = 0, 0, 10_000 + 200 * len(text)
    while at <= len(text):
        search = PatternSearch(pattern, at, whole=at == 0)
        for i in range(at, len(text) + 1):
            search.push(text[i] if i < len(text) else END)
            if search.found is not None and search.pending is None:
                break
            if steps + search.steps > allowed:
                raise UsageError(f"the pattern {pattern.source[:60]!r} takes too many steps")
        steps += search.steps
        if search.found is None:
            break
        out.append(search.found)
        at = max(search.found.end, search.found.start + 1)
    return out
