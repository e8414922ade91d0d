"""PyTorch's random functions, from weft's generator: other numbers than PyTorch's for a seed."""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np

from weft.core import dtypes as dt
from weft.core.dtypes import DType
from weft.core.errors import DTypeError, UsageError
from weft.tensor import random
from weft.tensor.base import place
from weft.tensor.core import Tensor
from weft.torch.creation import _dtype, _finished
from weft.torch.expected import want, want_floats, want_rank
from weft.torch.picking import known
from weft.torch.shaping import many
from weft.torch.tensor import function_only, index_of, method_only, own, public, real

# what `random_` draws below without a bound: all integers that a narrow dtype has exactly
_TOPS = {
    dt.bool_: 2, dt.uint8: 1 << 8, dt.int8: 1 << 7, dt.int16: 1 << 15, dt.uint16: 1 << 16,
    dt.float16: (1 << 11) + 1, dt.bfloat16: (1 << 8) + 1,
}  # fmt: skip


class Generator:
    """A stream of random numbers of its own: `manual_seed` restarts it."""

    def __init__(self, device: Any = "cpu") -> None:
        self.device = device
        self._seed, self._drawn = 0, 0

    def manual_seed(self, seed: int) -> Generator:
        """Restarts the stream."""
        if not isinstance(seed, int):
            raise UsageError(f"manual_seed: {seed!r:.40}; expected a whole number")
        self._seed, self._drawn = seed, 0
        return self

    def initial_seed(self) -> int:
        """The seed of the stream."""
        return self._seed

    def seed(self) -> int:
        """Restarts the stream at a number from the system, and returns it."""
        return self.manual_seed(_from_system()).initial_seed()

    def get_state(self) -> Tensor:
        """The place in the stream, for `set_state`."""
        return _packed(self._seed, self._drawn)

    def set_state(self, new_state: Any) -> None:
        """Goes on from a place in the stream."""
        self._seed, self._drawn = _unpacked(new_state)

    def _next(self) -> Tensor:
        """The key of the next draw."""
        self._drawn += 1
        return Tensor(np.array([self._seed & 0xFFFFFFFF, self._drawn], np.uint32))


def manual_seed(seed: int) -> Generator:
    """Restarts the stream of all draws that name no generator."""
    random.manual_seed(seed)
    return Generator().manual_seed(seed)


def _from_system() -> int:
    return int.from_bytes(os.urandom(7), "little")


def _packed(seed: int, drawn: int) -> Tensor:
    """A seed and the number of draws as bytes: uint8[16]."""
    words = (seed & (1 << 64) - 1).to_bytes(8, "little") + drawn.to_bytes(8, "little")
    return own(Tensor(np.frombuffer(words, np.uint8).copy()))  # type: ignore[no-any-return]


def _unpacked(state: Any) -> tuple[int, int]:
    held = np.asarray(state.numpy() if isinstance(state, Tensor) else state)
    if held.dtype != np.uint8 or held.shape != (16,):
        raise UsageError("the state of a generator is uint8[16], as get_state gives it")
    words = held.tobytes()
    return int.from_bytes(words[:8], "little"), int.from_bytes(words[8:], "little")


def seed() -> int:
    """Restarts the stream of all draws at a number from the system, and returns it."""
    return manual_seed(_from_system()).initial_seed()


def initial_seed() -> int:
    """The seed of the stream of all draws."""
    return random.state()[0]


def get_rng_state() -> Tensor:
    """The place in the stream of all draws, for `set_rng_state`."""
    return _packed(*random.state())


def set_rng_state(new_state: Any) -> None:
    """Goes on from a place in the stream of all draws."""
    random.set_state(*_unpacked(new_state))


def _key(generator: Generator | None) -> Any:
    return None if generator is None else generator._next()


def _drawn(of: Any, name: str) -> Any:
    def function(
        *size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False,
        generator: Generator | None = None, layout: Any = None, pin_memory: bool = False,
        names: Any = None,
    ) -> Tensor:  # fmt: skip
        where = None if device is None else str(device)
        made = of(*many(size), dtype=_dtype(dtype), device=where, key=_key(generator))
        return _finished(made, requires_grad)

    def like(
        input: Tensor, *, dtype: Any = None, device: Any = None, requires_grad: bool = False,
        generator: Generator | None = None, layout: Any = None, memory_format: Any = None,
    ) -> Tensor:  # fmt: skip
        at = place(input) if device is None else str(device)
        made = of(*input.shape, dtype=dtype or input.dtype, device=at, key=_key(generator))
        return _finished(made, requires_grad)

    for fn, called in ((function, name), (like, f"{name}_like")):
        fn.__name__ = fn.__qualname__ = called
        fn.__doc__ = of.__doc__
    return function_only(function), function_only(like)


rand, rand_like = _drawn(random.rand, "rand")
randn, randn_like = _drawn(random.randn, "randn")


@function_only
def randint(
    low: int, high: Any = None, size: Any = None, *, dtype: Any = None, device: Any = None,
    requires_grad: bool = False, generator: Generator | None = None, layout: Any = None,
    pin_memory: bool = False,
) -> Tensor:  # fmt: skip
    """Integers from low (0 if there is one bound) to high - 1."""
    if size is None:
        low, high, size = 0, low, high
    if high is None:
        low, high = 0, low
    where = None if device is None else str(device)
    wanted = _dtype(dtype, 0)
    _bounded("randint", int(low), int(high), wanted)
    made = random.randint(int(low), int(high), *many((size,)), device=where, key=_key(generator))
    return _finished(made.cast(wanted), requires_grad)


def _bounded(name: str, low: int, high: int, dtype: DType) -> None:
    """Raises DTypeError for bounds that no integer dtype or bool of this kind reaches."""
    if not dtype.is_float:
        most = 2 if dtype == dt.bool_ else int(np.iinfo(dtype.numpy).max) + 1
        least = 0 if dtype == dt.bool_ else int(np.iinfo(dtype.numpy).min)
        if low < least or high > most:
            raise DTypeError(f"{name}: {low} to {high - 1} for {dtype.name}; it has {least} to "
                             f"{most - 1}")  # fmt: skip


@function_only
def poisson(input: Tensor, generator: Generator | None = None) -> Tensor:
    """Counts whose means are the elements. Raises UsageError for a generator: the counts are drawn
    from the global one."""
    want(generator is None, "poisson", "a generator", "none; seed with manual_seed")
    from weft.torch.distributions import Poisson

    made: Tensor = Poisson(input).sample()
    return made


@function_only
def randint_like(
    input: Tensor, low: int, high: int | None = None, *, dtype: Any = None, device: Any = None,
    requires_grad: bool = False, generator: Generator | None = None, layout: Any = None,
    memory_format: Any = None,
) -> Tensor:  # fmt: skip
    """Integers with the shape, dtype and place of a tensor."""
    low, high = (0, low) if high is None else (low, high)
    _bounded("randint_like", int(low), int(high), dtype or input.dtype)
    made = random.randint(int(low), int(high), *input.shape, device=place(input),
                          key=_key(generator))  # fmt: skip
    return _finished(made.cast(dtype or input.dtype), requires_grad)


@function_only
def randperm(
    n: int, *, dtype: Any = None, device: Any = None, generator: Generator | None = None,
    requires_grad: bool = False, layout: Any = None, pin_memory: bool = False,
) -> Tensor:  # fmt: skip
    """0..n-1 in a random order."""
    made = random.rand(n, key=_key(generator)).argsort(0)
    made = made if device is None else made.to(str(device))
    return _finished(made.cast(_dtype(dtype, 0)))


@public
def bernoulli(input: Tensor, p: Any = None, *, generator: Generator | None = None) -> Tensor:
    """1 with the probabilities that the tensor holds (or with p), else 0."""
    chance = input if p is None else p
    if isinstance(chance, Tensor):
        want_floats("bernoulli", chance)
    held = known(chance) if isinstance(chance, Tensor) else np.asarray(chance)
    if held is not None and not bool(np.all((held >= 0) & (held <= 1))):
        raise UsageError("bernoulli: probabilities are 0..1")
    u = random.rand(*input.shape, device=place(input), key=_key(generator))
    return (u < chance).cast(input.dtype)


@function_only
def normal(
    mean: Any = 0.0, std: Any = 1.0, size: Any = None, *, dtype: Any = None, device: Any = None,
    generator: Generator | None = None, requires_grad: bool = False, layout: Any = None,
    pin_memory: bool = False,
) -> Tensor:  # fmt: skip
    """Normal numbers of a mean and a standard deviation."""
    spread = known(std) if isinstance(std, Tensor) else np.asarray(std)
    if spread is not None and bool(np.any(spread < 0)):
        raise UsageError("normal: std has values below 0")
    like = next((x for x in (mean, std) if isinstance(x, Tensor)), None)
    shape = size if size is not None else np.broadcast_shapes(
        *(x.shape for x in (mean, std) if isinstance(x, Tensor))
    )  # fmt: skip
    wanted = _dtype(dtype) if like is None else like.dtype
    where = (None if device is None else str(device)) if like is None else place(like)
    z = random.randn(*many((shape,)), dtype=wanted, device=where, key=_key(generator))
    return _finished((z * std + mean).cast(wanted), requires_grad)


@public
def multinomial(
    input: Tensor, num_samples: int, replacement: bool = False, *,
    generator: Generator | None = None,
) -> Tensor:  # fmt: skip
    """Indices drawn from rows of weights: by the largest of log w + Gumbel noise (Gumbel-max)."""
    want_rank("multinomial", input, 1, 2)
    want(num_samples > 0, "multinomial", f"{num_samples} samples", "one or more")
    weights = real(input)
    weights = weights.cast(dt.compute_dtype(weights.dtype))
    rows = weights if weights.ndim == 2 else weights.unsqueeze(0)
    if not replacement and num_samples > rows.shape[-1]:
        raise UsageError(
            f"multinomial: {num_samples} of {rows.shape[-1]} without replacement; ask for less"
        )
    if not rows.is_traced:
        held = rows.detach().numpy()
        if not (np.isfinite(held).all() and (held >= 0).all() and (held.sum(-1) > 0).all()):
            raise UsageError("multinomial: weights are finite, 0 or more, and not all 0 in a row")
    draws = num_samples if replacement else 1
    shape = (rows.shape[0], draws, rows.shape[1])
    u = random.rand(*shape, device=place(input), key=_key(generator))
    noisy = rows.log().unsqueeze(1) - (-(u.maximum(1e-30)).log()).log()
    noisy = (rows > 0).unsqueeze(1).where(noisy, -math.inf)
    found = noisy.argmax(-1) if replacement else noisy.squeeze(1).topk(num_samples, -1)[1]
    return index_of(found if weights.ndim == 2 else found.squeeze(0))  # type: ignore[no-any-return]


def _spread(x: Tensor, key: Any) -> Tensor:
    """Uniform numbers in (0, 1) in the shape of x, in float32."""
    u = random.rand(*x.shape, device=place(x), key=key)
    return (u + 2.0**-25).minimum(1 - 2.0**-24)


@method_only
def uniform_(
    input: Tensor, a: float = 0.0, b: float = 1.0, *, generator: Generator | None = None
) -> Tensor:
    """Takes uniform numbers in [a, b)."""
    want(a <= b, "uniform_", f"{a} to {b}", "an end of the start or more")
    u = random.rand(*input.shape, device=place(input), key=_key(generator))
    return input.assign((u * (b - a) + a).cast(input.dtype))


@method_only
def normal_(
    input: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: Generator | None = None
) -> Tensor:
    """Takes normal numbers."""
    want(std >= 0, "normal_", f"std {std}", "0 or more")
    z = random.randn(*input.shape, device=place(input), key=_key(generator))
    return input.assign((z * std + mean).cast(input.dtype))


@method_only
def exponential_(
    input: Tensor, lambd: float = 1.0, *, generator: Generator | None = None
) -> Tensor:
    """Takes exponentially distributed numbers."""
    want(lambd > 0, "exponential_", f"lambd {lambd}", "above 0")
    made = -_spread(input, _key(generator)).log() / lambd
    return input.assign(made.cast(input.dtype))


@method_only
def cauchy_(
    input: Tensor, median: float = 0.0, sigma: float = 1.0, *, generator: Generator | None = None
) -> Tensor:
    """Takes numbers of Cauchy's distribution."""
    want(sigma > 0, "cauchy_", f"sigma {sigma}", "above 0")
    angle = (_spread(input, _key(generator)) - 0.5) * math.pi
    return input.assign((angle.sin() / angle.cos() * sigma + median).cast(input.dtype))


@method_only
def log_normal_(
    input: Tensor, mean: float = 1.0, std: float = 2.0, *, generator: Generator | None = None
) -> Tensor:
    """Takes numbers whose logarithms are normal."""
    want(std > 0, "log_normal_", f"std {std}", "above 0")
    z = random.randn(*input.shape, device=place(input), key=_key(generator))
    return input.assign((z * std + mean).exp().cast(input.dtype))


@method_only
def geometric_(input: Tensor, p: float, *, generator: Generator | None = None) -> Tensor:
    """Takes the numbers of trials up to the first success."""
    want(0 < p < 1, "geometric_", f"p {p}", "between 0 and 1")
    made = (_spread(input, _key(generator)).log() / math.log1p(-p)).ceil()
    return input.assign(made.cast(input.dtype))


@method_only
def bernoulli_(input: Tensor, p: Any = 0.5, *, generator: Generator | None = None) -> Tensor:
    """Takes 1 with the probability p, else 0."""
    return input.assign(bernoulli(input, p, generator=generator).cast(input.dtype))


@method_only
def random_(
    input: Tensor, low: int = 0, high: int | None = None, *, generator: Generator | None = None
) -> Tensor:
    """Takes integers from low to high - 1."""
    top = high if high is not None else low or _TOPS.get(input.dtype, 1 << 24)
    low = low if high is not None else 0
    drawn = random.randint(low, top, *input.shape, device=place(input), key=_key(generator))
    return input.assign(drawn.cast(input.dtype))
