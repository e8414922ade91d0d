"""Module: a tree of parameters and buffers with a forward function, as in PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Self

import numpy as np

from weft.core.dtypes import DType
from weft.core.errors import CallError, ModelError, ShapeError, UsageError
from weft.host.foreign import is_foreign, shared_array
from weft.nn import hooks, tree
from weft.nn.parameter import Buffer, Parameter as Parameter
from weft.nn.tree import join
from weft.tensor.autograd import no_grad
from weft.tensor.core import Tensor
from weft.tensor.guards import Watched, members


class Mismatch(NamedTuple):
    """The names that load_state_dict(strict=False) could not match.

    >>> layer = nn.Linear(1, 1)
    >>> layer.load_state_dict({}, strict=False).missing
    ['weight', 'bias']
    """

    missing: list[str]
    unexpected: list[str]


class Module(Watched):
    """The base of all modules. Parameters, buffers and other modules are found among a module's
    attributes, in the order in which they were set; `forward` is what calling it does. See
    docs/training.md for one of your own.

    >>> nn.Linear(3, 2).state_dict()["weight"].shape
    (2, 3)
    """

    _training = True
    _buffers: Mapping[str, bool] = {}  # name -> whether it is part of the state dict
    _hooks: tuple[hooks.Hook, ...] = ()
    _wide: frozenset[str] = frozenset()  # buffers that keep their dtype: sums over many batches

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Sets nothing, so a subclass may omit the call. Raises CallError for arguments."""
        if args or kwargs:
            raise CallError(f"{type(self).__name__}() takes no arguments")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            if self._hooks:
                return hooks.forward(self, self._hooks, args, kwargs)
            return self.forward(*args, **kwargs)
        except RecursionError as error:
            raise UsageError(
                f"{type(self).__name__}: calls of modules nest deeper than Python's limit; put them"
                " side by side (a Sequential of Sequentials runs at any depth), or raise it with "
                "sys.setrecursionlimit"
            ) from error

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A copy with parameters and buffers of its own, however deep modules nest."""
        made: Self = tree.copied(self, memo, Module)
        return made

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if isinstance(value, Buffer) and name not in self._buffers:
            self._buffers = {**self._buffers, name: value.persistent}

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's function; each class defines its own."""
        raise UsageError(f"{type(self).__name__} has no forward function")

    # -- hooks

    def register_forward_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False
    ) -> hooks.Hook:
        """Calls hook(module, args, result) after `forward`, or hook(module, args, kwargs, result);
        what it returns, unless None, takes the result's place. With `prepend` it comes before other
        hooks. A function compiled before does not call it: it is compiled again."""
        return self._hooked(hook, "forward", prepend, with_kwargs)

    def register_forward_pre_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False
    ) -> hooks.Hook:
        """Calls hook(module, args) before `forward`; a result other than None replaces
        the positional arguments. Or hook(module, args, kwargs), which returns both."""
        return self._hooked(hook, "forward_pre", prepend, with_kwargs)

    def register_full_backward_hook(
        self, hook: Callable[..., Any], prepend: bool = False
    ) -> hooks.Hook:
        """Has backward passes call hook(module, grad_input, grad_output) once the gradients of the
        positional arguments are known. A result other than None replaces grad_input.
        Calls in compiled and transformed functions raise TraceError."""
        return self._hooked(hook, "backward", prepend)

    def register_full_backward_pre_hook(
        self, hook: Callable[..., Any], prepend: bool = False
    ) -> hooks.Hook:
        """Has backward passes call hook(module, grad_output) once the gradients of the results are
        known. A result other than None replaces grad_output."""
        return self._hooked(hook, "backward_pre", prepend)

    def _hooked(
        self, hook: Callable[..., Any], kind: str, prepend: bool, with_kwargs: bool = False
    ) -> hooks.Hook:
        made = hooks.Hook(self, hook, kind, with_kwargs)
        self._hooks = (made, *self._hooks) if prepend else (*self._hooks, made)
        return made

    # -- the tree

    def register_buffer(self, name: str, value: Tensor | None, persistent: bool = True) -> None:
        """Makes a tensor that is not trained part of the module, as attribute `name`; with
        persistent=False the state dict leaves it out. Raises UsageError for a name with a dot."""
        if "." in name:
            raise UsageError(f"register_buffer: name {name!r} has a dot; give one without")
        self._buffers = {**self._buffers, name: persistent}
        if value is not None and not value.name:
            value.name = name
        setattr(self, name, value)

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """The modules right below this one."""
        return iter(members(self, _children))

    def children(self) -> Iterator[Module]:
        """The modules right below this one."""
        return (m for _, m in self.named_children())

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """This module (under the name `prefix`) and all below it; each once."""
        seen: set[int] = set()
        for name, module in self._tree(prefix):
            if id(module) not in seen:
                seen.add(id(module))
                yield name, module

    def modules(self) -> Iterator[Module]:
        """This module and all below it; each once."""
        return (m for _, m in self.named_modules())

    def _tree(self, prefix: str) -> Iterator[tuple[str, Module]]:
        return ((path, module) for path, module, before in tree.walk(self, prefix) if before)

    def named_parameters(self, prefix: str = "") -> Iterator[tuple[str, Parameter]]:
        """The parameters with their dotted names; one that has two names is listed once. A
        parameter is called in errors and reports by the longest name it was listed under."""
        seen: set[int] = set()
        for path, module in self._tree(prefix):
            for name, value in members(module, own_parameters):
                if id(value) not in seen:
                    seen.add(id(value))
                    yield _known(value, join(path, name)), value

    def parameters(self) -> Iterator[Parameter]:
        """The parameters; each once."""
        return (p for _, p in self.named_parameters())

    def named_buffers(self, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
        """The buffers with their dotted names, persistent or not."""
        return ((n, t) for n, t, _ in self._all_buffers(prefix))

    def _all_buffers(self, prefix: str) -> Iterator[tuple[str, Tensor, bool]]:
        for path, module in self._tree(prefix):
            for name, value, persistent in module._own_buffers():
                yield _known(value, join(path, name)), value, persistent

    def _own_buffers(self) -> list[tuple[str, Tensor, bool]]:
        found: list[tuple[str, Tensor, bool]] = members(self, _buffers)
        return found

    def buffers(self) -> Iterator[Tensor]:
        """The buffers, persistent or not."""
        return (t for _, t in self.named_buffers())

    def apply(self, fn: Callable[[Module], Any]) -> Self:
        """Calls fn on every module below this one, then on it; returns self."""
        for module in [module for _, module, before in tree.walk(self) if not before]:
            fn(module)
        return self

    # -- training and gradients

    @property
    def training(self) -> bool:
        """True if the module trains. A function compiled in training is valid only in training."""
        return self._training

    def train(self, mode: bool = True) -> Self:
        """Makes this module and all below it train (or not); returns self."""
        for module in self.modules():
            module._training = bool(mode)
        return self

    def eval(self) -> Self:
        """Makes this module and all below it evaluate: train(False)."""
        return self.train(False)

    def requires_grad_(self, on: bool = True) -> Self:
        """Trains, or freezes, every parameter; returns self."""
        for p in self.parameters():
            p.requires_grad_(on)
        return self

    def zero_grad(self) -> None:
        """Forgets the gradients of all parameters."""
        for p in self.parameters():
            p.grad = None

    # -- place

    def to(self, target: Any) -> Self:
        """Moves parameters and buffers to a device, or casts those of floats to a dtype (except
        for running statistics, which stay as they are); returns self. Gradients are moved as
        well."""
        casts = isinstance(target, DType)
        kept = {id(getattr(m, name)) for m in self.modules() for name in m._wide if casts}
        for t in (*self.parameters(), *self.buffers()):
            if casts and (id(t) in kept or not t.dtype.is_float):
                continue
            grad = t.grad
            t.to_(target)
            t.grad = None if grad is None else grad.to(target)  # type: ignore[attr-defined]
        return self

    # -- saved state

    def _state(self) -> dict[str, Tensor]:
        """The content of the state dict, in PyTorch's order: per module its parameters, its
        buffers, then the modules below."""
        out: dict[str, Tensor] = {}
        for path, module in self._tree(""):
            for name, value in members(module, own_parameters):
                out[join(path, name)] = value
            for name, value, persistent in module._own_buffers():
                if persistent:
                    out[join(path, name)] = value
        return out

    def state_dict(self) -> dict[str, np.ndarray]:
        """Copies of all parameters and persistent buffers by their dotted names, which are those
        of PyTorch for the same modules."""
        return {name: np.array(t.numpy()) for name, t in self._state().items()}

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> Mismatch:
        """Takes values by name: NumPy arrays, Tensors or torch tensors, cast to the dtypes here.

        Raises ModelError listing missing and unexpected names (unless strict=False, which returns
        them) and ShapeError listing the names whose shapes differ; then nothing was loaded."""
        mine = self._state()
        found = Mismatch([n for n in mine if n not in state], [n for n in state if n not in mine])
        if strict and (found.missing or found.unexpected):
            raise ModelError(
                f"{type(self).__name__}: missing {_some(found.missing)}; unexpected "
                f"{_some(found.unexpected)}"
            )
        arrays = {name: _array(state[name], t) for name, t in mine.items() if name in state}
        wrong = [
            f"{name} {list(a.shape)} for {list(mine[name].shape)}"
            for name, a in arrays.items()
            if a.shape != mine[name].shape
        ]
        if wrong:
            raise ShapeError(f"{type(self).__name__}: shapes differ: {_some(wrong)}")
        with no_grad():
            for name, array in arrays.items():
                mine[name].assign(Tensor(array).to(mine[name].device))
        return found

    # -- text

    def extra_repr(self) -> str:
        """The text that `repr` shows between the parentheses, besides the modules below: the
        constructor's arguments that are attributes too, where they are not the defaults."""
        return tree.options(self)

    def __repr__(self) -> str:
        return tree.shown(self, Module)


def _children(inside: Mapping[str, Any]) -> list[tuple[str, Module]]:
    return [(name, value) for name, value in inside.items() if isinstance(value, Module)]


def own_parameters(inside: Mapping[str, Any]) -> list[tuple[str, Parameter]]:
    """The parameters among a module's attributes, with their names."""
    return [(name, value) for name, value in inside.items() if isinstance(value, Parameter)]


def _buffers(inside: Mapping[str, Any]) -> list[tuple[str, Tensor, bool]]:
    kept = inside.get("_buffers", {}).items()
    found = ((name, inside.get(name), persistent) for name, persistent in kept)
    return [entry for entry in found if entry[1] is not None]  # type: ignore[misc]


def lacks(module: Module, **options: Any) -> None:
    """Raises UsageError for an option of PyTorch's that is set but not supported."""
    for name, value in options.items():
        if value not in (None, False):
            raise UsageError(f"{type(module).__name__}: {name}={value!r} is not supported")


def _known(t: Tensor, name: str) -> str:
    if not t.name or name.endswith(f".{t.name}"):
        t.name = name
    return name


def _array(value: Any, like: Tensor) -> np.ndarray:
    """A state dict's value on the host in the dtype of `like`."""
    if isinstance(value, Tensor):
        value = value.numpy()
    elif is_foreign(value):
        value = shared_array("load_state_dict", value.cpu() if hasattr(value, "cpu") else value)
    return np.array(value).astype(like.dtype.numpy)


def _some(names: list[str]) -> str:
    rest = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return (", ".join(names[:8]) or "nothing") + rest
