"""`weft.compile`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, overload

from weft.core.errors import CallError
from weft.tensor.compiled import CACHE_SIZE, Compiled


@overload
def compile(
    fn: Callable[..., Any],
    device: Any = None,
    partition: bool = False,
    cache_size: int = CACHE_SIZE,
    frozen: bool = False,
) -> Compiled: ...


@overload
def compile(
    fn: None = None,
    device: Any = None,
    partition: bool = False,
    cache_size: int = CACHE_SIZE,
    frozen: bool = False,
) -> Callable[[Callable[..., Any]], Compiled]: ...


def compile(
    fn: Callable[..., Any] | None = None,
    device: Any = None,
    partition: bool = False,
    cache_size: int = CACHE_SIZE,
    frozen: bool = False,
) -> Any:
    """Returns `fn` as a function that runs on `device` as one Program, traced once per signature.
    Without `fn` it is a decorator with these options: `@weft.compile(device="cpu")`.

    `device` is a name ("cpu", "vulkan", "auto", ...) or a Device; None means the device of the
    first device tensor among the arguments, else the one that WEFT_DEVICE names, else the CPU.
    Arguments and results nest as lists, tuples, dicts and dataclasses, to any depth. Tensors that
    fn reads without being passed them become weights. Tensors that fn assigns to become state,
    which the Program updates in place. A .grad that fn leaves behind becomes state too; the next
    run overwrites it. Arguments of 64-bit integers are taken as int32 (values must fit).

    weft watches its own modules and optimisers in fn. After a change of a parameter, a sub-module
    or a number the next call traces fn again. It cannot watch globals, closures, lists
    and objects of your own, attributes of classes or NumPy arrays changed in place: the Program
    keeps what they were. With WEFT_VERIFY=1 in the environment each call traces fn again, and
    raises TraceError where the trace differs.

    If the device cannot run part of fn (a dtype, a size), an error names the values. With
    `partition=True` those run on the CPU instead, as Programs of their own with transfers in
    between (`report()` lists them). Each result stays on the device that computed it. If the device
    reports too little free memory, the later values also run on the CPU.

    `frozen=True` promises that tensors which fn only reads stay the same (for inference, not
    training). weft then computes once what depends on such tensors alone: a batch norm goes into
    the weights of its convolution. Kernels may keep reordered copies. After an assignment to such a
    tensor weft computes it again. Imported graphs are frozen while they evaluate.

    The Programs of the last `cache_size` signatures are kept; an older one is compiled again.
    Raises UsageError for a cache_size that is not a positive integer.

    >>> scaled = weft.compile(lambda x, w: (x @ w).relu(), device="cpu")
    >>> scaled(weft.tensor([[1.0, -2.0]]), weft.tensor([[3.0, 0.0], [0.0, 1.0]])).tolist()
    [[3.0, 0.0]]
    """
    if fn is None:
        return lambda given: Compiled(given, device, partition, cache_size, frozen)
    if not callable(fn):
        raise CallError(f"compile takes a function first, not {type(fn).__name__}")
    return Compiled(fn, device, partition, cache_size, frozen)
