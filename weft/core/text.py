"""Aligned text tables and human sizes, for every command that prints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(header: Sequence[str], rows: Sequence[Sequence[object]], right: str = "") -> str:
    """Columns padded to their widest cell; the columns named in `right` (by letter index, "a" is
    the first) are right-aligned. Trailing spaces are cut.

    >>> print(table(["name", "ms"], [["softmax", 1.5], ["x", 12]], right="b"))
    name      ms
    softmax  1.5
    x         12
    """
    cells = [[visible(str(c)) for c in row] for row in (header, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    flip = {ord(c) - ord("a") for c in right}
    lines = (
        "  ".join(
            c.rjust(w) if i in flip else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths))
        )
        for row in cells
    )
    return "\n".join(line.rstrip() for line in lines)


def visible(said: str) -> str:
    r"""Text with what a terminal would obey, or would not show, as escapes: names in files are
    anybody's. Lines stay lines.

    >>> visible("a\x1b[2Jb")
    'a\\x1b[2Jb'
    """
    if said.isprintable():
        return said
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in said)


def first_line(said: object) -> str:
    """The first line of an error or a message, cut to 200 characters; its type where it is empty.

    >>> first_line(ValueError("no such file\\nmore")), first_line(ValueError())
    ('no such file', 'ValueError')
    """
    return (str(said).strip() or type(said).__name__).splitlines()[0][:200]


def shown(value: object, most: int = 60) -> str:
    r"""A value of a stranger's file for a message: in one line, cut, nothing a terminal would obey.

    >>> shown("a\nb\x1b[2J"), shown([1, "a"])
    ('a\\nb\\x1b[2J', "[1, 'a']")
    """
    try:
        said = value[: most + 1] if isinstance(value, str) else repr(value)[: most + 1]
    except (RecursionError, ValueError):  # ValueError: a number of thousands of digits
        return "a value nested deeply, or a very long number"
    said = visible(said).replace("\n", "\\n")
    return said if len(said) <= most else f"{said[: most - 3]}..."


def markdown(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """The same as a Markdown table."""
    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    lines += ["| " + " | ".join(str(c) for c in row) + " |" for row in rows]
    return "\n".join(lines)


def size(nbytes: float) -> str:
    """Bytes for people: 512 B, 1.5 KiB, 268.4 MiB.

    >>> size(1536)
    '1.5 KiB'
    """
    value, unit = float(nbytes), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"


def counted(n: int, noun: str) -> str:
    """A number of things: "1 weight", "2 weights"."""
    return f"{n} {noun}{'s' * (n != 1)}"


def count(n: float) -> str:
    """A count for people: 950, 12.3k, 134.1M, 1.04G.

    >>> count(134_100_000)
    '134.1M'
    """
    for factor, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(n) >= factor:
            return f"{n / factor:.{2 if suffix == 'G' else 1}f}{suffix}"
    return f"{n:g}"


def listed(names: Iterable[str], most: int = 24) -> str:
    """Returns names for a message, with commas: the first `most`, and how many more there are."""
    found = list(names)
    more = f" and {len(found) - most} more" if len(found) > most else ""
    return ", ".join(found[:most]) + more
