"""Packed weights on a device (core/packed): part of the levels "templates" and "models"."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from weft import ops
from weft.compile import compile_graph
from weft.conform.harness import check_close, check_equal, need
from weft.conform.primitives import run_case
from weft.conform.report import Check
from weft.core import dtypes as dt
from weft.core.packed import Form, Packed, dequantized, packed_codes
from weft.graph.ir import Graph, Node
from weft.importers.packed import gguf
from weft.models.arch.config import DecoderConfig
from weft.models.arch.inputs import columns, with_tables
from weft.models.arch.weights import Weights
from weft.models.run.compiled_runner import CompiledRunner
from weft.models.run.eager_runner import EagerRunner
from weft.models.run.placed import Placed
from weft.models.run.runner import Runner
from weft.models.weights.decoder_names import decoder_layout
from weft.ops.packed import dequantize
from weft.ops.quantize import BLOCK, quantize, rescale
from weft.program.device import Device
from weft.program.session import Session

_N, _K = 32, 512
_BITS = {1: 8, 2: 15}  # bits of the result of `quantize`, by its planes
_GGUF = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q4_K", "Q6_K", "IQ4_NL", "MXFP4")
FORMS = {name: gguf.FORMS[name][0] for name in _GGUF} | {
    "int8 per channel": Form(8, _K, offset=128),
    "int4 with zeros": Form(4, 128, shift="zero"),
    "nf4": Form(4, 64, "nf4"),
    "fp8 E4M3": Form(8, 128, "e4m3"),
}


def random_weight(
    form: Form, n: int, k: int, rng: np.random.Generator, size: float = 1.0
) -> Packed:
    """A random matrix [n, k] whose elements deviate by `size`."""
    codes = rng.integers(0, 1 << form.bits, (n, k), dtype=np.uint8)
    if form.values == "e4m3":
        codes[codes & 127 == 127] = 5  # not NaN
    parts = packed_codes(form, codes)
    for part, shape in form.shapes(n, k).items():
        if part == "zeros" or (form.super_group and part in ("scales", "lows")):
            parts[part] = rng.integers(1, 16, shape).astype(np.int8)
        elif part not in parts:
            parts[part] = (rng.standard_normal(shape) + 2).astype(np.float16)
    factor = np.float32(size) / dequantized(form, parts).std()
    for part in ("super_scales", "super_lows") if form.super_group else ("scales", "lows"):
        if part in parts:
            parts[part] = (parts[part] * factor).astype(np.float16)
    return Packed(form, {part: parts[part] for part in form.parts})


def _inputs(weight: Packed, role: str) -> dict[str, Node]:
    """A node for each part, named "w.codes", ..."""
    given = weight.parts.items()
    return {p: ops.input_node(f"w.{p}", v.shape, dt.as_dtype(v.dtype), role) for p, v in given}


def _arrays(device: Device, weight: Packed) -> dict[str, np.ndarray]:
    need(device, (dt.as_dtype(v.dtype) for v in weight.parts.values()))
    return {f"w.{p}": v for p, v in weight.parts.items()}


def _whole(device: Device, form: Form) -> float:
    """The whole matrix and some of its rows have the oracle's bits; a row beyond it is NaN."""
    weight, picks = random_weight(form, 5, _K, np.random.default_rng(1)), [4, 0, 5, 4]
    arrays, nodes = _arrays(device, weight), _inputs(weight, "input")
    ids = ops.input_node("ids", (len(picks),), dt.int32)
    with ops.building():
        matrix = dequantize(form, nodes)
        graph = Graph((*nodes.values(), ids), (matrix, ops.gather(matrix, ids)))
    session = Session(compile_graph(graph, device.caps), device)
    got, rows = session.run({**arrays, "ids": np.array(picks, np.int32)})
    want = dequantized(*weight)
    check_equal(got, want)
    check_equal(rows, np.concatenate([want, np.full((1, _K), np.nan, np.float32)])[picks])
    return 0.0


def _product(device: Device, form: Form, planes: int = 0) -> float:
    """x @ w.T of many rows within the table; one row alone has the same bits. With `planes` x is
    quantised to integers first."""
    rng = np.random.default_rng(2)
    weight, x = random_weight(form, _N, _K, rng), rng.standard_normal((9, _K), np.float32) / 4
    arrays, nodes = _arrays(device, weight), _inputs(weight, "weight")
    inputs = [ops.input_node(f"x{m}", (m, _K), dt.float32) for m in (1, len(x))]

    def product(x: Any, w: Any) -> Any:
        left = rescale(*quantize(x, planes)) if planes else x
        return ops.dot(left, ops.transpose(w, perm=(1, 0)))

    with ops.building():
        outputs = tuple(product(node, dequantize(form, nodes)) for node in inputs)
    graph = Graph((*inputs, *nodes.values()), outputs, meta={"frozen": True})
    session = Session(compile_graph(graph, device.caps), device, arrays)
    one, many = session.run({"x1": x[:1], f"x{len(x)}": x})
    check_equal(one, many[:1])
    return check_close(many, np.asarray(product(x, dequantized(*weight))), "dot", dt.float32)


def _quantize(device: Device, planes: int) -> float:
    """Checks codes and scales, and the values they encode; also for zeros, huge numbers, an
    infinity and NaN."""
    x = np.random.default_rng(3).standard_normal((4, 3, 4 * BLOCK)).astype(np.float32)
    x *= np.float32(10.0) ** np.arange(-6, 6, dtype=np.float32).reshape(4, 3, 1)
    x[0, 0, :BLOCK], x[1, 0, 3], x[1, 1, 40] = 0, np.inf, np.nan
    x[2, 0, 5], x[2, 1, 7], x[3, 0, :BLOCK] = 65504, 3e38, np.arange(BLOCK) - 15.5  # ties

    def both(x: Any) -> Any:
        parts = quantize(x, planes)
        return *parts, rescale(*parts)

    with np.errstate(all="ignore"):
        return run_case(device, both, [x], "exact")


def checks(device: Device) -> Iterator[Check]:
    """Every kind of form: read, gathered from, multiplied with floats and with integers."""
    for name, form in FORMS.items():
        yield f"dequantize and gather {name}", partial(_whole, device, form)
        yield f"dot with {name}, one row and nine", partial(_product, device, form)
    for planes, bits in _BITS.items():
        yield f"quantize to {bits} bits", partial(_quantize, device, planes)
    for name, planes in (("Q4_K", 1), ("Q6_K", 1), ("int4 with zeros", 1), ("Q8_0", 2)):
        label = f"dot with {name} of {_BITS[planes]}-bit integers, one row and nine"
        yield label, partial(_product, device, FORMS[name], planes)


# -- a model --------------------------------------------------------------------------------------

_Q4, _Q6 = Form(4, 32, offset=8), Form(6, 16, offset=32, super_group=32)
_ZEROS, _LOWS = Form(4, 32, shift="zero"), Form(4, 32, shift="low", super_group=96)
_MIXED = {  # part of a layer -> how its matrix is packed
    **dict.fromkeys(("q", "k", "o"), _Q4), "v": _Q6, "gate": _ZEROS, "up": _ZEROS, "down": _LOWS,
    "embed": Form(8, 32, offset=128), "head": _Q6,
}  # fmt: skip


def model(device: Device, config: DecoderConfig, context: int) -> tuple[Runner, Runner]:
    """A model of random weights, its matrices packed as `_MIXED` says, on the device and on the
    oracle. Its hidden size is 64, that of its feed-forward 96."""
    rng = np.random.default_rng(4)
    weights: dict[str, np.ndarray | Packed] = {}
    for role, spec in decoder_layout(config).weights.items():
        if len(spec.shape) == 2:
            n, k = spec.shape
            part = role.removesuffix(".w").rpartition(".")[2]
            weights[role] = random_weight(_MIXED[part], n, k, rng, size=0.2)
        else:
            weights[role] = np.ones(spec.shape, np.float32)
    arrays = Weights.of(weights)
    need(device, (dt.as_dtype(v.dtype) for v in arrays.values()))
    config, arrays = replace(config, forms=arrays.forms), with_tables(config, arrays, context)
    own = context, 1, columns(context)
    compiled = CompiledRunner(config, Placed(arrays, device), *own)
    return compiled, EagerRunner(config, Placed(arrays, None), *own)
