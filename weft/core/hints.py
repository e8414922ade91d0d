"""Commands that messages suggest. tests/hints provokes each message and executes its command."""

from __future__ import annotations

import shlex


def command(*words: object) -> str:
    """Returns a `weft` command as it is typed, quoted for a shell. The reader replaces the words in
    capitals (MODEL, PROMPT)."""
    return shlex.join(["weft", *map(str, words)])
