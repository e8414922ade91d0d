"""Linear weights of an imported graph as packed codes: the schemes of `weft quantize`, for models
that came as a graph."""

from __future__ import annotations

import copy
import functools
from collections import Counter
from typing import Any

import numpy as np

from weft.core.errors import UsageError
from weft.core.packed import Form
from weft.importers.foreign import Holder
from weft.importers.imported import Imported, Plan, Step, refs
from weft.importers.ports import Ref
from weft.models.quantize.schemes import Scheme
from weft.models.quantize.search import Search
from weft.nn.module import Module, Parameter
from weft.program.device import HOST
from weft.tensor.core import Tensor

LINEAR = "aten.linear.default"


def quantize_imported(module: Imported, scheme: str = "int8", device: Any = HOST) -> Imported:
    """A copy of the module whose linear weights are packed by `scheme` (see `Scheme`); the search
    for their scales runs on `device`. A weight stays as it is where it is also read by another
    operator (an embedding that is tied to it), or where no form divides its rows. The parts become
    buffers "<name>.codes", "<name>.scales", ...; the rest can be trained on. Raises UsageError
    for an unknown scheme and where there is nothing to pack, ModelError for NaN or infinities."""
    wanted = Scheme(scheme)
    made = copy.deepcopy(module)
    searches: dict[Form, Search] = {}
    packed: dict[str, Form] = {}  # by value
    tensors: list[tuple[str, str]] = []
    names = Counter(id(made.tensor(dotted)) for _, dotted in made.plan.tensors)
    for value, dotted in made.plan.tensors:
        weight = made.tensor(dotted)
        form = wanted.form(weight.shape[1]) if weight.ndim == 2 else None
        if form is None or not _only_linear(made.plan, value) or names[id(weight)] > 1:
            tensors.append((value, dotted))
            continue
        if form not in searches:
            searches[form] = Search(form, wanted.scale_dtype, device)
        _replace(made, dotted, form, searches[form](np.asarray(weight.numpy(), np.float32)))
        packed[value] = form
        tensors += [(f"{value}.{part}", f"{dotted}.{part}") for part in form.parts]
    if not packed:
        raise UsageError(f"{scheme}: no linear weight of this module can be packed")
    made.replan(tensors=tuple(tensors), steps=tuple(_steps(made.plan, packed)))
    return made


def _only_linear(plan: Plan, value: str) -> bool:
    """Whether the value is read as a linear layer's weight alone."""
    reads = Counter(refs((plan.result, [ref for _, ref in plan.writes])))
    linear = 0
    for step in plan.steps:
        reads.update(refs((step.args, step.kwargs)))
        linear += step.op == LINEAR and len(step.args) > 1 and step.args[1] == Ref(value)
    return linear > 0 and reads[value] == linear


def _replace(module: Imported, dotted: str, form: Form, parts: dict[str, np.ndarray]) -> None:
    """A Holder of the parts in the parameter's place."""
    *path, last = dotted.split(".")
    owner: Any = module
    for name in path:
        owner = getattr(owner, name)
    assert isinstance(owner, Module) and isinstance(getattr(owner, last), Parameter)
    held = Holder()
    for part in form.parts:
        held.register_buffer(part, Tensor(parts[part], f"{dotted}.{part}"))
    setattr(owner, last, held)


def _steps(plan: Plan, packed: dict[str, Form]) -> list[Step]:
    """The steps, a dequantize before each that reads a packed weight: a product looks through it,
    and nothing holds the whole matrix for long."""
    found: list[Step] = []
    for step in plan.steps:
        weight = step.args[1] if step.op == LINEAR else None
        if not isinstance(weight, Ref) or weight.name not in packed:
            found.append(step)
            continue
        form, name = packed[weight.name], f"{weight.name}@{len(found)}"
        parts = tuple(Ref(f"{weight.name}.{part}") for part in form.parts)
        run = functools.partial(_dequantized, form)
        found.append(Step("dequantize", run, parts, {}, name, step.where))
        args = (step.args[0], Ref(name), *step.args[2:])
        found.append(Step(step.op, step.run, args, step.kwargs, step.out, step.where))
    return found


def _dequantized(form: Form, codes: Tensor, *others: Tensor) -> Tensor:
    return codes._call("dequantize", *others, **form._asdict())
