"""Where a product of packed weights and what follows it need more buffers than a kernel may have,
what follows is cut off: the weights are read as they are."""

import numpy as np
import pytest

from weft import ops
from weft.backends.interp import InterpDevice
from weft.compile import compile_graph
from weft.conform.packed import FORMS, random_weight
from weft.core import dtypes as dt
from weft.core.caps import PRESETS
from weft.core.packed import dequantized
from weft.graph.ir import Graph
from weft.ops.packed import dequantize
from weft.ops.quantize import quantize, rescale
from weft.program.session import Session

N, K = 32, 512


@pytest.mark.parametrize("planes", [0, 1])
@pytest.mark.parametrize("form", ["Q4_K", "Q6_K", "int4 with zeros"])
def test_a_product_and_much_beside(form: str, planes: int) -> None:
    rng = np.random.default_rng(1)
    weight = random_weight(FORMS[form], N, K, rng)
    x = rng.standard_normal((1, K), np.float32)
    beside = {f"y{i}": rng.standard_normal((3, N), np.float32) for i in range(4)}
    row = np.array([2], np.int32)
    parts = {f"w.{part}": value for part, value in weight.parts.items()}

    def product(x, w, others, row):
        out = ops.dot(rescale(*quantize(x, planes)) if planes else x, ops.transpose(w))
        for other in others:
            out = ops.add(out, ops.gather(other, row))
        return out

    def inputs(arrays, role):
        shapes = {n: (v.shape, dt.as_dtype(v.dtype)) for n, v in arrays.items()}
        return {n: ops.input_node(n, *about, role) for n, about in shapes.items()}

    nodes, feeds = inputs(parts, "weight"), {"x": x, "row": row, **beside}
    given = inputs(feeds, "input")
    with ops.building():
        w = dequantize(FORMS[form], {p.removeprefix("w."): node for p, node in nodes.items()})
        out = product(given["x"], w, [given[n] for n in beside], given["row"])
    graph = Graph((*given.values(), *nodes.values()), (out,), meta={"frozen": True})
    device = InterpDevice(PRESETS["webgpu"])
    program = compile_graph(graph, device.caps)
    written = [b.size for k in program.kernels for b in k.buffers if b.access != "r"]
    assert max(written) <= K, "the weights were unpacked into memory"
    got = Session(program, device, parts).run(feeds)[0]
    want = product(x, dequantized(*weight), beside.values(), row)
    np.testing.assert_allclose(got, want, atol=2e-4 * np.abs(want).max())
