"""torch.autograd.graph: the operations that tensors were computed by."""

from __future__ import annotations

from dataclasses import dataclass

from weft.ops.tape import Tracked
from weft.tensor.core import Tensor


@dataclass(frozen=True, eq=False)
class Node:
    """An operation of a backward pass, by weft's name for it."""

    _tape: Tracked

    def name(self) -> str:
        """The operation's name in PyTorch's form: "MulBackward0"."""
        if self._tape.pull is None:
            return "AccumulateGrad"
        words = (self._tape.name or "view").replace(".", "_").split("_")
        return "".join(w[:1].upper() + w[1:] for w in words) + "Backward0"

    @property
    def next_functions(self) -> tuple[tuple[Node | None, int], ...]:
        """The operations of the operands, each with 0; None for an operand without gradients."""
        return tuple((Node(x) if isinstance(x, Tracked) else None, 0) for x in self._tape.inputs)

    @property
    def variable(self) -> Tensor | None:
        """The leaf whose gradient this adds up."""
        owner = self._tape.owner
        return owner if isinstance(owner, Tensor) else None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Node) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> int:
        return id(self._tape if self.variable is None else self.variable)

    def __repr__(self) -> str:
        return f"<{self.name()} object at {self._key():#x}>"


def __dir__() -> list[str]:
    return ["Node"]
