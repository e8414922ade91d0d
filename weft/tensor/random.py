"""Random tensors from a counter: Threefry-2x32 (Salmon et al. 2011, 20 rounds), written in integer
primitives, so the same key gives the same uniform bits on every device.

Element i of a tensor is a function of the key and i alone. Without an explicit key each call takes
the next one of the global stream, which `manual_seed` restarts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from weft import ops
from weft.core import dtypes as dt
from weft.core.dtypes import as_dtype
from weft.core.errors import DTypeError, ShapeError, TraceError, UsageError
from weft.host.forks import lock_of
from weft.ops.batching import Batched, frames
from weft.ops.primitive import reads_values
from weft.ops.rules import dims
from weft.tensor.base import CURRENT, place
from weft.tensor.core import Tensor

if TYPE_CHECKING:
    from weft.tensor.compiled import Compiled

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA
_STREAM = 0x77656674  # "weft": keeps derived keys apart from user counters

BLOCK = 1 << 17  # elements that are drawn at once
MANY = 1 << 22  # elements from which on a kernel draws; NumPy takes 0.1 s for so many

Value = Any


def threefry(key: tuple[Value, Value], counter: tuple[Value, Value]) -> tuple[Value, Value]:
    """Two uint32 words per counter; the four arguments are uint32 values of one shape."""
    schedule = (*key, ops.bitwise_xor(ops.bitwise_xor(key[0], key[1]), _PARITY))
    x, y = ops.add(counter[0], key[0]), ops.add(counter[1], key[1])
    for block in range(5):
        for r in _ROTATIONS[block % 2]:
            x = ops.add(x, y)
            y = ops.bitwise_or(ops.shift_left(y, r), ops.shift_right(y, 32 - r))
            y = ops.bitwise_xor(y, x)
        x = ops.add(x, schedule[(block + 1) % 3])
        y = ops.add(ops.add(y, schedule[(block + 2) % 3]), block + 1)
    return x, y


def _words(key: Tensor, n: int, start: Tensor | None = None) -> tuple[Value, Value]:
    """Two words for each of n elements, from element `start` (uint32[1]) on; key is uint32[2]."""
    halves = (ops.slice_(key.value, (i,), (i + 1,)) for i in (0, 1))
    k0, k1 = (ops.broadcast(h, (n,)) for h in halves)
    index = ops.iota((n,), 0, dt.uint32)
    zero = ops.full_like(index, 0)
    if start is not None:
        index = ops.add(index, ops.broadcast(start.value, (n,)))
    return threefry((k0, k1), (index, zero))


def _unit(word: Value, digits: int = 24) -> Value:
    """The top `digits` bits as a float32 in [0, 1)."""
    whole = ops.cast(ops.shift_right(word, 32 - digits), dt.float32)
    return ops.mul(whole, 2.0**-digits)


def _uniform(words: Sequence[Value], digits: int = 24) -> Value:
    return _unit(words[0], digits)


def _polar(words: Sequence[Value]) -> tuple[Value, Value]:
    """u in (0, 1] and 2 pi v of two words: the same bits in a kernel as in NumPy."""
    a, b = words
    return ops.sub(1.0, _unit(a)), ops.mul(_unit(b), 2.0 * math.pi)


def _from_polar(u: Value, angle: Value) -> Value:
    """Box and Muller 1958: sqrt(-2 log u) cos(2 pi v)."""
    return ops.mul(ops.sqrt(ops.mul(ops.log(u), -2.0)), ops.cos(angle))


def _normal(words: Sequence[Value]) -> Value:
    return _from_polar(*_polar(words))


def _times_high(x: Value, y: Value) -> Value:
    """The upper 32 bits of the products of two uint32, from products of 16 bits."""
    (xl, xh), (yl, yh) = ((ops.bitwise_and(v, 0xFFFF), ops.shift_right(v, 16)) for v in (x, y))
    cross = ops.add(ops.mul(xh, yl), ops.shift_right(ops.mul(xl, yl), 16))
    other = ops.add(ops.mul(xl, yh), ops.bitwise_and(cross, 0xFFFF))
    carried = ops.add(ops.shift_right(cross, 16), ops.shift_right(other, 16))
    return ops.add(ops.mul(xh, yh), carried)


def _below(words: Sequence[Value], span: Tensor) -> Value:
    """0..span-1: two words as a fraction of 64 bits, times the span (uint32[1]; 0 means 2^32). The
    probabilities of two values differ by at most 2^-32 of their size."""
    high, low = words
    limit = ops.broadcast(span.value, high.shape)
    product = ops.mul(high, limit)
    total = ops.add(product, _times_high(low, limit))
    found = ops.add(_times_high(high, limit), ops.cast(ops.less(total, product), dt.uint32))
    return ops.where(ops.equal(limit, 0), high, found)


_KINDS: dict[str, Callable[..., Value]] = {
    **{f"uniform{digits}": partial(_uniform, digits=digits) for digits in (24, 11, 8)},
    "normal": _normal, "below": _below,
}  # fmt: skip
_DIGITS = {dt.float16: 11, dt.bfloat16: 8}  # bits below 1 of each dtype: more could round up to 1


# -- keys ---------------------------------------------------------------------------------------


class _Stream:
    """The global sequence of keys."""

    def __init__(self) -> None:
        self.lock = lock_of(self, "lock")
        self.seed, self.calls = 0, 0

    def next(self) -> np.ndarray:
        reads_values()
        with self.lock:
            number, self.calls = self.calls, self.calls + 1
        return split_key(self.seed, number)


_STREAM_OF_KEYS = _Stream()


def manual_seed(seed: int) -> None:
    """Restarts the global stream: the same seed gives the same numbers from here on.

    >>> weft.manual_seed(7)
    >>> first = weft.randn(3).tolist()
    >>> weft.manual_seed(7)
    >>> weft.randn(3).tolist() == first
    True
    """
    with _STREAM_OF_KEYS.lock:
        _STREAM_OF_KEYS.seed, _STREAM_OF_KEYS.calls = int(seed), 0


def state() -> tuple[int, int]:
    """The seed of the global stream, and the number of keys that it gave."""
    with _STREAM_OF_KEYS.lock:
        return _STREAM_OF_KEYS.seed, _STREAM_OF_KEYS.calls


def set_state(seed: int, calls: int) -> None:
    """Makes the global stream go on from where `state` was called."""
    with _STREAM_OF_KEYS.lock:
        _STREAM_OF_KEYS.seed, _STREAM_OF_KEYS.calls = seed, calls


def draw_seed() -> int:
    """A seed of 63 bits from the next key of the global stream."""
    low, high = (int(word) for word in _STREAM_OF_KEYS.next())
    return low | (high & 0x7FFFFFFF) << 32


def _pair(seed: int) -> np.ndarray:
    """An integer seed as two words (taken modulo 2**64)."""
    whole = seed & ((1 << 64) - 1)
    return np.array([whole & 0xFFFFFFFF, whole >> 32], np.uint32)


def split_key(seed: int, number: int) -> np.ndarray:
    """Key number `number` of a seed: uint32[2]."""
    k0, k1 = _pair(seed)
    counter = (np.array([number & 0xFFFFFFFF], np.uint32), np.array([_STREAM], np.uint32))
    x, y = threefry((np.array([k0]), np.array([k1])), counter)
    return np.concatenate([x, y])


def next_key(key: Tensor) -> Tensor:
    """The key after this one, where it is: its second word, a counter, plus one."""
    step = ops.iota((2,), 0, dt.uint32)  # [0, 1]
    return key._wrap(ops.add(key.value, step))


def example_key(key: Tensor) -> Tensor:
    """The key of a draw without a key argument. A mapped function (vmap) has a key per example, or
    one for all, as its `randomness` says. Raises UsageError where that is "error"."""
    for frame in frames():
        if frame.randomness == "error":
            raise UsageError(
                'vmap: the function draws random numbers; pass randomness="different" or "same", '
                "or give each example a key"
            )
        if frame.randomness == "different":
            number = ops.iota((frame.size,), 0, dt.uint32)
            halves = [ops.broadcast(ops.slice_(key.value, (i,), (i + 1,)), number.shape)
                      for i in (0, 1)]  # fmt: skip
            words = threefry((halves[0], halves[1]), (number, ops.full_like(number, _STREAM)))
            both = ops.concat([ops.reshape(w, (frame.size, 1)) for w in words], 1)
            key = key._wrap(Batched(both, frame))
    return key


def key_of(key: Any) -> Tensor:
    """A random key, given as an int or uint32[2]; None takes the next of the global stream."""
    if key is None:
        if CURRENT.trace is not None:
            raise TraceError(
                "random numbers without a key inside a traced function would be the same at every "
                "run; pass key=, a uint32[2] tensor that the caller changes"
            )
        return example_key(Tensor(_STREAM_OF_KEYS.next()))
    if isinstance(key, int):
        return Tensor(_pair(key))
    out = key if isinstance(key, Tensor) else Tensor(np.asarray(key, np.uint32))
    if out.dtype != dt.uint32 or out.shape != (2,):
        raise UsageError(f"a random key is an int or uint32[2], not {out._known()}")
    return out


# -- tensors ------------------------------------------------------------------------------------

_compiled: dict[str, Compiled] = {}


def _generate(key: Tensor, kind: str, n: int, *more: Tensor) -> Tensor:
    return Tensor(_KINDS[kind](_words(key, n), *more))


def _on_host(key: Tensor, kind: str, n: int, *more: Tensor) -> Tensor:
    """The numbers in NumPy, block after block, so that what lies between stays in the processor's
    caches. Many come from a kernel; they are the same bits."""
    if n >= MANY:
        return Tensor(_many(key, kind, n, *more))
    made: np.ndarray | None = None
    for first in range(0, n, BLOCK):
        count, start = min(BLOCK, n - first), Tensor(np.array([first], np.uint32))
        part = _KINDS[kind](_words(key, count, start), *more)
        made = np.empty(n, part.dtype) if made is None else made
        made[first : first + count] = part
    assert made is not None
    return Tensor(made)


def _exact(key: Tensor, start: Tensor, kind: str, n: int, part: int, *more: Tensor) -> Tensor:
    """The part of a draw that has the same bits everywhere, for elements from `start` on: all but
    the logarithm and the cosine of normal numbers, which are NumPy's. Those have two parts, each
    drawn by itself: one kernel of both would store what they share."""
    words = _words(key, n, start)
    return Tensor(_polar(words)[part] if kind == "normal" else _KINDS[kind](words, *more))


def _many(key: Tensor, kind: str, n: int, *more: Tensor) -> np.ndarray:
    """The numbers from a kernel, on all threads; normal ones are finished in NumPy on as many."""
    from weft.backends import registry
    from weft.tensor.compiled import Compiled

    device, parts = registry.host(), range(2 if kind == "normal" else 1)
    step = BLOCK * (cores := device.caps.cores)
    run = _compiled.setdefault("host", Compiled(_exact, device))
    made = np.empty(n, np.uint32 if kind == "below" else np.float32)

    def finish(first: int, given: Sequence[np.ndarray]) -> None:
        made[first : first + BLOCK] = _from_polar(*given) if len(given) > 1 else given[0]

    with ThreadPoolExecutor(cores, "weft-random") as threads:
        for first in range(0, n, step):
            start = Tensor(np.array([first], np.uint32))
            found = [run(key, start, kind, step, i, *more).numpy() for i in parts]
            places = range(first, min(first + step, n), BLOCK)
            cuts = [slice(at - first, min(at + BLOCK, n) - first) for at in places]
            list(threads.map(finish, places, ([x[cut] for x in found] for cut in cuts)))
    return made


def _draw(kind: str, shape: Any, key: Any, device: Any, *more: Tensor) -> Tensor:
    given = shape[0] if len(shape) == 1 and isinstance(shape[0], Sequence) else shape
    wanted = dims("shape", tuple(given))
    n = math.prod(wanted)
    if n >= 1 << 32:
        raise ShapeError(f"random: {n} elements; a key counts to 2**32")
    source = key_of(key)
    from weft.tensor.device import open_device

    target = None if device is None or source.is_traced else open_device(device)
    if target is None:
        host = n > 0 and isinstance(source.value, np.ndarray)
        make = _on_host if host else _generate
        return make(source, kind, n, *more).reshape(wanted)
    from weft.tensor.compiled import Compiled

    run = _compiled.setdefault(target.info.id, Compiled(_generate, target))
    out: Tensor = run(source, kind, n, *more)
    return out.reshape(wanted)


def rand(*shape: Any, dtype: Any = None, device: Any = None, key: Any = None) -> Tensor:
    """Uniform in [0, 1): the top 24 bits of a word (11 in float16, 8 in bfloat16, so that none
    rounds up to 1). `key`: an int or a uint32[2] tensor."""
    wanted = dt.float32 if dtype is None else as_dtype(dtype)
    if not wanted.is_float:
        raise DTypeError(f"rand: {wanted.name} is not a float; use randint")
    kind = f"uniform{_DIGITS.get(wanted, 24)}"
    return _draw(kind, shape, key, device).cast(wanted)


def randn(*shape: Any, dtype: Any = None, device: Any = None, key: Any = None) -> Tensor:
    """Standard normal (Box and Muller, from the same words on every device)."""
    wanted = dt.float32 if dtype is None else as_dtype(dtype)
    if not wanted.is_float:
        raise DTypeError(f"randn: {wanted.name} is not a float")
    return _draw("normal", shape, key, device).cast(wanted)


def randint(low: int, high: int, *shape: Any, device: Any = None, key: Any = None) -> Tensor:
    """int32 in low..high-1, each as likely as another to 2^-32."""
    if not -(1 << 31) <= low < high <= 1 << 31:
        raise UsageError(f"randint: {low}..{high} is not a range of int32 values")
    span = Tensor(np.array([(high - low) & 0xFFFFFFFF], np.uint32))
    drawn = _draw("below", shape, key, device, span).cast(dt.int32)
    return drawn + low if low else drawn


def gumbel_softmax(
    x: Tensor, tau: float = 1.0, hard: bool = False, axis: int = -1, key: Any = None
) -> Tensor:
    """softmax((x + noise) / tau) along an axis, with standard Gumbel noise: a soft choice, each
    class as likely to be the largest as softmax(x) says (Jang et al., arXiv:1611.01144; Maddison et
    al., arXiv:1611.00712). `hard` gives the choice itself, 1 and zeros, with the gradient of the
    soft one. `key` is as in dropout. Computed in float32 for narrow floats.

    >>> F.gumbel_softmax(weft.tensor([0.0, 100.0]), hard=True, key=7).tolist()
    [0.0, 1.0]
    """
    if not tau > 0:
        raise UsageError(f"gumbel_softmax: tau is {tau}; give a positive number")
    wide = x.cast(dt.compute_dtype(x.dtype))
    noise = -(-rand(x.shape, key=key, device=place(x)).log()).log()
    soft = ((wide + noise) * (1.0 / tau)).softmax(axis)
    if hard:
        best = soft.argmax(axis, keepdims=True)
        places = ops.iota(soft.shape, axis % soft.ndim, dt.int32)
        soft = (best == soft._wrap(places)).cast(soft.dtype) - soft.detach() + soft
    return soft.cast(x.dtype)
