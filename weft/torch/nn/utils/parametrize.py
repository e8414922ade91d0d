"""Parametrizations: attributes of modules that are computed from other parameters at each use.

A parametrized module gets a class of its own, a subclass whose property is the attribute. So the
computation is a part of whatever reads the attribute, in a trace as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from weft.core.errors import ShapeError, UsageError
from weft.host.boundary import guard_calls
from weft.tensor.autograd import no_grad
from weft.tensor.core import Tensor as Base
from weft.torch.nn.modules import Module, Parameter
from weft.torch.tensor import Tensor


class _Kept:
    """The values that are computed once while `cached` is open."""

    values: dict[tuple[int, str], Any] | None = None


class ParametrizationList(Module):
    """The functions behind one attribute, "0", "1", ..., and the tensors that the first one takes:
    `original`, or `original0`, `original1`, ... if its right_inverse gives several."""

    def __init__(self, modules: Any, original: Any, unsafe: bool = False) -> None:
        super().__init__()
        self.unsafe, self._count = unsafe, 0
        inner = original
        with no_grad():
            for one in reversed(list(modules)):
                with suppress(NotImplementedError):  # then it starts from the tensor itself
                    inner = one.right_inverse(inner) if hasattr(one, "right_inverse") else inner
        self.is_tensor = isinstance(inner, Base)
        parts = [inner] if self.is_tensor else list(inner)
        self.ntensors = len(parts)
        for name, part in zip(self._names(), parts):
            held = original if self.is_tensor else None
            if held is not None and held.shape == part.shape:
                with no_grad():  # the same leaf: an optimiser may have it
                    held.copy_(part)
            elif isinstance(original, Parameter):
                held = Parameter(part, original.requires_grad)
            else:
                held = part
            if isinstance(held, Parameter):
                held.name = ""
                setattr(self, name, held)
            else:
                self.register_buffer(name, held)
        for one in modules:
            self._add(one)

    def _add(self, one: Any) -> None:
        setattr(self, str(self._count), one)
        self._count += 1

    def _names(self) -> list[str]:
        return ["original"] if self.is_tensor else [f"original{i}" for i in range(self.ntensors)]

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, at: int) -> Any:
        return getattr(self, str(range(self._count)[at]))

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(self._count))

    def forward(self) -> Any:
        """The attribute's value."""
        value = self[0](*(getattr(self, name) for name in self._names()))
        for one in list(self)[1:]:
            value = one(value)
        return value

    def right_inverse(self, value: Any) -> None:
        """Changes the original tensors so that the attribute becomes `value`."""
        with no_grad():
            for one in reversed(list(self)):
                if not hasattr(one, "right_inverse"):
                    raise UsageError(
                        f"{type(one).__name__} has no right_inverse, so nothing can be assigned to "
                        "what it computes"
                    )
                try:
                    value = one.right_inverse(value)
                except NotImplementedError as error:
                    raise UsageError(str(error)) from error
            for name, part in zip(self._names(), [value] if self.is_tensor else value):
                getattr(self, name).copy_(part)


def computed(module: Any, name: str, get: Callable[[Any], Any], put: Any = None) -> None:
    """Gives `module` a class of its own, in which attribute `name` is what `get(module)` gives."""
    kind = type(module)
    if "_computed" not in vars(kind):
        names = {"_computed": frozenset(), "__module__": kind.__module__}
        kind = type(f"Parametrized{kind.__name__}", (kind,), names)
        module.__class__ = kind
    kind._computed |= {name}
    setattr(kind, name, property(get, put))


def restored(module: Any, name: str) -> None:
    """Undoes `computed`."""
    kind = type(module)
    delattr(kind, name)
    kind._computed -= {name}
    if not kind._computed:
        module.__class__ = kind.__bases__[0]


def taken(module: Any, name: str) -> Any:
    """A parameter or buffer of a module, which loses it."""
    held = vars(module).get(name) if isinstance(module, Module) else None
    if not isinstance(held, Base):
        kind = type(module).__name__
        raise UsageError(f"{kind} has no parameter or buffer {name!r} to compute from others")
    delattr(module, name)
    if name in module._buffers:
        module._buffers = {k: v for k, v in module._buffers.items() if k != name}
    return held


def register_parametrization(
    module: Any, tensor_name: str, parametrization: Any, *, unsafe: bool = False
) -> Any:
    """Makes `module.tensor_name` what `parametrization` computes from the tensor there (its
    right_inverse first finds the tensors that it takes), after the parametrizations before it.
    Returns the module. Unless `unsafe`, shape and dtype must stay (ShapeError)."""
    from weft.torch.nn import ModuleDict

    if is_parametrized(module, tensor_name):
        held = module.parametrizations[tensor_name]
        before = held()
        _check(tensor_name, before, parametrization(before), unsafe or held.unsafe)
        held._add(parametrization)
        return module
    before = getattr(module, tensor_name, None)
    shape = (before.shape, before.dtype) if isinstance(before, Base) else None
    original = taken(module, tensor_name)
    made = ParametrizationList([parametrization], original, unsafe)
    made.train(module.training)
    try:
        with no_grad():
            _check(tensor_name, shape, made(), unsafe)
    except Exception:
        setattr(module, tensor_name, original)
        raise
    if "parametrizations" not in vars(module):
        module.parametrizations = ModuleDict()
    module.parametrizations[tensor_name] = made
    computed(
        module, tensor_name, lambda self: _value(self, tensor_name),
        lambda self, value: self.parametrizations[tensor_name].right_inverse(value),
    )  # fmt: skip
    return module


def _check(name: str, before: Any, after: Any, unsafe: bool) -> None:
    shape, dtype = before if isinstance(before, tuple) else (before.shape, before.dtype)
    if not unsafe and (after.shape != shape or after.dtype != dtype):
        raise ShapeError(
            f"register_parametrization: {name} is {dtype.name}{list(shape)}, its parametrization "
            f"gives {after.dtype.name}{list(after.shape)}; give unsafe=True to allow it"
        )


def _value(module: Any, name: str) -> Any:
    if _Kept.values is None:
        return module.parametrizations[name]()
    key = (id(module), name)
    if key not in _Kept.values:
        _Kept.values[key] = module.parametrizations[name]()
    return _Kept.values[key]


def is_parametrized(module: Any, tensor_name: str | None = None) -> bool:
    """True if the module has parametrizations (of the attribute `tensor_name`)."""
    held = vars(module).get("parametrizations") if isinstance(module, Module) else None
    return held is not None and (tensor_name is None or tensor_name in held)


def remove_parametrizations(module: Any, tensor_name: str, leave_parametrized: bool = True) -> Any:
    """Makes the attribute a parameter (or buffer) again, with its present value; or, with
    leave_parametrized=False, the original tensor. Returns the module."""
    if not is_parametrized(module, tensor_name):
        raise UsageError(f"{type(module).__name__}: {tensor_name!r} has no parametrization")
    held = module.parametrizations[tensor_name]
    if not leave_parametrized and not held.is_tensor:
        raise UsageError(
            f"{tensor_name!r} is computed from several tensors: pass leave_parametrized=True"
        )
    with no_grad():
        value = held()
    first: Any = getattr(held, held._names()[0])
    if held.is_tensor and leave_parametrized and first.shape == value.shape:
        with no_grad():
            first.copy_(value)
    restored(module, tensor_name)
    del module.parametrizations[tensor_name]
    if not len(module.parametrizations):
        del module.parametrizations
    if not held.is_tensor or first.shape != value.shape:
        trains = isinstance(first, Parameter)
        first = Parameter(value, first.requires_grad) if trains else Tensor(value.value)
    if isinstance(first, Parameter):
        setattr(module, tensor_name, first)
    else:
        module.register_buffer(tensor_name, first)
    return module


def type_before_parametrizations(module: Any) -> type:
    """The class that the module had before."""
    kind = type(module)
    return kind.__bases__[0] if "_computed" in vars(kind) else kind


@contextmanager
def cached() -> Iterator[None]:
    """Computes each parametrized attribute once while the context is open."""
    before, _Kept.values = _Kept.values, _Kept.values or {}
    try:
        yield
    finally:
        _Kept.values = before


_NAMES = ["ParametrizationList", "cached", "is_parametrized", "register_parametrization",
          "remove_parametrizations", "type_before_parametrizations"]  # fmt: skip
guard_calls(globals(), _NAMES)


def __dir__() -> list[str]:
    return _NAMES
