"""Functions that a module calls before and after its forward function, and as gradients pass it
backwards, as in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.core.errors import UsageError
from weft.core.records import dataclass
from weft.host.boundary import users
from weft.tensor.core import Tensor
from weft.tensor.hooks import watched


@dataclass(frozen=True, eq=False)
class Hook:
    """A function that a module calls; `remove`, or the end of a `with` block, ends that.

    >>> layer = nn.Linear(2, 2)
    >>> hook = layer.register_forward_hook(lambda module, args, result: result * 0 + 1)
    >>> layer(weft.ones(2)).tolist()
    [1.0, 1.0]
    >>> hook.remove()
    """

    module: Any
    call: Callable[..., Any]
    kind: str  # "forward", "forward_pre", "backward" or "backward_pre"
    with_kwargs: bool = False

    def remove(self) -> None:
        """Takes the hook out of its module; does nothing the second time."""
        self.module._hooks = tuple(h for h in self.module._hooks if h is not self)

    def __enter__(self) -> Hook:
        return self

    def __exit__(self, *error: Any) -> None:
        self.remove()


def forward(module: Any, hooks: tuple[Hook, ...], args: Any, kwargs: dict[str, Any]) -> Any:
    """Calls a module's forward function with its hooks, in the order in which they came."""
    for hook in hooks:
        if hook.kind == "forward_pre":
            args, kwargs = _given(hook, args, kwargs)
    backward = _Backward(module, hooks) if any("back" in h.kind for h in hooks) else None
    if backward is not None:
        args = tuple(backward.before(args))
    result = module.forward(*args, **kwargs)
    for hook in hooks:
        if hook.kind == "forward":
            given = (args, kwargs, result) if hook.with_kwargs else (args, result)
            new = hook.call(module, *given)
            result = result if new is None else new
    return result if backward is None else backward.behind(result)


def _given(hook: Hook, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The arguments that a hook before `forward` leaves."""
    new = hook.call(hook.module, args, kwargs) if hook.with_kwargs else hook.call(hook.module, args)
    if new is None:
        return args, kwargs
    if not hook.with_kwargs:
        return (new if isinstance(new, tuple) else (new,)), kwargs
    if not isinstance(new, tuple) or len(new) != 2:
        raise UsageError(
            f"a forward pre-hook with keywords returned {type(new).__name__}; return None, or a "
            "pair (args, kwargs)"
        )
    return new[0], new[1]


class _Backward:
    """The gradients of one call of a module: those of its results come first, those of its
    positional arguments afterwards."""

    def __init__(self, module: Any, hooks: tuple[Hook, ...]) -> None:
        self.module = module
        self.first = [users(h.call) for h in hooks if h.kind == "backward_pre"]
        self.last = [users(h.call) for h in hooks if h.kind == "backward"]
        self.args: tuple[Any, ...] = ()
        self.awaits_arguments = False
        self.of_results: tuple[Any, ...] = ()

    def before(self, args: tuple[Any, ...]) -> list[Any]:
        """The arguments, behind which the gradients are met."""
        self.args = args
        out = watched("register_full_backward_hook", args, self._of_arguments)
        self.awaits_arguments = any(a is not b for a, b in zip(args, out))
        return out

    def behind(self, result: Any) -> Any:
        """The result, from which the gradients come."""
        several = isinstance(result, tuple | list)
        if not several and not isinstance(result, Tensor):
            raise UsageError(
                f"register_full_backward_hook: {type(self.module).__name__} returned "
                f"{type(result).__name__}; such a hook needs a tensor or a tuple of tensors"
            )
        made = watched(
            "register_full_backward_hook", result if several else (result,), self._of_results
        )
        if not several:
            return made[0]
        return type(result)(*made) if hasattr(result, "_fields") else type(result)(made)

    def _of_results(self, gradients: list[Any]) -> list[Any]:
        now = tuple(gradients)
        for hook in self.first:
            now = _replaced(now, hook(self.module, now))
        self.of_results = now
        if not self.awaits_arguments:
            for hook in self.last:
                hook(self.module, (None,) * len(self.args), now)
        return list(now)

    def _of_arguments(self, gradients: list[Any]) -> list[Any]:
        now = tuple(
            a * 0 if g is None and isinstance(a, Tensor) and a.dtype.is_float else g
            for a, g in zip(self.args, gradients)
        )
        for hook in self.last:
            now = _replaced(now, hook(self.module, now, self.of_results))
        return list(now)


def _replaced(now: tuple[Any, ...], new: Any) -> tuple[Any, ...]:
    """The gradients that a hook leaves."""
    if new is None:
        return now
    given = new if isinstance(new, tuple) else (new,)
    fits = len(given) == len(now) and all(
        a is None or (isinstance(b, Tensor) and a.shape == b.shape) for a, b in zip(now, given)
    )
    if not fits:
        raise UsageError(
            f"a backward hook returned {len(given)} gradients of other shapes or another number "
            f"than the {len(now)} it was given; return None to leave them"
        )
    return given
