"""`weft bench eager` and `weft bench layers`: calls of weft, NumPy and PyTorch in turns.

One text builds a case for every library: weft.torch has PyTorch's names, and the eager cases use
names that all share. Sides take turns in one process, after a pause in which the threads of the
side before go to sleep. NumPy is a side of eager cases, PyTorch of both where it is installed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from typing import Any

import numpy as np

import weft
import weft.torch

Call = Callable[[], object]
Cases = dict[str, dict[str, Call]]  # name of the case -> side -> call
PAUSE = 0.01  # seconds


def _eager(lib: Any, array: Callable[[Any], Any]) -> dict[str, Call]:
    line = np.arange(1, 9, dtype=np.float32)
    x, y = array(line), array(line[::-1].copy())
    m = array(np.arange(16, dtype=np.float32).reshape(4, 4))
    condition = x < y
    to = getattr(x, "astype", None) or x.to
    found: dict[str, Call] = {
        "add": lambda: x + y, "multiply by a number": lambda: x * 2, "less": lambda: x < y,
        "not equal": lambda: x != y, "negative": lambda: -x, "sum": lambda: x.sum(),
        "sum of columns": lambda: m.sum(0), "mean of rows": lambda: m.mean(1),
        "max": lambda: m.max(), "argmax": lambda: x.argmax(), "product": lambda: m @ m,
        "reshape": lambda: m.reshape(2, 8), "transpose": lambda: m.T, "row": lambda: m[0],
        "slice": lambda: m[1:3], "where": lambda: lib.where(condition, x, y),
        "exp": lambda: lib.exp(x), "maximum": lambda: lib.maximum(x, y),
        "cast": lambda: to(lib.int32), "any": lambda: condition.any(),
        "concatenate": lambda: lib.concatenate([x, y]) if lib is np else lib.cat([x, y]),
    }  # fmt: skip
    if lib is np:
        return found
    leaf = lib.tensor(line, requires_grad=True)
    return found | {
        "softmax": lambda: m.softmax(-1),
        "add, with gradient": lambda: leaf + y,
        "exp, with gradient": lambda: lib.exp(leaf),
        "sum, with gradient": lambda: leaf.sum(),
        "row, with gradient": lambda: leaf[0],
    }


def eager_cases() -> Cases:
    """Calls on 8 or 4 x 4 numbers."""
    sides: dict[str, Any] = {"weft": weft, "weft.torch": weft.torch, "numpy": np}
    if find_spec("torch"):
        import torch

        sides["pytorch"] = torch
    made = {name: _eager(lib, getattr(lib, "tensor", np.array)) for name, lib in sides.items()}
    return {case: {s: made[s][case] for s in sides if case in made[s]} for case in made["weft"]}


# Of a layer: what makes it from a library, and the shape of its input.
_LAYERS: dict[str, tuple[Callable[[Any], Any], tuple[int, ...]]] = {
    "lstm": (lambda t: _first(t.nn.LSTM(64, 128)), (64, 16, 64)),
    "gru": (lambda t: _first(t.nn.GRU(64, 128)), (64, 16, 64)),
    "conv_transpose2d": (lambda t: t.nn.ConvTranspose2d(64, 32, 4, 2, 1), (8, 64, 32, 32)),
    "conv_transpose3d": (lambda t: t.nn.ConvTranspose3d(32, 16, 4, 2, 1), (2, 32, 8, 8, 8)),
    "depthwise": (lambda t: t.nn.Conv2d(64, 64, 3, padding=1, groups=64), (8, 64, 32, 32)),
    "grouped": (lambda t: t.nn.Conv2d(64, 64, 3, padding=1, groups=4), (8, 64, 32, 32)),
    "interpolate": (
        lambda t: lambda x: t.nn.functional.interpolate(x, scale_factor=2, mode="bilinear"),
        (4, 64, 64, 64),
    ),
    "group_norm": (lambda t: t.nn.GroupNorm(32, 64), (8, 64, 56, 56)),
    "scatter_add": (lambda t: _scattered(t), (20000, 64)),
    "index_add": (lambda t: _added(t), (20000, 64)),
}


def _first(net: Any) -> Any:
    """A recurrent net whose result is the output alone."""
    whole = net.forward
    net.forward = lambda *inputs: whole(*inputs)[0]
    return net


def _rows(t: Any) -> Any:
    rows = t.tensor(np.random.default_rng(1).integers(0, 2000, 20000))
    return rows.int() if t is weft.torch else rows  # Programs have no int64


def _scattered(t: Any) -> Any:
    at = _rows(t).reshape(-1, 1).expand(20000, 64).clone()
    return lambda x: t.zeros(2000, 64).scatter_add(0, at, x)


def _added(t: Any) -> Any:
    at = _rows(t)
    return lambda x: t.zeros(2000, 64).index_add(0, at, x)


def _layer(t: Any, name: str, backward: bool, wrap: Callable[[Any], Any]) -> Call:
    make, shape = _LAYERS[name]
    t.manual_seed(0)
    layer = make(t)
    x = t.tensor(np.random.default_rng(0).standard_normal(shape, dtype=np.float32))
    if not backward:
        run = wrap(layer)

        def forward() -> object:
            with t.no_grad():
                return run(x)

        return forward
    x.requires_grad_()
    wanted = [x, *(layer.parameters() if hasattr(layer, "parameters") else ())]

    def step() -> Any:
        out = layer(x)
        return list(t.autograd.grad((out * out).sum(), wanted))

    return wrap(step)  # type: ignore[no-any-return]


def layer_cases(threads: int) -> Cases:
    """Layers, forward and with the gradients of input and parameters: weft compiled, PyTorch eager
    on as many threads."""
    cases: Cases = {}
    for name in _LAYERS:
        for backward in (False, True):
            case = f"{name}, with gradients" if backward else name
            cases[case] = {"weft": _layer(weft.torch, name, backward, weft.compile)}
            if find_spec("torch"):
                import torch

                torch.set_num_threads(threads)
                cases[case]["pytorch"] = _layer(torch, name, backward, lambda fn: fn)
    return cases


def run(
    cases: Mapping[str, Mapping[str, Call]],
    repeats: int,
    seconds: float,
    scale: float,
    unit: str,
    tell: Callable[[str], None] = lambda line: None,
) -> dict[str, dict[str, float]]:
    """Case -> f"{side}_{unit}" -> the median of `repeats` rounds, in each of which a side makes
    calls for `seconds`."""
    found: dict[str, dict[str, float]] = {}
    for case, sides in cases.items():
        times: dict[str, list[float]] = {side: [] for side in sides}
        counts = {side: max(1, int(seconds / _timed(call, 3))) for side, call in sides.items()}
        for _ in range(repeats):
            for side, call in sides.items():
                time.sleep(PAUSE)
                call()
                times[side].append(_timed(call, counts[side]))
        found[case] = {
            f"{side}_{unit}": round(statistics.median(each) * scale, 3)
            for side, each in times.items()
        }
        tell(f"{case}: {found[case]}")
    return found


def _timed(call: Call, count: int) -> float:
    """Seconds of a call, the mean of `count`; the first ones, which compile, come before."""
    if count == 3:
        for _ in range(3):
            call()
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


def chosen(cases: Cases, names: Iterable[str]) -> Cases:
    """The cases whose name contains one of these; all without a name."""
    parts = list(names)
    return {n: c for n, c in cases.items() if not parts or any(p in n for p in parts)}
