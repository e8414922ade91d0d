"""Chooses the next token on the host from float32 logits.

Random numbers are counter-based: sequence `index` of a call with `seed` draws from Philox with the
key (seed, index), one uniform per token. So token t of a sequence depends only on its logits, seed,
index and t.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import isfinite

import numpy as np

from weft.core.errors import UsageError
from weft.core.records import dataclass

PENALTIES = (2.0**-126, 2.0**126)
MOST_ADDED = 1e6
_BLOCK = 256  # probabilities per block in partial sums


@dataclass(frozen=True)
class Sampling:
    """The rule for choosing a token. temperature 0 is greedy (ties: the lowest id). top_k 0, top_p
    1, min_p 0, penalties of 0 and repetition_penalty 1 turn these off.

    They apply in this order: logit_bias; repetition_penalty on every id in prompt and answer;
    presence_penalty and frequency_penalty; the constraint; temperature, top_k, top_p and min_p,
    like transformers.

    As in OpenAI's API, logit_bias adds to the logits of ids (pairs, or a mapping). An id that
    occurs n > 0 times in the answer (not the prompt) loses presence_penalty + n *
    frequency_penalty. min_p drops tokens less probable than min_p times the most probable one.

    Raises UsageError for values out of range. Any finite temperature from 0 on is valid.
    repetition_penalty is within float32's normal numbers, so that no logit overflows. The other
    penalties and biases are between -1e6 and 1e6.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            if name == "logit_bias":
                object.__setattr__(self, name, _biases(self.logit_bias))
                continue
            whole = name == "top_k"
            object.__setattr__(self, name, _number(name, getattr(self, name), whole))
        if not 0.0 <= self.temperature < float("inf"):
            raise UsageError(f"temperature is {self.temperature}; expected 0 or more")
        if self.top_k < 0:
            raise UsageError(f"top_k is {self.top_k}; expected 0 (off) or more")
        if not 0.0 < self.top_p <= 1.0:
            raise UsageError(f"top_p is {self.top_p}; expected more than 0 and at most 1")
        if not 0.0 <= self.min_p <= 1.0:
            raise UsageError(f"min_p is {self.min_p}; expected 0 (off) to 1")
        if not PENALTIES[0] <= self.repetition_penalty <= PENALTIES[1]:
            raise UsageError(
                f"repetition_penalty is {self.repetition_penalty}; expected "
                f"{PENALTIES[0]:.3g} to {PENALTIES[1]:.3g}"
            )
        added = [(name, getattr(self, name)) for name in ("presence_penalty", "frequency_penalty")]
        for name, value in (*added, *((f"logit_bias of {i}", x) for i, x in self.logit_bias)):
            if not -MOST_ADDED <= value <= MOST_ADDED:
                raise UsageError(f"{name} is {value}; expected -1e6 to 1e6")

    @property
    def plain(self) -> bool:
        """True if the logits are used unchanged, except for the temperature."""
        added = self.presence_penalty or self.frequency_penalty or self.logit_bias
        return self.repetition_penalty == 1.0 and not added


def _number(name: str, value: object, whole: bool) -> float | int:
    numbers = int | np.integer if whole else float | int | np.floating | np.integer
    if not isinstance(value, numbers) or isinstance(value, bool):
        expected = "an integer" if whole else "a number"
        raise UsageError(f"{name} is {str(value)[:40]!r}; expected {expected}")
    return int(value) if whole else _as_float(value)


def _biases(given: object) -> tuple[tuple[int, float], ...]:
    pairs = list(given.items()) if isinstance(given, Mapping) else given
    if not isinstance(pairs, list | tuple) or any(
        not isinstance(pair, list | tuple) or len(pair) != 2 for pair in pairs
    ):
        raise UsageError("logit_bias maps token ids to numbers")
    made = {int(_number("an id of logit_bias", i, True)): x for i, x in pairs}
    if len(made) < len(pairs) or min(made, default=0) < 0:
        raise UsageError("logit_bias names an id twice, or one below 0")
    return tuple((i, _number(f"logit_bias of {i}", x, False)) for i, x in sorted(made.items()))


def _as_float(value: float | np.number) -> float:
    try:
        return float(value)
    except OverflowError:  # an integer of hundreds of digits
        return float("inf")


def check_seed(seed: object) -> None:
    """Raises UsageError unless `seed` is an integer from 0 to 2**64 - 1."""
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 1 << 64:
        raise UsageError(f"seed is {seed!r}; expected an integer from 0 to 2**64 - 1")


def generator(seed: int, index: int) -> np.random.Generator:
    """Returns the random stream of sequence `index` under `seed` (0 <= seed < 2**64)."""
    check_seed(seed)
    key = np.array([seed, index], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key))


def choose(
    logits: np.ndarray,
    history: Sequence[int],
    how: Sampling,
    stream: np.random.Generator | None,
    new: Sequence[int] = (),
    allowed: np.ndarray | None = None,
) -> int:
    """Returns the next token's id from `logits` (float32 [vocab]). `history` is prompt and new ids,
    `new` the new ones alone; allowed: bool [vocab], with at least one True.

    `stream` gives one uniform if temperature > 0. NaN logits give the id of a NaN (NumPy's argmax
    finds them), which the caller checks.
    """
    uniform = stream.random() if how.temperature and stream is not None else None
    logits = adjusted(logits, history, how, new)
    top = int(logits.argmax())
    if (uniform is None and allowed is None) or not isfinite(logits[top]):
        return top
    if allowed is not None:
        logits = np.where(allowed, logits, -np.inf)
        top = int(logits.argmax())
    if uniform is None or not isfinite(logits[top]):
        return top
    ids, p = distribution(logits, how)
    return int(ids[draw(p, uniform)])


def draw(p: np.ndarray, uniform: float) -> int:
    """Returns the first index at which the running sum of p exceeds `uniform` times the total. If
    rounding leaves none, returns the last index with a share. `p` is float64 [n], not negative; 0
    <= uniform < 1.

    Sums of blocks find that index in a fraction of the time. Two orders of adding n numbers differ
    by at most 2n * 2**-53 of the total (Higham, "Accuracy and Stability of Numerical Algorithms",
    4.2). So the index is the same unless a border is within twice that; then the full sum is taken.
    """
    at = _by_blocks(p, uniform)
    if at is None:
        cumulative = np.cumsum(p)
        at = int(np.searchsorted(cumulative, uniform * cumulative[-1], side="right"))
    return at if at < len(p) else int(np.flatnonzero(p)[-1])


def _by_blocks(p: np.ndarray, uniform: float) -> int | None:
    """Does what `draw` does; returns None if a border is too near, or p too short for blocks to
    pay."""
    if len(p) < 4 * _BLOCK:
        return None
    whole = len(p) // _BLOCK * _BLOCK
    blocks = p[:whole].reshape(-1, _BLOCK).sum(1)
    ends = np.cumsum(np.append(blocks, p[whole:].sum()))
    slack = 8 * len(p) * 2.0**-53 * ends[-1]
    target = uniform * ends[-1]
    block = int(np.searchsorted(ends, target, side="right"))
    if block == len(ends):
        return None
    before = ends[block - 1] if block else 0.0
    inner = before + np.cumsum(p[block * _BLOCK : (block + 1) * _BLOCK])
    at = int(np.searchsorted(inner, target, side="right"))
    below = inner[at - 1] if at else before
    if at == len(inner) or target - below < slack or inner[at] - target < slack:
        return None
    return block * _BLOCK + at


def adjusted(
    logits: np.ndarray, history: Sequence[int], how: Sampling, new: Sequence[int] = ()
) -> np.ndarray:
    """Returns the logits after biases and penalties, in float64 if there are any."""
    if how.logit_bias:
        logits = np.array(logits, np.float64)
        ids, by = zip(*how.logit_bias)
        logits[list(ids)] += by
    if how.repetition_penalty != 1.0 and len(history):
        logits = penalise(logits, history, how.repetition_penalty)
    if (how.presence_penalty or how.frequency_penalty) and len(new):
        seen, counts = np.unique(np.asarray(new, np.int64), return_counts=True)
        logits = np.array(logits, np.float64)
        logits[seen] -= how.presence_penalty + counts * how.frequency_penalty
    return logits


def penalise(logits: np.ndarray, history: Sequence[int], penalty: float) -> np.ndarray:
    """Divides the positive and multiplies the negative logits of ids seen before (Keskar et al.,
    arXiv:1909.05858). Returns float64, in which none overflows."""
    seen = np.unique(np.asarray(history, dtype=np.int64))
    out = np.array(logits, dtype=np.float64)
    values = out[seen]
    out[seen] = np.where(values > 0, values / penalty, values * penalty)
    return out


def distribution(logits: np.ndarray, how: Sampling) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ids (int64 [n]) that survive top_k, top_p and min_p, and their probabilities
    (float64 [n], not normalised). They are in the order of ids; after top_p most probable first
    (ties by id)."""
    ids = _all(len(logits))
    if 0 < how.top_k < len(logits):
        ids = _leading(logits, how.top_k)
        logits = logits[ids]
    p = logits.astype(np.float64)  # reuses memory: fresh memory costs more than the sums
    p -= p.max()
    with np.errstate(over="ignore"):  # far below the largest at a tiny temperature: probability 0
        if how.temperature != 1.0:
            p /= how.temperature
        np.exp(p, out=p)
    if how.top_p < 1.0:
        kept = _nucleus(p, how.top_p)
        ids, p = ids[kept], p[kept]
    if how.min_p > 0.0:
        kept = np.flatnonzero(p >= how.min_p * p.max())
        ids, p = ids[kept], p[kept]
    return ids, p


@lru_cache(maxsize=8)
def _all(n: int) -> np.ndarray:
    """Returns the ids 0 to n - 1: made once, since fresh memory costs more than all else here."""
    ids = np.arange(n)
    ids.flags.writeable = False
    return ids


def _nucleus(p: np.ndarray, top_p: float) -> np.ndarray:
    """Returns the indices of the fewest most probable entries whose sum reaches top_p of the total
    (at least one), most probable first. Sorts only as many as it needs: usually a few hundred."""
    wanted, k = top_p * p.sum(), 256
    while True:
        if k < len(p):  # includes all entries equal to the k-th, so that ties stay in index order
            found = np.flatnonzero(p >= np.partition(p, len(p) - k)[len(p) - k])
        else:
            found = np.arange(len(p))
        order = found[np.argsort(-p[found], kind="stable")]
        sums = np.cumsum(p[order])
        if sums[-1] >= wanted or len(found) == len(p):
            before = sums - p[order]  # mass before each entry: the first always stays
            few: np.ndarray = order[before < wanted]
            return few
        k *= 8


def _leading(logits: np.ndarray, k: int) -> np.ndarray:
    """Returns the ids of the k largest logits, in id order; ties at the edge go to the lowest
    ids."""
    edge = np.partition(logits, len(logits) - k)[len(logits) - k]
    above = np.flatnonzero(logits > edge)
    ties = np.flatnonzero(logits == edge)[: k - len(above)]
    return np.sort(np.concatenate([above, ties]))
