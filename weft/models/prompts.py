"""What a caller may pass as prompts and seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.core.errors import UsageError
from weft.engine.sampler import check_seed

Prompt = str | Sequence[int] | np.ndarray


def as_list(prompt: Any) -> tuple[list[Prompt], bool]:
    """(prompts, whether a single one was given). A list of ints is one prompt of ids."""
    if isinstance(prompt, str):
        return [prompt], True
    if isinstance(prompt, np.ndarray):
        return ([prompt], True) if prompt.ndim <= 1 else (list(prompt), False)
    if not isinstance(prompt, Sequence) or isinstance(prompt, bytes):
        raise UsageError(
            f"a prompt is text, token ids or a list of these; got {type(prompt).__name__}"
        )
    items = list(prompt)
    if items and all(isinstance(p, str | list | tuple | np.ndarray) for p in items):
        return items, False
    return [items], True


def seeds_of(seed: int | Sequence[int], count: int) -> list[tuple[int, int]]:
    """(seed, index) of each prompt; checks the values."""
    if isinstance(seed, Sequence | np.ndarray) and not isinstance(seed, str | bytes):
        if len(seed) != count:
            raise UsageError(f"{len(seed)} seeds for {count} prompts; give one or one each")
        pairs: list[tuple[Any, int]] = [(s, 0) for s in seed]
    else:
        pairs = [(seed, i) for i in range(count)]
    checked = []
    for s, i in pairs:
        value = int(s) if isinstance(s, np.integer) else s
        check_seed(value)
        checked.append((value, i))
    return checked
