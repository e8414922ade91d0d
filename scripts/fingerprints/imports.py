"""Imported graphs: ONNX's node tests, quantised ONNX nets, ATen's operators, torch.export files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import weft
from fingerprints.sources import Built, Source, table, traced
from weft.core.errors import WeftError
from weft.graph.ir import Graph
from weft.importers import from_onnx, from_torch
from weft.importers.aten import TABLE, entry
from weft.quantize.imported import quantize_imported

TORCH = ("deberta-v2", "falcon", "swin", "vit", "patchtst", "mamba")
QUANTISED = [(form, kind) for form in ("QDQ", "QOperator") for kind in ("QUInt8", "QInt8")]


def _called(fn: Any, arrays: list[np.ndarray]) -> Graph | None:
    """The graph that a call with these arrays compiles; None if it cannot be traced, which its own
    tests cover."""
    try:
        return traced(lambda: weft.compile(fn, device="cpu")(*arrays))
    except (WeftError, LookupError, TypeError):
        return None


# -- ONNX -----------------------------------------------------------------------------------------


def _onnx(name: str, folder: Path) -> Built:
    """Every node test that is traced; the first of each operator is compiled."""
    from onnx_cases import cases

    met: set[str] = set()
    for case in cases():
        first = case.operator not in met
        try:
            made = from_onnx(case.model)
        except WeftError:
            continue
        graph = _called(made, [np.asarray(x) for x in case.calls[0][0]])
        if graph is not None:
            met.add(case.operator)
            yield f"{case.operator}.{case.name}" if first else f"-{case.name}", graph


def _quantised(name: str, folder: Path) -> Built:
    import onnxruntime.quantization as tool
    from test_onnx_quantised import _quantized_net

    form, kind = name.split(".")
    path = _quantized_net(folder, tool.QuantFormat[form], tool.QuantType[kind], False)
    graph = _called(from_onnx(path), [np.zeros((2, 3, 9, 10), np.float32)])
    assert graph is not None
    yield "net", graph


def _packed(scheme: str, folder: Path) -> Built:
    """A graph whose linear weights weft packs."""
    import onnx
    from onnx_kit import rows, single

    x = rows(3, 64)
    model = single("MatMul", {"x": x, "w": rows(64, 32, seed=1)}, ["w"])
    assert isinstance(model, onnx.ModelProto)
    graph = _called(quantize_imported(from_onnx(model), scheme), [x])
    assert graph is not None
    yield "matmul", graph


# -- PyTorch --------------------------------------------------------------------------------------


def aten() -> list[str]:
    """Operators with drawn arguments (tests/importers/aten_cases.py)."""
    from aten_cases import CASES

    return [name for name in TABLE if name in CASES]


def _aten(name: str, folder: Path) -> Built:
    """Every operator of the table as a function of its tensors; those that need their values are
    left out."""
    from aten_cases import CASES, Draw
    from test_aten import _weft

    for each in aten():
        drawn = CASES[each](Draw((3, 4), 0))
        keywords = drawn[-1] if drawn and isinstance(drawn[-1], dict) else {}
        args = _weft(list(drawn[: len(drawn) - 1] if keywords else drawn))
        named = {k: _weft(v) for k, v in keywords.items()}
        found = entry(each)
        places = [i for i, x in enumerate(args) if isinstance(x, weft.Tensor)]

        def call(*given: Any, args: Any = args, places: Any = places, f: Any = found) -> Any:
            whole = list(args)
            for i, x in zip(places, given):
                whole[i] = x
            return f.run(*whole, **named)  # noqa: B023

        graph = _called(call, [args[i] for i in places])
        if graph is not None:
            yield each.removeprefix("aten."), graph


def _torch(name: str, folder: Path) -> Built:
    """A model of transformers, exported, and read from the file that it was saved in."""
    import torch
    import transformers
    from torch_zoo import ZOO, example

    torch.manual_seed(0)
    cls, config, kind = ZOO[name]
    made = getattr(transformers, cls)
    args, named = example(kind)
    exported = torch.export.export(
        made(made.config_class(**config)).eval(), args, named, strict=False
    )
    torch.export.save(exported, folder / "net.pt2")
    arrays = [x.numpy() for x in (*args, *named.values())]
    for step, model in (("live", from_torch(exported)), ("pt2", from_torch(folder / "net.pt2"))):
        graph = _called(model, arrays)
        assert graph is not None
        yield step, graph


def _nodes() -> Iterator[Source]:
    """The operators' own cases; of ONNX's, those that are not the first of an operator are traced
    only."""
    later: Any = {"alone": True, "traced": lambda step: step.startswith("-")}
    yield from table("imports", ("onnx",), _onnx, **later)
    yield from table("imports", ("aten",), _aten, alone=True)


GROUPS = {
    "imports": _nodes,
    "quantised-onnx": lambda: table("quantised-onnx", map(".".join, QUANTISED), _quantised),
    "packed-onnx": lambda: table("packed-onnx", ("int8", "int4", "nf4"), _packed),
    "torch": lambda: table("torch", TORCH, _torch, alone=True),
}
