"""Models of one node, run by weft and by ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx_cases import ort_session

from weft.importers import from_onnx

onnx = pytest.importorskip("onnx")
helper = onnx.helper
MS = "com.microsoft"


def run(model: Any, *operands: np.ndarray, device: Any = None) -> list[np.ndarray]:
    made = from_onnx(model, device)(*operands)
    return [np.asarray(x) for x in (made if isinstance(made, tuple) else (made,))]


def peer(model: Any, *operands: np.ndarray) -> list[np.ndarray]:
    pytest.importorskip("onnxruntime")
    session = ort_session(model.SerializeToString())
    names = [i.name for i in session.get_inputs()]
    made: list[np.ndarray] = session.run(None, dict(zip(names, operands)))
    return made


def single(
    op: str, arrays: dict[str, np.ndarray], weights: Any = (), domain: str = "", **attrs: Any
) -> Any:
    """A model of one node: `arrays` are its inputs, those named in `weights` are constants."""
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in arrays.items() if n not in weights
    ]  # fmt: skip
    outputs = attrs.pop("outputs", ["y"])
    constants = [onnx.numpy_helper.from_array(arrays[n], n) for n in weights]
    node = helper.make_node(op, attrs.pop("names", list(arrays)), outputs, domain=domain, **attrs)
    results = [onnx.ValueInfoProto(name=o) for o in outputs if o]
    graph = helper.make_graph([node], "g", inputs, results, constants)
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(MS, 1)]
    return helper.make_model(graph, ir_version=9, opset_imports=opsets)


def rows(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def beside(model: Any, *operands: np.ndarray, rtol: float = 1e-4, atol: float = 1e-5) -> None:
    """Raises AssertionError unless weft gives what ONNX Runtime gives."""
    for have, want in zip(run(model, *operands), peer(model, *operands), strict=True):
        assert have.dtype == want.dtype and have.shape == want.shape
        wide = [x.astype(np.float64) for x in (have, want)]
        np.testing.assert_allclose(*wide, rtol=rtol, atol=atol)


def one(
    op: str, arrays: dict[str, np.ndarray], weights: str = "", rtol: float = 1e-4,
    atol: float = 1e-5, **attrs: Any,
) -> None:  # fmt: skip
    """`beside` for one operator of com.microsoft; `weights` are names of constants; operands called
    "_..." are left out."""
    names = ["" if n.startswith("_") else n for n in arrays]
    given = {n: a for n, a in arrays.items() if not n.startswith("_")}
    constants = weights.split()
    model = single(op, given, constants, MS, names=names, **attrs)
    operands = [a for n, a in given.items() if n not in constants]
    beside(model, *operands, rtol=rtol, atol=atol)
