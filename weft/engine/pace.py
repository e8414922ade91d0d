"""Chooses how many rows of prompts a step takes, alone and while other sequences decode.

The choice follows the times of past steps. It changes when tokens come, never which tokens.
"""

from __future__ import annotations

LONGEST = 0.08  # seconds for which a step should at most hold sequences that decode
WHOLE = 0.5  # seconds that a step should spend on prompts: new requests wait for its end
ALONE = 1.0  # ... and without any that decode: a new request waits at most so long
LEAST = 16  # rows that a step takes however slow they are
LEAST_ALONE = 128  # ... and without any that decode: fewer rows take longer each
DEEPER = 4  # a prompt so many times deeper than the last one begins with the least rows
SHALLOW = 2048  # positions below which depth hardly counts


class PromptPace:
    """The rows of prompts in a step: `most` at the most while other sequences decode, else `alone`.

    The first number follows what the last step could have done in `WHOLE` seconds, and in `LONGEST`
    between two turns of the others. It at most doubles from one step to the next. The other
    follows what the last step could have done in `ALONE` seconds.
    """

    def __init__(self, most: int, alone: int) -> None:
        self._most, self._least = most, min(LEAST, most)
        self._rows, self._depth = most, 0
        self._alone = self._most_alone = alone

    def rows(self, depth: int, decoding: bool) -> int:
        """Returns how many rows to take of a prompt of which `depth` tokens are in the cache."""
        if not decoding:
            least = min(LEAST_ALONE, self._most_alone)
            return least if self._is_far(depth) else max(least, self._alone)
        return self._least if self._is_far(depth) else self._rows

    def note(self, depth: int, rows: int, held: float, whole: float) -> None:
        """Records that `rows` rows of prompts, the deepest after `depth` tokens, took `whole`
        seconds and held the others for `held` seconds at a time."""
        self._alone = min(int(rows * ALONE / max(whole, 1e-6)), self._most_alone)
        could = rows * min(LONGEST / max(held, 1e-6), WHOLE / max(whole, 1e-6))
        if rows >= self._rows or could < rows or self._is_far(depth):
            allowed = 2 * self.rows(depth, True)
            self._rows = int(max(self._least, min(could, allowed, self._most)))
            self._depth = depth

    def _is_far(self, depth: int) -> bool:
        """True if a prompt is so deep that the last step says little about it."""
        return depth > DEEPER * max(self._depth, SHALLOW)
