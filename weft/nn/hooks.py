"""Functions that a module calls before and after its forward function, as in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.core.records import dataclass


@dataclass(frozen=True, eq=False)
class Hook:
    """A function that a module calls; `remove` ends that.

    >>> layer = nn.Linear(2, 2)
    >>> hook = layer.register_forward_hook(lambda module, args, result: result * 0 + 1)
    >>> layer(weft.ones(2)).tolist()
    [1.0, 1.0]
    >>> hook.remove()
    """

    module: Any
    call: Callable[..., Any]
    before: bool

    def remove(self) -> None:
        """Takes the hook out of its module; does nothing the second time."""
        self.module._hooks = tuple(h for h in self.module._hooks if h is not self)


def forward(module: Any, hooks: tuple[Hook, ...], args: Any, kwargs: dict[str, Any]) -> Any:
    """Calls a module's forward function with its hooks, in the order in which they came."""
    for hook in hooks:
        if hook.before and (new := hook.call(module, args)) is not None:
            args = new if isinstance(new, tuple) else (new,)
    result = module.forward(*args, **kwargs)
    for hook in hooks:
        if not hook.before and (new := hook.call(module, args, result)) is not None:
            result = new
    return result
