"""The node tests of the installed onnx package, and what running one comes to."""

from __future__ import annotations

import importlib
import pkgutil
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

DEVICE_TYPES = {1, 2, 3, 6, 7, 9, 10, 12, 16}  # weft's dtypes, and int64
HOST_TYPES = {4, 5, 11, 13}  # 16-bit and unsigned 64-bit integers, float64
BFLOAT16 = 2.0**-6  # the suite's own relative tolerance for it


@dataclass(frozen=True)
class Case:
    """One node test: a model, and for each call its operands and results."""

    name: str
    model: Any
    calls: list[tuple[list[Any], list[Any]]]
    rtol: float
    atol: float
    wide: bool  # whether it has a type that only the host has

    @property
    def operator(self) -> str:
        """The operator it is about."""
        nodes = self.model.graph.node
        return self.name if not nodes else max((n.op_type for n in nodes), key=self._fits)

    def _fits(self, op: str) -> tuple[int, int]:
        plain = self.name.replace("_", "")
        return (len(op) if op.lower() in plain else 0, -len(op))


def cases(*names: str) -> Iterator[Case]:
    """Those of the standard domain whose inputs and outputs are tensors of types that weft has; of
    these names, if any are given. The package makes those of an operator as it is imported, which
    takes a while for all."""
    import onnx
    from onnx import numpy_helper
    from onnx.backend.test.case import node
    from onnx.backend.test.loader import load_model_tests

    def array(x: Any) -> Any:
        return numpy_helper.to_array(x) if isinstance(x, onnx.TensorProto) else x

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if names:
            text = "".join(names).replace("_", "")
            for part in pkgutil.iter_modules(node.__path__):
                if part.name.replace("_", "")[:5] in text:  # as rangeop is for range_float
                    importlib.import_module(f"{node.__name__}.{part.name}")
            found = [case for case in node._NodeTestCases if case.name in names]
        else:
            found = load_model_tests(kind="node")
    for case in found:
        ports = [*case.model.graph.input, *case.model.graph.output]
        standard = {o.domain for o in case.model.opset_import} <= {"", "ai.onnx"}
        if not standard or any(p.type.WhichOneof("value") != "tensor_type" for p in ports):
            continue
        codes = {p.type.tensor_type.elem_type for p in ports}
        if codes <= DEVICE_TYPES | HOST_TYPES:
            calls = [([array(x) for x in a], [array(x) for x in b]) for a, b in case.data_sets]
            wide = bool(codes & HOST_TYPES)
            yield Case(case.name, case.model, calls, case.rtol, case.atol, wide)


def agrees(case: Case, run: Callable[[list[Any]], list[Any]]) -> None:
    """Raises AssertionError unless every result has the type, shape and values expected."""
    for operands, expected in case.calls:
        for have, want in zip(run(operands), expected, strict=True):
            want = np.asarray(want)
            assert have.dtype == want.dtype, f"{have.dtype} for {want.dtype}"
            assert have.shape == want.shape, f"{have.shape} for {want.shape}"
            narrow = want.dtype.name == "bfloat16"
            if want.dtype.kind not in "biu":
                have, want = have.astype(np.float64), want.astype(np.float64)
            rtol = max(case.rtol, BFLOAT16) if narrow else case.rtol
            np.testing.assert_allclose(have, want, rtol=rtol, atol=case.atol)


def by_weft(case: Case, device: Any = None) -> None:
    """Raises what weft raises, or AssertionError for other results."""
    from weft.importers import from_onnx

    model = from_onnx(case.model, device)

    def run(operands: list[Any]) -> list[Any]:
        made = model(*operands)
        return [np.asarray(x) for x in (made if isinstance(made, tuple) else (made,))]

    agrees(case, run)


def ort_session(model: bytes | str, precise: bool = True) -> Any:
    """A session of ONNX Runtime on the CPU, for a model or its path.

    On x64 without VNNI its products of uint8 with int8 add pairs in 16 bits and saturate. `precise`
    has it turn such weights into uint8, which it cannot do beside int8 operands and for QLinearConv
    with channels last.
    """
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)
    options = onnxruntime.SessionOptions()
    if precise:
        options.add_session_config_entry("session.x64quantprecision", "1")
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def by_onnxruntime(case: Case) -> None:
    """The same of ONNX Runtime."""
    session = ort_session(case.model.SerializeToString())
    names = [i.name for i in session.get_inputs()]
    agrees(case, lambda operands: session.run(None, dict(zip(names, map(np.asarray, operands)))))
