"""The modules of torch.nn: weft.nn's, whose parameters are tensors of weft.torch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any, NamedTuple, Self

from weft import nn
from weft.core.dtypes import DType, bfloat16, float16, float32, float64
from weft.core.errors import CallError
from weft.nn.conv import _Conv as _ConvNd  # noqa: F401
from weft.nn.norm import _BatchNorm  # noqa: F401
from weft.nn.tree import join
from weft.tensor import views
from weft.tensor.core import Tensor as Base
from weft.torch import agreement, placing
from weft.torch.nn import arguments, limits, reprs, unbatched
from weft.torch.nn.attention import attend
from weft.torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence
from weft.torch.tensor import Buffer as Buffer, Parameter as Parameter, index_of, own


class Unmatched(NamedTuple):
    """The names that load_state_dict(strict=False) could not match."""

    missing_keys: list[str]
    unexpected_keys: list[str]

    def __repr__(self) -> str:
        if not self.missing_keys and not self.unexpected_keys:
            return "<All keys matched successfully>"
        return f"_IncompatibleKeys(missing_keys={self[0]}, unexpected_keys={self[1]})"


class Members(MutableMapping[str, Any]):
    """The attributes of one kind of a module."""

    def __init__(self, module: Any, kind: type) -> None:
        self._module, self._kind = module, kind

    def _found(self) -> dict[str, Any]:
        inside = object.__getattribute__(self._module, "__dict__")
        return {name: v for name, v in inside.items() if isinstance(v, self._kind)}

    def __getitem__(self, name: str) -> Any:
        return self._found()[name]

    def __setitem__(self, name: str, value: Any) -> None:
        setattr(self._module, name, value)

    def __delitem__(self, name: str) -> None:
        self._found()[name]
        delattr(self._module, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._found())

    def __len__(self) -> int:
        return len(self._found())


class Module(nn.Module):
    """The base of all modules: see weft.nn.Module."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, own(value) if isinstance(value, Base) else value)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        made = own(super().__call__(*args, **kwargs))
        if type(self).__module__ == __name__:  # a module of one's own may keep what it returns
            views.own_alone(made, (*args, *kwargs.values()))
        return made

    def extra_repr(self) -> str:
        """The text that `repr` shows between the parentheses, besides the modules below."""
        return ""

    def __repr__(self) -> str:
        return reprs.shown(self)

    # -- the tree

    @property
    def _modules(self) -> Members:
        """The modules right below this one, by name; what is set there, is set here."""
        return Members(self, nn.Module)

    @property
    def _parameters(self) -> Members:
        """This module's own parameters, by name; what is set there, is set here."""
        return Members(self, nn.Parameter)

    def register_parameter(self, name: str, param: Any) -> None:
        """Makes a parameter (or None) an attribute."""
        if not (param is None or isinstance(param, nn.Parameter)):
            kind = type(param).__name__
            raise CallError(f"register_parameter: {name} is {kind}; give a Parameter or None")
        setattr(self, name, param)

    def add_module(self, name: str, module: Any) -> None:
        """Makes a module an attribute."""
        setattr(self, name, module)

    register_module = add_module

    def get_submodule(self, target: str) -> Any:
        """The module of a dotted name."""
        found: Any = self
        for part in target.split(".") if target else ():
            below = dict(found.named_children())
            if part not in below:
                raise CallError(f"get_submodule: no module {target!r}; {part!r} is none of "
                                f"{', '.join(below) or 'its modules'}")  # fmt: skip
            found = below[part]
        return found

    def get_parameter(self, target: str) -> Any:
        """The parameter of a dotted name."""
        known = dict(self.named_parameters())
        if target not in known:
            raise CallError(f"get_parameter: no parameter {target!r}; known: {', '.join(known)}")
        return known[target]

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Any]]:
        """The parameters with their dotted names."""
        if recurse:
            return super().named_parameters(prefix)
        own_names = ((n, p) for n, p in super().named_parameters() if "." not in n)
        return ((join(prefix, n), p) for n, p in own_names)

    def parameters(self, recurse: bool = True) -> Iterator[Any]:
        """The parameters; each once."""
        return (p for _, p in self.named_parameters(recurse=recurse))

    # -- gradients, place

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets the gradients of all parameters."""
        super().zero_grad()

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Moves parameters and buffers to a device, or casts those of floats to a dtype."""
        given = [*args, *(kwargs[k] for k in ("device", "dtype") if k in kwargs)]
        for target in given:
            if isinstance(target, DType | str) or hasattr(target, "info"):
                super().to(target if isinstance(target, DType) else str(target))
        return self

    def cpu(self) -> Self:
        """Moves to the CPU."""
        return self.to("cpu")

    def cuda(self, device: Any = None) -> Self:
        """Moves to a CUDA device."""
        return self.to("cuda" if device is None else f"cuda:{device}")

    def float(self) -> Self:
        """Casts floats to float32."""
        return self.to(float32)

    def double(self) -> Self:
        """Casts floats to float64."""
        return self.to(float64)

    def half(self) -> Self:
        """Casts floats to float16."""
        return self.to(float16)

    def bfloat16(self) -> Self:
        """Casts floats to bfloat16."""
        return self.to(bfloat16)

    # -- saved state

    def state_dict(self, prefix: str = "", keep_vars: bool = False) -> dict[str, Any]:
        """Parameters and persistent buffers by their dotted names: the module's own memory, which
        later steps change."""
        return {
            prefix + name: t if keep_vars else own(t.detach()) for name, t in self._state().items()
        }

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Takes values by name; returns the names that did not match. Parameters of lazy modules
        take their shapes too."""
        from weft.torch.nn.lazy import shaped

        shaped(self, state_dict, strict)
        found = super().load_state_dict(state_dict, strict)
        return Unmatched(found.missing, found.unexpected)


def _recurrent(kind: Any) -> Any:
    """The pass of a recurrent module, which takes a PackedSequence too."""

    def forward(self: Any, input: Any, hx: Any = None) -> Any:
        if not isinstance(input, PackedSequence):
            return kind.forward(self, input, hx)
        x, lengths = pad_packed_sequence(input, self.batch_first)
        made, state = kind.forward(self, x, hx, lengths)
        sizes = lengths.tolist()
        packed = pack_padded_sequence(own(made), sizes, self.batch_first, enforce_sorted=False)
        return packed._replace(
            sorted_indices=input.sorted_indices, unsorted_indices=input.unsorted_indices
        ), state

    return forward


_FORWARD = {"MultiheadAttention": attend} | {
    kind.__name__: _recurrent(kind) for kind in (nn.LSTM, nn.GRU, nn.RNN)
}  # what means something else in PyTorch


def _with_torch_tensors(module: nn.Module) -> None:
    """Makes the modules below one, their parameters and buffers weft.torch's."""
    for each in module.modules():
        kind = KINDS.get(type(each))
        if kind is not None and kind.__name__ not in _FORWARD:  # weft's own modules call those
            object.__setattr__(each, "__class__", kind)
        for value in list(object.__getattribute__(each, "__dict__").values()):
            if isinstance(value, Base):
                own(value)


def _checked(kind: Any) -> Any:
    """The pass of a module whose arguments' values are looked at first."""
    check = limits.MODULES[kind.__name__]

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        check(self, *args, **kwargs)
        return kind.forward(self, *args, **kwargs)

    return functools.wraps(kind.forward)(forward)


def _made(kind: Any) -> Any:
    """The class of weft.torch.nn for one of weft.nn."""

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        args, kwargs, place = arguments.taken(kind, args, kwargs)
        kind.__init__(self, *args, **kwargs)
        object.__setattr__(self, "_given", reprs.arguments(kind, args, kwargs))
        _with_torch_tensors(self)
        place = place or [at for at in (placing.chosen(),) if at is not None]
        if place:
            self.to(*place)

    names = {
        "__init__": __init__, "__doc__": kind.__doc__, "__module__": __name__,
        "extra_repr": reprs.extra(kind),
    }  # fmt: skip
    if hasattr(kind, "predict"):
        names["predict"] = lambda self, input: index_of(own(kind.predict(self, input)))
    if kind.__name__ in unbatched.DROPS:
        names["_apply"] = unbatched.dropping(kind)
    if kind.__name__ in _FORWARD:
        names["forward"] = _FORWARD[kind.__name__]
    elif kind.__name__ in limits.MODULES:
        names["forward"] = _checked(kind)
    if kind.__name__ in unbatched.KINDS:
        names["forward"] = unbatched.forward(kind.__name__, names.get("forward", kind.forward))
    if agreement.concerns(kind.__name__):
        names["forward"] = functools.wraps(kind.forward)(
            agreement.checked(kind.__name__, names.get("forward", kind.forward))
        )
    made: Any = type(kind.__name__, (Module, kind), names)  # kind has copies of nn.Module's methods
    return made


KINDS: dict[type, type] = {nn.Module: Module}
for _name in nn.__all__:
    _value = getattr(nn, _name)
    if isinstance(_value, type) and issubclass(_value, nn.Module) and _value is not nn.Module:
        KINDS[_value] = globals()[_name] = _made(_value)


def _times(count: int) -> Callable[[Any], tuple[Any, ...]]:
    return lambda x: tuple(x) if isinstance(x, Iterable) else (x,) * count


_single, _pair, _triple, _quadruple = map(_times, range(1, 5))  # as scripts import them


def __getattr__(name: str) -> Any:
    from weft.core.missing import missing

    raise missing(__name__, name)
