"""Derivatives of a function of a model's logits with respect to values inside the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from weft import ops
from weft.core.dtypes import float32
from weft.core.errors import UsageError
from weft.models.arch.config import DecoderConfig
from weft.models.arch.decoder import train_forward
from weft.models.arch.hooks import TrainingHooks
from weft.models.arch.places import WEIGHTS

if TYPE_CHECKING:
    from weft.models.run.placed import Placed
    from weft.tensor.core import Tensor

Objective = Callable[["Tensor"], "Tensor"]
"""Takes the logits, a Tensor float32 [T, vocab]; returns a Tensor of one element."""


def check_differentiable(c: DecoderConfig, names: Sequence[str]) -> None:
    """Raises UsageError for a model without a derivative, or a place without one."""
    if what := c.underivable:
        raise UsageError(f"{c.family} has {what}, which have no derivative here")
    for name in names:
        if name.endswith(WEIGHTS):
            raise UsageError(f"{name} can be read only; take the gradient at attn.q or attn.heads")


def value_and_gradients(
    c: DecoderConfig,
    placed: Placed,
    ids: Sequence[int],
    of: Objective,
    shapes: Mapping[str, tuple[int, ...]],
) -> tuple[float, dict[str, np.ndarray]]:
    """Returns the value of `of`, and its gradient at each place in `shapes`, float32 [T, ...].

    The pass is that of training, in float32. Each place's value has a tensor of zeros added to it,
    whose gradient is the value's."""
    from weft.tensor.compiling import compile as compiled
    from weft.tensor.core import Tensor
    from weft.tensor.derivatives import value_and_grad

    c = replace(
        c, act_dtype=float32, act_by_form=False, kv_dtype=float32, kv_window=0,
        forms=placed.weights.forms,
    )  # fmt: skip
    held = {role: Tensor(placed.weights[role], role) for role in placed.weights}

    def run(text: Tensor, *added: Tensor) -> Tensor:
        zeros = dict(zip(shapes, added))

        def place(name: str, x: Any) -> Any:
            return ops.add(x, zeros[name].value) if name in zeros else x

        values = {role: tensor.value for role, tensor in held.items()}
        logits = train_forward(c, values, text.value, TrainingHooks(place=place, derived=True))
        return of(Tensor(logits))

    both = value_and_grad(run, range(1, 1 + len(shapes)))
    if placed.device is not None:
        both = compiled(both, device=placed.device)
    text = Tensor(np.array([ids], np.int32))
    added = (Tensor(np.zeros((len(ids), *shape), np.float32)) for shape in shapes.values())
    value, found = both(text, *added)
    return float(value.numpy()), {k: np.array(g.numpy()) for k, g in zip(shapes, found)}
