"""Calls of compiled functions that need nothing but their arrays: a few steps of Python each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from weft.core.trees import Tree, unflatten
from weft.program.session import Session
from weft.tensor.base import tensor_of
from weft.tensor.core import Tensor
from weft.tensor.operands import content

Direct = Callable[[tuple[Any, ...]], Any]


def direct_call(
    session: Session,
    names: Sequence[str],
    tree: Tree,
    guards: Sequence[Callable[[], bool]],
    bound: Sequence[tuple[Tensor, Any]],
) -> Direct | None:
    """Returns a function of a call's arguments (arrays or tensors for the inputs `names`). That
    function gives the results of the compiled function, or None if an argument does not suit the
    Program; then it has done nothing. It also gives None unless `guards` hold and each tensor in
    `bound` has the content paired with it. Returns None for a Program that cannot be called
    directly."""
    found = session.direct(names, Tensor)
    if found is None or not found[0]:
        return None
    makers, play = found
    if not makers:  # A call without results would return None, which means that nothing was done.
        return None

    def several(arguments: tuple[Any, ...]) -> Any:
        if not all(holds() for holds in guards) or any(content(t) is not v for t, v in bound):
            return None
        made = [make() for make in makers]
        if not play(*made, *arguments):
            return None
        return unflatten(tree, [tensor_of(Tensor, array) for array in made])

    if len(makers) > 1 or len(tree.makers) > 1:
        return several
    (make,) = makers

    def single(arguments: tuple[Any, ...]) -> Any:  # loops: generators take twice as long
        for holds in guards:
            if not holds():
                return None
        for tensor, value in bound:
            if content(tensor) is not value:
                return None
        made = make()
        return tensor_of(Tensor, made) if play(made, *arguments) else None

    return single
