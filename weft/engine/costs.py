"""Decides from the times of past steps if another row in a step pays.

The number of proposed tokens may follow the clock: it changes how long an answer takes, never its
tokens.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence

from weft.core.records import dataclass

_KEPT = 7  # steps per size class of which the median is taken
_OLD = 1000  # a measurement expires after this many steps
_FURTHER = 4  # sizes up to this multiple of the largest measured one are tried
_MARGIN = 1.2  # factor that a gain must exceed, to cover unmeasured work: proposing, comparing


class Costs:
    """Seconds per step by number of rows, in size classes of powers of two."""

    def __init__(self) -> None:
        self._seen: dict[int, deque[tuple[int, float]]] = {}
        self._count = 0
        self._sizes: list[int] = []  # of the classes with measurements, ascending
        self._seconds: list[float] = []  # their medians
        self._fresh = True

    def note(self, rows: int, seconds: float) -> None:
        """Records that a step of `rows` rows took `seconds`."""
        self._count += 1
        size = 1 << (rows - 1).bit_length()
        self._seen.setdefault(size, deque(maxlen=_KEPT)).append((self._count, seconds))
        self._fresh = False

    def _medians(self) -> None:
        """Brings the medians up to date: only when somebody asks, since most steps do not."""
        self._fresh, self._sizes, self._seconds = True, [], []
        for size, steps in sorted(self._seen.items()):
            recent = [s for count, s in steps if self._count - count < _OLD]
            if recent:
                self._sizes.append(size)
                self._seconds.append(sorted(recent)[len(recent) // 2])

    def of(self, rows: int) -> float:
        """Returns the seconds that a step of `rows` rows is expected to take.

        Between measured sizes it interpolates linearly; below the smallest it returns that one's
        time. Above the largest it returns the largest one's time, so that the size is tried, and
        infinity beyond `_FURTHER` times the largest. With no measurements it returns 0.
        """
        if not self._fresh:
            self._medians()
        sizes, seconds = self._sizes, self._seconds
        if not sizes:
            return 0.0
        if rows >= sizes[-1]:
            return seconds[-1] if rows <= _FURTHER * sizes[-1] else float("inf")
        above = bisect_left(sizes, rows)
        if above == 0 or sizes[above] == rows:
            return seconds[above]
        share = (rows - sizes[above - 1]) / (sizes[above] - sizes[above - 1])
        return seconds[above - 1] + share * (seconds[above] - seconds[above - 1])


@dataclass(frozen=True)
class Worth:
    """A step of `rows` rows in which `sequences` decode, to which each of them may add rows."""

    costs: Costs
    rows: int
    sequences: int

    def best(self, chances: Sequence[float], each: float = 0.0) -> int:
        """Returns how many proposed tokens per sequence to feed, 0 if none pays. chances[i] is the
        probability that the first i + 1 are all right; `each` is the seconds that proposing one
        takes."""
        now = self.costs.of(self.rows)
        token = now / self.sequences  # seconds that one right token saves
        gain, most, best = 0.0, 0.0, 0
        for n, chance in enumerate(chances, 1):
            gain += chance * token
            more = self.costs.of(self.rows + n * self.sequences) - now
            net = gain - _MARGIN * (max(more, 0.0) / self.sequences + n * each)
            if net > most:
                most, best = net, n
        return best


class ProposalChooser:
    """A chooser between steps with proposals and steps without, by tokens per second.

    Estimates miss unmeasured work and the effect of a step on the next one. So both kinds run in
    turn, and the one that is ahead runs for longer each time.
    """

    FIRST, LONGEST = 32, (128, 1024)  # steps of the kind that is ahead: (without, with) proposals
    TRIAL = 8  # steps of the other kind
    DOUBT = 1.03  # factor by which steps without must be ahead: other jobs may find proposals soon
    UNEVEN = 2  # first steps of a turn, not counted: memory still holds the other kind's data

    def __init__(self) -> None:
        self.proposes = True
        self._ahead, self._rate = True, 0.0  # the faster kind, and its tokens per second
        self._run = self._left = self.FIRST
        self._steps, self._seconds, self._tokens = 0, 0.0, 0

    def note(self, seconds: float, tokens: int) -> None:
        """Records that a step took `seconds` and produced `tokens` tokens."""
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
    """The success rate of one source of proposals, and when to ask it."""

    PROBE = 2  # tokens proposed as a probe, to see if the source has improved
    PAUSE = 64  # largest number of tokens between two probes

    def __init__(self) -> None:
        self._right, self._wrong = 2.0, 1.0
        self._pause, self._wait = 1, 0
        self._probes = False

    def chances(self, count: int) -> list[float]:
        """Returns the probabilities that the first token, the first two, ... the first `count` are
        right."""
        rate = self._right / (self._right + self._wrong)
        return [rate**n for n in range(1, count + 1)]

    @property
    def asked(self) -> bool:
        """True if the source is asked for this token. If it is not, reading this also counts down
        the wait."""
        self._wait = max(self._wait - 1, -1)
        return self._wait < 0

    def take(self, chances: Sequence[float], worth: Worth, each: float = 0.0) -> int:
        """Returns how many tokens to propose: as many as pay. If none pays, returns a few to learn
        from; `learn` makes such probes rarer each time."""
        count = worth.best(chances, each)
        self._probes = not count
        return count or min(self.PROBE, len(chances))

    def learn(self, proposed: int, accepted: int) -> None:
        """Records how many of the proposed tokens were accepted."""
        self._right = 0.9 * self._right + accepted
        self._wrong = 0.9 * self._wrong + (accepted < proposed)
        if accepted and not self._probes:
            self._pause = 1
        else:
            self._wait = self._pause = min(2 * self._pause, self.PAUSE)
