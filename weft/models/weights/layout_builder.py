"""Collects the weights of a layout."""

from __future__ import annotations

from weft.models.arch.config import Kind, WeightSpec


class LayoutBuilder:
    """A collector of role -> WeightSpec."""

    def __init__(self) -> None:
        self.weights: dict[str, WeightSpec] = {}

    def add(
        self, kind: Kind, role: str, name: str, *shape: int, turned: bool = False,
        divides: tuple[int, ...] = (),
    ) -> None:  # fmt: skip
        self.weights[role] = WeightSpec(name, shape, kind, turned, divides)

    def both(
        self, kind: Kind, role: str, name: str, *shape: int, biased: bool = True,
        divides: tuple[int, ...] = (),
    ) -> None:  # fmt: skip
        """Adds a weight and its bias, if it has one, with the length of the shape's first axis. A
        matrix without other blocks divides as one."""
        divides = divides or (shape[:1] if kind == "matrix" else ())
        self.add(kind, f"{role}.w", f"{name}.weight", *shape, divides=divides)
        if biased:
            self.add("bias", f"{role}.b", f"{name}.bias", shape[0], divides=divides)
