"""Commands that messages suggest. tests/hints provokes each message and executes its command."""

from __future__ import annotations

import shlex


def command(*words: object) -> str:
    """A `weft` command as it is typed, quoted for a shell. Words in capitals (MODEL, PROMPT) stand
    for what the reader has to fill in."""
    return shlex.join(["weft", *map(str, words)])
