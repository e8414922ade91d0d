"""Calls of every public name with arguments that make no sense, drawn from the name alone, so that
each run makes the same ones. `python tests/robust/bad_arguments.py [NAME] [COUNT]` prints what came
out that is no error of weft's."""

from __future__ import annotations

import inspect
import random
import resource
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import weft
import weft.torch as torch
from weft.errors import InternalError, WeftError

LONGEST = 5  # seconds that a call may take
MOST = 1 << 30  # bytes of memory that a call may take
# These write files, wait, start processes, change settings for all, or call what they are given.
_SETTINGS = """
    save load compile export manual_seed seed set_default_dtype set_default_device gradcheck
    set_num_threads set_printoptions set_rng_state checkpoint get_worker_info synchronize
    set_grad_enabled use_deterministic_algorithms set_float32_matmul_precision trace devices
    Program Tensor Dataset IterableDataset Function Transformer dtype
"""
LEFT_OUT = frozenset(_SETTINGS.split())


def spaces() -> dict[str, Any]:
    """The public namespaces, by the names that their users write."""
    t = torch
    return {
        "weft": weft, "weft.functional": weft.functional, "weft.linalg": weft.linalg,
        "weft.nn": weft.nn, "weft.nn.init": weft.nn.init, "weft.optim": weft.optim,
        "weft.func": weft.func, "weft.data": weft.data,
        "torch": t, "torch.linalg": t.linalg, "torch.special": t.special, "torch.func": t.func,
        "torch.masked": t.masked, "torch.nn": t.nn, "torch.nn.functional": t.nn.functional,
        "torch.nn.init": t.nn.init, "torch.nn.utils": t.nn.utils,
        "torch.nn.utils.rnn": t.nn.utils.rnn, "torch.optim": t.optim,
        "torch.optim.lr_scheduler": t.optim.lr_scheduler, "torch.utils.data": t.utils.data,
        "torch.distributions": t.distributions, "torch.autograd": t.autograd,
        "torch.signal.windows": t.signal.windows, "torch.amp": t.amp,
    }  # fmt: skip


def names() -> list[str]:
    """Every public function and class of `spaces`, and the methods of both tensors."""
    found = []
    for space, module in spaces().items():
        for name in sorted(getattr(module, "__all__", None) or dir(module)):
            value = getattr(module, name, None)
            known = callable(value) and not name.startswith("_") and name not in LEFT_OUT
            abstract = inspect.isabstract(value) or isinstance(value, weft.DType)
            abstract = abstract or (isinstance(value, type) and issubclass(value, tuple))
            if known and not abstract and getattr(value, "__module__", "weft").startswith("weft"):
                found.append(f"{space}.{name}")
    for cls in ("weft.Tensor", "torch.Tensor"):
        owner = weft.Tensor if cls == "weft.Tensor" else torch.Tensor
        for name in sorted(dir(owner)):
            usual = name[0] != "_" or name == "__getitem__"
            if usual and name not in LEFT_OUT and inspect.isfunction(getattr(owner, name)):
                found.append(f"{cls}.{name}")
    return found


def named(name: str) -> Callable[..., Any]:
    """The function, class or method of a name in `names`."""
    space, _, last = name.rpartition(".")
    owner = {"weft.Tensor": weft.Tensor, "torch.Tensor": torch.Tensor}.get(space)
    found: Callable[..., Any] = getattr(owner or spaces()[space], last)
    return found


def odd(draw: random.Random) -> Any:
    """A value that few parameters take."""
    return draw.choice([
        None, "x", "mean", "", b"\0", -1, 0, 7, -9, 1.5, float("nan"), float("inf"), 2**31, 2**63,
        10**30, True, [], {}, (), (1,) * 70, [[1], [1, 2]], (10**6, 10**6), (-1, 2), [None], ...,
        slice(None), object(), int, "float32", weft.int8, torch.float64, torch.float16,
        np.array([1j]), np.array(["a"]), np.array([object()]), np.zeros(3), [1, 2], [1.5, "y"],
        {"a": 1}, {1}, 1j, range(3), "cpu", "nowhere:0", np.float64(2.0), np.int64(-3),
    ])  # fmt: skip


def tensor(draw: random.Random, space: str) -> Any:
    """A tensor of any shape and dtype, of the namespace."""
    shape = draw.choice([(), (0,), (3,), (2, 3), (3, 3), (2, 0, 3), (1, 2, 3), (2, 2, 4, 4)])
    dtype = draw.choice(["float32"] * 5 + ["int32", "bool", "float16", "uint8", "int64", "float64"])
    made = np.random.default_rng(draw.randrange(99)).integers(-3, 4, shape).astype(dtype)
    made = np.where(made == 3, np.nan, made) if dtype == "float32" and draw.random() < 0.3 else made
    make = torch.tensor if space.startswith("torch") else weft.tensor
    return make(made.astype(dtype))


def calls(name: str, count: int) -> Iterator[tuple[list[Any], dict[str, Any]]]:
    """Arguments for `count` calls."""
    draw = random.Random(name)
    space = name.rpartition(".")[0]
    try:
        parameters = list(inspect.signature(named(name)).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    first = 1 if space.endswith(".Tensor") else 0
    least = sum(p.default is p.empty and p.kind in (0, 1) for p in parameters)
    operator = name.endswith("__")
    keywords = [] if operator else [p.name for p in parameters[first:] if p.kind in (1, 3)]

    def value() -> Any:
        kind = draw.random()
        if kind < 0.45:
            return tensor(draw, space)
        if kind < 0.55:
            return [tensor(draw, space) for _ in range(draw.randrange(3))]
        return draw.choice([0, 1, -1, 2, 3]) if kind < 0.7 else odd(draw)

    for _ in range(count):
        total = 2 if operator else max(first, least + draw.choice([-1, 0, 0, 0, 0, 0, 1, 2]))
        args = [tensor(draw, space)] if first else []
        args += [value() for _ in range(total - first)]
        if args and not first and draw.random() < 0.6:
            args[0] = tensor(draw, space)
        given = draw.choices(keywords, k=draw.choice([0, 0, 1, 2])) if keywords else []
        yield args, {k: value() for k in given}


@contextmanager
def bounded() -> Iterator[None]:
    def late(*_: Any) -> None:
        raise TimeoutError(f"took over {LONGEST} seconds")

    before = signal.signal(signal.SIGALRM, late)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MOST, limits[1]))
    signal.alarm(LONGEST)
    try:
        yield
    finally:
        signal.alarm(0)
        resource.setrlimit(resource.RLIMIT_AS, limits)
        signal.signal(signal.SIGALRM, before)


def wrongs(name: str, count: int) -> list[str]:
    """What came out of the calls of a name that is no error of weft's in two lines."""
    found = []
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for args, kwargs in calls(name, count):
            shown = f"{name}(*{shorter(args)}, **{shorter(kwargs)})"
            try:
                with bounded():
                    named(name)(*args, **kwargs)
            except InternalError as error:
                found.append(f"{shown}: internal: {error!s:.200}")
            except TimeoutError:
                pass  # a huge order or count, which takes long in PyTorch too
            except WeftError as error:
                if not str(error) or str(error).count("\n") > 1 or len(str(error)) > 1000:
                    found.append(f"{shown}: a message of {len(str(error))} characters")
            except Exception as error:
                found.append(f"{shown}: {type(error).__name__}: {error!s:.200}")
    return found


def shorter(value: Any) -> str:
    if isinstance(value, weft.Tensor):
        return f"{value.dtype.name}{list(value.shape)}"
    if isinstance(value, list):
        return f"[{', '.join(map(shorter, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{k}: {shorter(v)}' for k, v in value.items())}}}"
    return repr(value)[:60]


if __name__ == "__main__":
    start, many = (sys.argv[1:] + ["", "20"][len(sys.argv) - 1 :])[:2]
    for one in names():
        if one.startswith(start):
            for line in wrongs(one, int(many)):
                print(line, flush=True)
