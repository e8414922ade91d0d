"""torch.utils.checkpoint: calls whose intermediate values are computed again for the derivative."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.host.boundary import check_options
from weft.tensor.recomputing import checkpoint as _checkpoint
from weft.torch.tensor import adopt, own, public


@public
def checkpoint(
    function: Callable[..., Any], *args: Any, use_reentrant: bool | None = None,
    preserve_rng_state: bool = True, **kwargs: Any,
) -> Any:  # fmt: skip
    """Returns function(*args, **kwargs), one tensor, without keeping its intermediate values."""

    def run(*given: Any) -> Any:
        return function(*map(adopt, given), **kwargs)

    return own(_checkpoint(run, *args))


@public
def checkpoint_sequential(
    functions: Any, segments: int, input: Any, use_reentrant: bool | None = None, **kwargs: Any
) -> Any:
    """Runs modules one after another, in `segments` parts that are each checkpointed (except for
    the last)."""
    check_options("checkpoint_sequential", kwargs, ["preserve_rng_state"])
    layers = list(functions)
    size = max(len(layers) // segments, 1)
    cuts = [i * size for i in range(segments) if i * size < len(layers)]
    for first, last in zip(cuts, [*cuts[1:], len(layers)]):
        part = layers[first:last]

        def run(x: Any, part: Any = part) -> Any:
            for layer in part:
                x = layer(x)
            return x

        input = run(input) if last == len(layers) else checkpoint(run, input)
    return input


def __dir__() -> list[str]:
    return ["checkpoint", "checkpoint_sequential"]
