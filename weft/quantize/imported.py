"""Packs the linear weights of an imported graph, with the schemes of `weft quantize`."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

import numpy as np

from weft.core.errors import UsageError
from weft.core.packed import Form
from weft.importers.foreign import Foreign, LinearWeight
from weft.program.device import HOST
from weft.quantize.schemes import Scheme
from weft.quantize.search import Search

Graph = TypeVar("Graph", bound=Foreign)


def quantize_imported(module: Graph, scheme: str = "int8", device: Any = HOST) -> Graph:
    """Returns a copy of a module of from_torch or from_onnx with linear weights packed by `scheme`
    (see `Scheme`). The search for scales runs on `device`.

    In ONNX, linear weights are those of MatMul and Gemm. A weight stays unpacked if another
    operator reads it too (a tied embedding), or if no form divides its rows. The parts become
    buffers "<name>.codes", "<name>.scales", ...; the other weights remain trainable.

    Raises UsageError for an unknown scheme or if no weight can be packed, ModelError for NaN or
    infinities.
    """
    wanted = Scheme(scheme)
    made = copy.deepcopy(module)
    searches: dict[Form, Search] = {}
    packed: dict[str, tuple[LinearWeight, Form]] = {}  # keyed by value
    for weight in made.linear_weights():
        array = np.asarray(made.tensor(weight.dotted).numpy(), np.float32)
        array = np.ascontiguousarray(array.T) if weight.turned else array
        form = wanted.form(array.shape[1]) if array.ndim == 2 else None
        if form is None:
            continue
        if form not in searches:
            searches[form] = Search(form, wanted.scale_dtype, device)
        made.pack(weight, form, searches[form](array))
        packed[weight.value] = weight, form
    if not packed:
        raise UsageError(f"{scheme}: no linear weight of this module can be packed")
    made.reads_packed(packed)
    return made
