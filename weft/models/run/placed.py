"""A model's weights where its runners find them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from weft.core.dtypes import DType, as_dtype
from weft.models.arch.weights import Weights

if TYPE_CHECKING:
    from weft.models.weights.kept_order import KeptOrder
    from weft.program.arena import Arena
    from weft.program.device import Buffer, Device
    from weft.program.program import BufferSpec, Program
    from weft.program.recipe import Recipe
    from weft.program.session import Session

Avals = dict[str, tuple[tuple[int, ...], DType]]


class Placed:
    """The weights that a model's runners share. A decoder's include the tables by position and the
    stacked `adapters` (`inputs.with_tables`). `device` is None for the NumPy oracle. `buffers` are
    the weights that are on the device already, by the names of Programs' buffers; packed weights
    exist nowhere else."""

    def __init__(
        self, weights: Weights, device: Device | None, adapters: Sequence[str] = ()
    ) -> None:
        self.weights, self.device = weights, device
        self.adapters = list(adapters)  # by number; runners read it in each step
        self._stacks: dict[str, tuple[BufferSpec, Recipe | None]] = {}  # buffers with adapters
        self.buffers: dict[str, Buffer] = {}
        self.avals = weight_avals(weights)
        self.proved = False  # True once a runner has seen that tokens do not depend on later ones
        self._unkept: list[KeptOrder] = []

    @property
    def target(self) -> Device:
        """The device, which is not the oracle."""
        assert self.device is not None
        return self.device

    @cached_property
    def arena(self) -> Arena:
        """The memory that the Programs' intermediate values share."""
        from weft.program.arena import Arena

        return Arena(self.target)

    def session(
        self, program: Program, state: Mapping[str, Buffer] | None = None, alone: bool = False
    ) -> Session:
        """Opens a Program over the shared weights, with an arena of its own if `alone`. Raises
        OutOfMemoryError."""
        from weft.models.weights.kept_order import KeptOrder
        from weft.program.session import Session

        new = [b for b in program.buffers if b.role == "state" and b.name not in (state or {})]
        order = KeptOrder.of(
            program, self.weights, self.buffers, self.target, sum(b.nbytes for b in new)
        )
        if order is not None:
            found, files = order.found(self.target)
            if not found and order.short:
                order.write(program, self.weights)
                found, files = order.found(self.target)
            self.buffers |= found
            self.weights.files += files
        session = Session(
            program, self.target, self.weights, state, None if alone else self.arena,
            reuse_outputs=True, placed=self.buffers, take=self.weights.take,
        )  # fmt: skip
        self.buffers |= session.weights
        for spec in program.buffers:
            if spec.role == "weight" and ".loras_" in spec.name:
                self._stacks[spec.name] = spec, program.recipes.get(spec.name)
        if order is not None and not found:
            self._unkept.append(order)
        return session

    def refresh(self, stack: Mapping[str, np.ndarray]) -> None:
        """Writes changed arrays of adapters to the device, in its order."""
        from weft.program.weights import arranged

        for name, (spec, recipe) in self._stacks.items():
            value = stack[name if recipe is None else recipe.whole]
            if recipe is not None:
                value = arranged(recipe, spec, value)
            self.target.write(self.buffers[name], np.ascontiguousarray(value))

    def keep(self) -> None:
        """Stores what `session` made and found nowhere; does nothing the next time."""
        while self._unkept:
            self._unkept.pop().keep(self.buffers)


def weight_avals(weights: Mapping[str, np.ndarray]) -> Avals:
    """Returns role -> (shape, dtype)."""
    arrays = weights.outlines if isinstance(weights, Weights) else weights
    return {k: (v.shape, as_dtype(v.dtype)) for k, v in arrays.items()}
