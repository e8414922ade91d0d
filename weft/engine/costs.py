"""Whether one more row of a step pays, from what steps took.

How many tokens are proposed may follow the clock: it changes how long an answer takes, never what
it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

_KEPT = 7  # steps of about a size whose median counts
_OLD = 1000  # steps after which one is forgotten
_FURTHER = 4  # times as many rows as any step had are tried next
_MARGIN = 1.2  # by which rows have to pay for what is not measured: proposing, comparing


class Costs:
    """Seconds of a step by its number of rows, in powers of two."""

    def __init__(self) -> None:
        self._seen: dict[int, deque[tuple[int, float]]] = {}
        self._count = 0

    def note(self, rows: int, seconds: float) -> None:
        """A step of so many rows took so long."""
        self._count += 1
        size = 1 << (rows - 1).bit_length()
        self._seen.setdefault(size, deque(maxlen=_KEPT)).append((self._count, seconds))

    def of(self, rows: int) -> float:
        """What a step of so many rows takes: between sizes seen along a line, below the smallest as
        much as that; above the largest no more, so that it is tried, and infinity far above."""
        known = {}
        for size, steps in sorted(self._seen.items()):
            seconds = [s for count, s in steps if self._count - count < _OLD]
            if seconds:
                known[size] = median(seconds)
        if not known:
            return 0.0
        if rows > _FURTHER * max(known):
            return float("inf")
        below = max((size for size in known if size <= rows), default=min(known))
        above = min((size for size in known if size >= rows), default=max(known))
        share = (rows - below) / (above - below) if below < rows < above else 0.0
        return known[below] + share * (known[above] - known[below])


@dataclass(frozen=True)
class Worth:
    """A step of `rows` rows in which `sequences` decode, to which each of them may add rows."""

    costs: Costs
    rows: int
    sequences: int

    def best(self, chances: Sequence[float], each: float = 0.0) -> int:
        """How many proposed tokens of a sequence to feed, 0 where none pays. chances[i] is how
        likely the first i + 1 are all right, `each` how many seconds proposing one takes."""
        now = self.costs.of(self.rows)
        token = now / self.sequences  # what one that is right saves
        gain, most, best = 0.0, 0.0, 0
        for n, chance in enumerate(chances, 1):
            gain += chance * token
            more = self.costs.of(self.rows + n * self.sequences) - now
            net = gain - _MARGIN * (max(more, 0.0) / self.sequences + n * each)
            if net > most:
                most, best = net, n
        return best


class Turns:
    """Whether steps with proposals give more tokens a second than steps without. Estimates err, by
    what is not measured and by what a step does to the next; so both are done in turn, whichever
    is ahead for longer and longer."""

    FIRST, LONGEST = 32, (128, 1024)  # steps of the one that is ahead: without, with
    TRIAL = 8  # of the other
    DOUBT = 1.03  # by which steps without have to be ahead: others may find something soon
    UNEVEN = 2  # at a beginning that do not count: memory holds what the other kind needs

    def __init__(self) -> None:
        self.proposes = True
        self._ahead, self._rate = True, 0.0  # which is, and its tokens a second
        self._run = self._left = self.FIRST
        self._steps, self._seconds, self._tokens = 0, 0.0, 0

    def note(self, seconds: float, tokens: int) -> None:
        """A step took so long, and gave so many tokens."""
        self._steps += 1
        self._left -= 1
        if self._steps > self.UNEVEN:
            self._seconds += seconds
            self._tokens += tokens
        if self._left:
            return
        rate = self._tokens / max(self._seconds, 1e-9)
        if self.proposes is self._ahead:
            self._rate = rate
            self._turn(not self._ahead, self.TRIAL)
        elif rate > (self._rate if self.proposes else self.DOUBT * self._rate):
            self._ahead, self._run = self.proposes, self.FIRST
            self._turn(self._ahead, self._run)
        else:
            self._run = min(2 * self._run, self.LONGEST[self._ahead])
            self._turn(self._ahead, self._run)

    def _turn(self, proposes: bool, steps: int) -> None:
        self.proposes, self._left = proposes, steps
        self._steps, self._seconds, self._tokens = 0, 0.0, 0


class Trust:
    """How often proposals of one source are right, and when it is asked."""

    PROBE = 2  # tokens proposed to see whether it has got better
    PAUSE = 64  # tokens between two of these, at most

    def __init__(self) -> None:
        self._right, self._wrong = 2.0, 1.0
        self._pause, self._wait = 1, 0
        self._probes = False

    def chances(self, count: int) -> list[float]:
        """How likely the first token is right, the first two are, ... the first `count`."""
        rate = self._right / (self._right + self._wrong)
        return [rate**n for n in range(1, count + 1)]

    @property
    def asked(self) -> bool:
        """Whether it is asked for this token; where not, one less is left to wait for."""
        self._wait = max(self._wait - 1, -1)
        return self._wait < 0

    def take(self, chances: Sequence[float], worth: Worth, each: float = 0.0) -> int:
        """How many tokens to propose: as many as pay, else a few to learn from, more and more
        seldom."""
        count = worth.best(chances, each)
        self._probes = not count
        return count or min(self.PROBE, len(chances))

    def learn(self, proposed: int, accepted: int) -> None:
        """Says how a proposal went."""
        self._right = 0.9 * self._right + accepted
        self._wrong = 0.9 * self._wrong + (accepted < proposed)
        if accepted and not self._probes:
            self._pause = 1
        else:
            self._wait = self._pause = min(2 * self._pause, self.PAUSE)
