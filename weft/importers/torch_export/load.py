"""`from_torch`: what torch.export made, as a Module of weft's."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from weft.core.errors import UsageError
from weft.host.boundary import guarded
from weft.importers.imported import Imported
from weft.importers.torch_export import live, pt2
from weft.importers.torch_export.build import UnsupportedOperators, built
from weft.importers.torch_export.graph import ExportedProgram
from weft.importers.torch_export.memory import Aliased


def _from_torch(program: Any) -> Imported:
    """The Module of `program`: an ExportedProgram of torch.export.export, or the path of a .pt2
    file of torch.export.save, which is read without PyTorch and without unpickling anything.

    It is called as the exported one was: positionally, or by the names of the arguments. Results
    nest as there, with dicts in the place of classes such as transformers' outputs. Parameters and
    buffers have their PyTorch names; tied ones are one tensor. It compiles for every device
    (`weft.compile(module, device=...)`), trains, and saves (`state_dict`). Each call binds dynamic
    sizes, which are checked against the exported ranges; compiled, each signature is traced
    separately.

    64-bit integers are int32: ids and positions, results of argmax, constants (DTypeError for those
    beyond). An index out of range gives NaN (0 for integers), where PyTorch stops. Random operators
    draw from weft's generator. Operators outside docs/torch.md go through PyTorch's decompositions
    where a program is given, not a file. Those that remain raise ModelError with all names and
    places at once. Raises UsageError for other objects, FileFormatError for a file that is damaged.
    """
    if isinstance(program, str | os.PathLike):
        return built(pt2.read(Path(program)))
    if not all(hasattr(program, name) for name in ("graph_signature", "graph_module", "call_spec")):
        raise UsageError(
            f"from_torch: {type(program).__name__} is not an ExportedProgram; give what "
            "torch.export.export(model, args) returns, or the path of a .pt2 file"
        )
    name = type(program).__name__
    try:
        return built(live.read(program, name))
    except (UnsupportedOperators, Aliased) as error:
        return built(_decomposed(program, name, error), decomposed=True)


def _decomposed(program: Any, name: str, error: Exception) -> ExportedProgram:
    """The program with what weft lacks in terms of other operators, and without in-place ones."""
    import torch

    from weft.importers.aten import TABLE

    table = torch.export.default_decompositions()
    for op in [op for op in table if str(op) in TABLE]:
        del table[op]
    try:
        return live.read(program.run_decompositions(table), name)
    except Exception as other:  # PyTorch's own, of any kind: the first error says more
        if isinstance(other, type(error)):
            raise
        raise error from other


from_torch = guarded(_from_torch, "from_torch")
from_torch.__name__ = from_torch.__qualname__ = "from_torch"
