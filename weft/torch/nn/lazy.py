"""The lazy modules of torch.nn: the first call tells the size of their input, makes their
parameters and turns them into the modules that they stand for."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from weft.core.dtypes import DType, float32
from weft.core.errors import ShapeError, UsageError
from weft.tensor.base import CURRENT
from weft.tensor.core import Tensor as Base
from weft.tensor.guards import attributes, changed
from weft.torch.nn import modules
from weft.torch.nn.modules import Module, Parameter
from weft.torch.randomness import get_rng_state, set_rng_state
from weft.torch.tensor import Tensor

# what the first call tells, and on which axis of its input: that of channels is counted from the
# end where the input may lack a batch
_INFERRED: dict[str, tuple[str, int]] = {
    "Linear": ("in_features", -1),
    **{f"Conv{n}d": ("in_channels", -1 - n) for n in (1, 2, 3)},
    **{f"ConvTranspose{n}d": ("in_channels", -1 - n) for n in (1, 2, 3)},
    **{f"BatchNorm{n}d": ("num_features", 1) for n in (1, 2, 3)},
    **{f"InstanceNorm{n}d": ("num_features", -1 - n) for n in (1, 2, 3)},
}


_OPTIONS = {"affine": True, "track_running_stats": True}  # what an InstanceNorm has if it is lazy


if TYPE_CHECKING:
    _Part = Tensor
else:
    _Part = object  # a base with slots would keep the class from changing


class _Uninitialized(_Part):
    """The part of a tensor that has a dtype and a place, but no shape yet."""

    __slots__ = ()
    _becomes: type

    def _none(self, what: str) -> Any:
        raise UsageError(
            f"{what}: {self.name or 'a tensor'} of a lazy module has no shape yet; call the module "
            "once, on an example"
        )

    @property
    def shape(self) -> Any:
        """Raises UsageError: only the first call tells the shape."""
        return self._none("shape")

    @property
    def value(self) -> Any:
        """Raises UsageError: there is no content yet."""
        return self._none("value")

    def _host(self, *what: Any) -> Any:
        return self._none("the content")

    def materialize(self, shape: Any, device: Any = None, dtype: Any = None) -> None:
        """Makes the tensor one of zeros of a shape."""
        dtype = self.dtype if dtype is None else dtype
        self._become(Tensor(np.zeros(tuple(shape), dtype.numpy)), device)

    def _become(self, made: Base, device: Any = None) -> None:
        moved = Tensor(made.detach().value).to(str(device or self.device))
        self._value = moved._value
        self.__class__ = self._becomes
        changed()

    def to_(self, target: Any) -> Self:
        """Changes the dtype or the place that the content will have."""
        self._value = Tensor(self._value).to(target)._value
        changed()
        return self

    def detach(self) -> Self:
        """Returns this tensor, which is without history."""
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        made = type(self)(requires_grad=self._leaf, device=self.device, dtype=self.dtype)
        made.name = self.name
        memo[id(self)] = made
        return made

    def __init__(
        self, requires_grad: bool = False, device: Any = None, dtype: DType | None = None
    ) -> None:
        Base.__init__(self, np.zeros(0, (dtype or float32).numpy))
        self._leaf = requires_grad
        if device is not None:
            self.to_(str(device))

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"


class UninitializedParameter(_Uninitialized, Parameter):
    """A parameter without a shape, which the first call of its lazy module makes."""

    __slots__ = ()
    _becomes = Parameter

    def __init__(
        self, requires_grad: bool = True, device: Any = None, dtype: DType | None = None
    ) -> None:
        super().__init__(requires_grad, device, dtype)


class UninitializedBuffer(_Uninitialized, Tensor):
    """A buffer without a shape, which the first call of its lazy module makes."""

    __slots__ = ()
    _becomes = Tensor


class LazyModule(Module):
    """The base of lazy modules. See torch.nn.LazyLinear."""

    cls_to_become: Any
    _size: str
    _axis: int

    def has_uninitialized_params(self) -> bool:
        """True if a parameter or buffer has no shape yet."""
        return any(isinstance(t, _Uninitialized) for t in attributes(self).values())

    def initialize_parameters(self, input: Base) -> None:
        """Makes the parameters for an input. Raises ShapeError for one with too few axes."""
        name = type(self).__name__
        if CURRENT.trace is not None:
            raise UsageError(
                f"{name}: its parameters do not exist yet; call the module once before it is "
                "compiled"
            )
        if not -input.ndim <= self._axis < input.ndim:
            raise ShapeError(f"{name}: the input {list(input.shape)} has no axis {self._axis}")
        size, (args, kwargs) = input.shape[self._axis], attributes(self)["_lazy"]
        if self.has_uninitialized_params():
            made = attributes(self.cls_to_become(size, *args, **kwargs))
            for key, t in list(attributes(self).items()):
                if isinstance(t, _Uninitialized):
                    t._become(made[key].cast(t.dtype))
        setattr(self, self._size, size)
        attributes(self)["_given"][self._size] = size

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.initialize_parameters(*args[:1], **kwargs)
        object.__setattr__(self, "__class__", self.cls_to_become)
        changed()
        return self(*args, **kwargs)


def shaped(module: Module, state: Mapping[str, Any], strict: bool) -> None:
    """Gives the uninitialised tensors of a module the shapes that a state dict has for them."""
    mine = module._state()
    if not strict or set(mine) == set(state):
        for name, t in mine.items():
            if isinstance(t, _Uninitialized) and name in state:
                t.materialize(tuple(state[name].shape))


def _made(kind: Any) -> Any:
    """The lazy class of a class of modules."""
    size, axis = _INFERRED[kind.__name__]
    plain = next(k for k, v in modules.KINDS.items() if v is kind)

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        options = {k: v for k, v in kwargs.items() if k not in ("device", "dtype")}
        signature: Any = inspect.signature(plain.__init__)  # type: ignore[misc]
        bound = signature.bind(self, 1, *args, **options)
        if kind.__name__.startswith("Instance"):
            kwargs |= {k: v for k, v in _OPTIONS.items() if k not in bound.arguments}
        drawn = get_rng_state()  # the first call draws the values
        kind.__init__(self, bound.arguments.get("groups", 1), *args, **kwargs)
        set_rng_state(drawn)
        object.__setattr__(self, "_lazy", (args, kwargs))
        object.__setattr__(self, size, 0)
        attributes(self)["_given"][size] = 0
        for name, t in list(attributes(self).items()):
            if isinstance(t, Base) and name != "num_batches_tracked":
                trained = isinstance(t, Parameter)
                cls: Any = UninitializedParameter if trained else UninitializedBuffer
                setattr(self, name, cls(trained, t.device, t.dtype))

    names = {
        "__init__": __init__, "__module__": __name__, "cls_to_become": kind, "_size": size,
        "_axis": axis, "extra_repr": kind.extra_repr,
        "__doc__": f"{kind.__name__} whose first call tells {size}, its input's axis {axis}.",
    }  # fmt: skip
    return type(f"Lazy{kind.__name__}", (LazyModule, kind), names)


LAZY = {f"Lazy{name}": _made(getattr(modules, name)) for name in _INFERRED}
