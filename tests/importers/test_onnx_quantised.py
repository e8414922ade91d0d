"""Nets that ONNX Runtime's tool quantised, beside ONNX Runtime."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx_cases import ort_session
from rows import few

from weft.importers import from_onnx

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


def _quantized_net(path: Path, form: Any, kind: Any, seven_bits: bool) -> str:
    """A small convolution net, quantised by ONNX Runtime's own tool, with weights of 8 or 7 bits.
    The sums of two products of 7-bit weights fit 16 bits."""
    from onnxruntime import quantization as tool

    rng = np.random.default_rng(3)
    weights = {
        "w": rng.standard_normal((12, 3, 3, 3)), "b": rng.standard_normal(12),
        "v": rng.standard_normal((12, 1, 3, 3)), "u": rng.standard_normal((20, 12, 1, 1)),
        "m": rng.standard_normal((20, 7)),
    }  # fmt: skip
    node = onnx.helper.make_node
    nodes = [
        node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]), node("Relu", ["c"], ["r"]),
        node("Conv", ["r", "v"], ["d"], group=12, pads=[1, 1, 1, 1]),
        node("Add", ["d", "r"], ["a"]),
        node("MaxPool", ["a"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", ["p", "u"], ["e"]), node("GlobalAveragePool", ["e"], ["g"]),
        node("Flatten", ["g"], ["f"]), node("MatMul", ["f", "m"], ["y"]),
    ]  # fmt: skip
    ports = [
        onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, s)
        for n, s in (("x", ["n", 3, 9, 10]), ("y", ["n", 7]))
    ]
    init = [onnx.numpy_helper.from_array(v.astype(np.float32), n) for n, v in weights.items()]
    graph = onnx.helper.make_graph(nodes, "net", ports[:1], ports[1:], init)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])
    onnx.save(model, path / "net.onnx")

    class Data(tool.CalibrationDataReader):
        left = 3  # batches

        def get_next(self) -> Any:
            self.left -= 1
            shape = (2, 3, 9, 10)
            return None if self.left < 0 else {"x": rng.standard_normal(shape, dtype=np.float32)}

    target = str(path / "codes.onnx")
    tool.quantize_static(
        str(path / "net.onnx"), target, Data(), quant_format=form, per_channel=True,
        activation_type=kind, weight_type=tool.QuantType.QInt8, reduce_range=seven_bits,
    )  # fmt: skip
    return target


@pytest.mark.parametrize("kind, form, device", few(
    itertools.product(["QUInt8", "QInt8"], ["QDQ", "QOperator"], ["cpu", "vulkan"]),
    ("QUInt8", "QDQ", "cpu"), ("QInt8", "QOperator", "cpu"), ("QInt8", "QDQ", "vulkan"),
))  # fmt: skip
def test_quantised_nets(tmp_path: Path, form: str, kind: str, device: str) -> None:
    """Their products run on the codes, and the results are ONNX Runtime's but for steps."""
    from onnxruntime import quantization as tool

    seven_bits = (form, kind) == ("QOperator", "QInt8")  # ONNX Runtime is precise only with these
    path = _quantized_net(tmp_path, tool.QuantFormat[form], tool.QuantType[kind], seven_bits)
    x = np.random.default_rng(9).standard_normal((2, 3, 9, 10), dtype=np.float32)
    want = ort_session(path, precise=not seven_bits).run(None, {"x": x})[0]
    model = from_onnx(path, device=device)
    got = model(x).numpy()
    step = np.diff(np.unique(want)).min()
    assert np.abs(got - want).max() < 1.5 * step + 1e-6
    assert (np.abs(got - want) < step / 2).mean() > 0.8
    lines = [x for x in model.report().splitlines() if x[:1].isdigit()]
    assert sum("codes_last" in x for x in lines) == 4
    alone = from_onnx(path, device=device)(x[1:]).numpy()
    np.testing.assert_array_equal(alone, got[1:])
    if device != "cpu":
        np.testing.assert_array_equal(from_onnx(path)(x).numpy(), got)
