"""Checks the prompts, seeds and stop strings that callers pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.core.errors import UsageError
from weft.engine.sampler import check_seed
from weft.models.text.picture_prompt import PicturePrompt

Prompt = str | Sequence[int] | np.ndarray


def as_list(prompt: Any) -> tuple[list[Prompt], bool]:
    """Returns (prompts, True if a single one was given). A list of ints is one prompt of ids."""
    if isinstance(prompt, str | PicturePrompt):
        return [prompt], True
    if isinstance(prompt, np.ndarray):
        return ([prompt], True) if prompt.ndim <= 1 else (list(prompt), False)
    if not isinstance(prompt, Sequence) or isinstance(prompt, bytes):
        raise UsageError(
            f"a prompt is text, token ids or a list of these; got {type(prompt).__name__}"
        )
    items = list(prompt)
    if items and all(isinstance(p, str | list | tuple | np.ndarray | PicturePrompt) for p in items):
        return items, False
    return [items], True


def checked_ids(prompt: Any, vocab: int) -> list[int]:
    """Returns the token ids of a flat list of integers, each below `vocab`."""
    try:
        array = np.asarray(prompt)
    except (TypeError, ValueError, OverflowError):  # a ragged list, for example
        array = np.zeros((1, 1))
    if array.size == 0:
        raise UsageError("the prompt is empty; give at least one token id")
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise UsageError("a prompt is text or a flat list of integer token ids")
    low, high = int(array.min()), int(array.max())
    if low < 0 or high >= vocab:
        wrong = low if low < 0 else high
        raise UsageError(f"token id {wrong} is outside the vocabulary 0..{vocab - 1}")
    return [int(i) for i in array]


def checked_stops(stop: Any) -> tuple[str, ...]:
    """Returns the stop strings, given as one or several."""
    stops = (stop,) if isinstance(stop, str) else stop
    if not isinstance(stops, Sequence) or any(not isinstance(s, str) or not s for s in stops):
        raise UsageError("stop strings must be text of at least one character")
    return tuple(stops)


def checked_count(count: Any) -> int:
    """Returns the checked max_new_tokens."""
    if isinstance(count, bool) or not isinstance(count, int | np.integer):
        raise UsageError(f"max_new_tokens is {count!r}; expected an integer")
    if count < 0:
        raise UsageError(f"max_new_tokens is {count}; expected 0 or more")
    return int(count)


def checked_number(name: str, number: Any, least: int) -> int:
    """Returns the checked integer of the option `name`, at least `least`."""
    if isinstance(number, bool) or not isinstance(number, int | np.integer) or number < least:
        raise UsageError(f"{name} is {number!r:.60}; expected an integer of {least} or more")
    return int(number)


def checked_stop_ids(ids: Any, vocab: int) -> frozenset[int]:
    """Returns the ids of tokens that end an answer."""
    given = list(ids) if isinstance(ids, Sequence | set | frozenset | np.ndarray) else ids
    return frozenset(checked_ids(given, vocab) if given != [] else [])


def seeds_of(seed: int | Sequence[int], count: int, n: int = 1) -> list[tuple[int, int]]:
    """Returns (seed, index) of each of the `n` answers to each of `count` prompts, prompt by
    prompt, after checking the values."""
    if isinstance(seed, Sequence | np.ndarray) and not isinstance(seed, str | bytes):
        if len(seed) != count:
            raise UsageError(f"{len(seed)} seeds for {count} prompts; give one or one each")
        pairs: list[tuple[Any, int]] = [(s, k) for s in seed for k in range(n)]
    else:
        pairs = [(seed, i) for i in range(count * n)]
    checked = []
    for s, i in pairs:
        value = int(s) if isinstance(s, np.integer) else s
        check_seed(value)
        checked.append((value, i))
    return checked
