"""Steps of runners in tests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.models.run.runner import Runner


def scores(
    runner: Runner, ids: Sequence[int], slot: int = 0, start: int = 0, adapter: str = ""
) -> np.ndarray:
    """Feeds ids to a slot as rows; a copy of their logits [n, vocab]."""
    pos = range(start, start + len(ids))
    return runner.rows(ids, [slot] * len(ids), pos, [adapter] * len(ids)).copy()
