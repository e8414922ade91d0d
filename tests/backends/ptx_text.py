"""PTX as LLVM prints it, read into instructions. Source: NVIDIA "PTX ISA", "Syntax"."""

from __future__ import annotations

import dataclasses
import functools
import re

REGISTER = re.compile(r"%(?:[a-z]+\d+|SPL?\b)")  # %tid.x and the like have no number
_OPERAND = re.compile(r"\{[^}]*\}|\[[^\]]*\]|[^\s,{}\[\]]+")
_ENTRY = re.compile(r"\.visible \.entry (\w+)\((.*?)\)\n(.*?)\n\{\n(.*?)\n\}", re.S)
_SHARED = re.compile(r"\.(shared|local) \.align (\d+) \.b8 \s*(\w+)\[(\d*)\]")
# What has no result: its first operand is read.
_EFFECTS = ("st", "bra", "bar", "ret", "cp")


@dataclasses.dataclass(frozen=True)
class Instruction:
    """`@guard op operands;`: the guard is "" where there is none; an operand is its text."""

    guard: str
    op: str
    operands: tuple[str, ...]

    @functools.cached_property
    def writes(self) -> list[str]:
        return [] if self.op.split(".")[0] in _EFFECTS else REGISTER.findall(self.operands[0])

    @functools.cached_property
    def reads(self) -> list[str]:
        first = 1 if self.writes else 0
        return REGISTER.findall(" ".join([self.guard, *self.operands[first:]]))

    def __str__(self) -> str:
        return f"{self.guard and f'@{self.guard} '}{self.op} {', '.join(self.operands)}"


@dataclasses.dataclass(frozen=True)
class Entry:
    """One kernel: what it declares, its instructions, and the number of that after each label.
    `arrays` maps the name of a shared or local array to (space, alignment, bytes)."""

    name: str
    params: tuple[str, ...]
    registers: dict[str, str]  # type by prefix: {"%r": "b32"}
    arrays: dict[str, tuple[str, int, int]]
    code: tuple[Instruction, ...]
    labels: dict[str, int]


def entries(text: str) -> list[Entry]:
    """The kernels of a module."""
    text = re.sub(r"//.*", "", text)
    outside = _arrays(_ENTRY.sub("", text))
    return [_entry(found, outside) for found in _ENTRY.finditer(text)]


def _arrays(text: str) -> dict[str, tuple[str, int, int]]:
    return {m[3]: (m[1], int(m[2]), int(m[4] or 0)) for m in _SHARED.finditer(text)}


def _entry(found: re.Match[str], outside: dict[str, tuple[str, int, int]]) -> Entry:
    name, params, _, body = found.groups()
    registers: dict[str, str] = {}
    code: list[Instruction] = []
    labels: dict[str, int] = {}
    for statement in body.split(";"):
        statement = statement.strip()
        while label := re.match(r"(\$\w+):\s*", statement):
            labels[label[1]] = len(code)
            statement = statement[label.end() :]
        if declared := re.match(r"\.reg \.(\w+)\s+(%\w+)", statement):
            registers[declared[2]] = declared[1]
        elif statement and not statement.startswith("."):
            code.append(_instruction(statement))
    names = tuple(re.findall(r"(\w+)(?:,|\s*$)", params, re.M))
    return Entry(name, names, registers, outside | _arrays(body), tuple(code), labels)


def _instruction(statement: str) -> Instruction:
    guard = re.match(r"@(!?%p\d+)\s+", statement)
    rest = statement[guard.end() :] if guard else statement
    op, *operands = _OPERAND.findall(rest)
    return Instruction(guard[1] if guard else "", op, tuple(operands))
