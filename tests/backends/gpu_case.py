"""Kernels shaped for GPUs, gathered without one: by a device that records what it is given."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import weft
from weft import ops
from weft.backends import registry
from weft.backends.interp import InterpDevice
from weft.backends.llvm.gpu_target import GpuTarget, gpu_target
from weft.compile.passes import compile_graph
from weft.conform import kernels, packed, primitives, templates
from weft.conform.gpt import GptSizes, Trainer
from weft.conform.report import CheckFailed, Skip
from weft.core import dtypes as dt
from weft.core.caps import PRESETS, Caps
from weft.graph.ir import Graph
from weft.kernel import ir
from weft.kernel.ir import Kernel
from weft.kernel.printer import kernel_hash
from weft.models import random_folder
from weft.ops.packed import dequantize
from weft.ops.quantize import quantize, rescale, run_of
from weft.program.device import Bound
from weft.tensor.tracing import Spec, trace

NVIDIA = ("sm_80", "sm_90", "sm_120")
AMD = ("gfx90a", "gfx942", "gfx1100")
F32 = dt.float32
TINY = GptSizes(layers=1, width=32, heads=2, context=24, batch=2, vocab=40)


def caps_of(target: GpuTarget) -> Caps:
    """The target's Caps, with as much shared memory as its kind has at least, under one name per
    shape: targets share gathered kernels."""
    least = min(target.caps.shared_bytes, PRESETS["cuda"].shared_bytes)
    return dataclasses.replace(target.caps, name=f"wave{target.wave}-{least}", shared_bytes=least)


def apart(kernel: Kernel) -> Kernel:
    """The kernel by a name that no other has."""
    fields = {f.name: getattr(kernel, f.name) for f in dataclasses.fields(Kernel)}
    return Kernel(**fields | {"name": f"{kernel.name}_{kernel_hash(kernel)[:12]}"})


class Recorder(InterpDevice):
    """Keeps every kernel it meets and runs none."""

    kind = "recorder"

    def __init__(self, caps: Caps) -> None:
        super().__init__(caps)
        self.found: dict[str, Kernel] = {}

    def bind(self, program, buffers) -> Bound:  # type: ignore[no-untyped-def]
        for kernel in program.kernels:
            self.found[kernel_hash(kernel)] = apart(kernel)
        return super().bind(program, buffers)

    def submit(self, bound, scalars) -> None:  # type: ignore[no-untyped-def]
        pass

    def gather(self, checks: Iterator) -> None:
        """Runs conformance checks for the sake of their kernels: results are not computed."""
        registry._open_devices["recorder:0"] = self
        try:
            for _, check in checks:
                with contextlib.suppress(CheckFailed, Skip):
                    check()
        finally:
            del registry._open_devices["recorder:0"]

    @property
    def kernels(self) -> list[Kernel]:
        return list(self.found.values())


def share_of(checks: Iterable[Any], first: int, step: int) -> Iterator[Any]:
    """Every `step`-th check of each primitive or template, from its `first` or its last one on."""
    named: dict[str, list[Any]] = {}
    for check in checks:
        named.setdefault(check[0].split()[0], []).append(check)
    for group in named.values():
        yield from group[min(first, len(group) - 1) :: step]


@functools.cache
def nodes(caps: Caps) -> list[Kernel]:
    """Every Kernel IR node and dtype (weft.conform.kernels)."""
    recorder = Recorder(caps)
    recorder.gather(kernels.checks(recorder))
    return recorder.kernels


@functools.cache
def conformance(caps: Caps, module: ModuleType, first: int = 0, step: int = 1) -> list[Kernel]:
    """The kernels of a module's conformance checks, of all or of every so many: primitives
    (gradients too) or templates."""
    recorder = Recorder(caps)
    recorder.gather(share_of(module.checks(recorder), first, step))
    return recorder.kernels


Gather = Callable[[Caps, int, int], list[Kernel]]
# What is compiled whole, and how many kernels it has at least.
PARTS: dict[str, tuple[Gather, int]] = {
    "nodes": (lambda caps, first, step: (nodes(caps) + products(caps))[first::step], 150),
    "primitives": (lambda caps, *share: conformance(caps, primitives, *share), 500),
    "templates": (lambda caps, *share: conformance(caps, templates, *share), 500),
}


def shares(names: tuple[str, ...]) -> list[Any]:
    """Parameters: a target, and which of every so many checks it compiles. By default a vendor's
    first target takes every twentieth one of each primitive and template, the other vendor's takes
    others; all of them for all targets are for the slow tests."""
    few = (4 * (names == AMD), 20)
    slow = [pytest.param(gpu_target(n), (0, 1), id=n, marks=pytest.mark.slow) for n in names]
    return [pytest.param(gpu_target(names[0]), few, id=f"{names[0]}-twentieth"), *slow]


def part(name: str, caps: Caps, share: tuple[int, int]) -> list[Kernel]:
    """A share of a part's kernels."""
    gather, least = PARTS[name]
    found = gather(caps, *share)
    assert len(found) >= least // share[1]
    return found


@functools.cache
def samples(caps: Caps) -> list[Kernel]:
    """A kernel or two of the templates that models use most."""
    f, half = weft.functional, dt.float16
    cases = [
        (lambda x, w, b: f.layer_norm(f.gelu(x @ w), b, b),
         [((33, 64), F32), ((64, 48), F32), ((48,), F32)]),
        (lambda x, w: x @ w.T, [((1, 256), dt.bfloat16), ((96, 256), dt.bfloat16)]),
        (lambda x: f.softmax(x), [((40, 3000), F32)]),
        (lambda x: f.silu(x) * 2, [((7, 31), half)]),
        (lambda x: (x * 2).sum(axis=1) + x.max(axis=1), [((17, 90), F32)]),
        (lambda q, k, v: f.attention(q, k, v, causal=True),
         [((1, 4, 9, 32), F32), ((1, 2, 20, 32), F32), ((1, 2, 20, 32), F32)]),
    ]  # fmt: skip
    return kernels_of(cases, caps)


def kernels_of(cases: list[tuple[Any, list[Any]]], caps: Caps) -> list[Kernel]:
    """The kernels of functions of tensors with these shapes and dtypes."""
    programs = [compile_graph(trace(fn, [Spec(*s) for s in specs]), caps) for fn, specs in cases]
    return [apart(kernel) for program in programs for kernel in program.kernels]


@functools.cache
def products(caps: Caps) -> list[Kernel]:
    """Products of odd sizes: layouts, few rows, several weights, gate and residual, integers."""
    silu, half, byte = weft.functional.silu, dt.float16, dt.int8
    cases: list[tuple[Any, list[Any]]] = []
    for dtype in (F32, dt.bfloat16):
        cases += [
            (lambda x, w: x @ w.mT, [((2, 19, 21), dtype), ((2, 37, 21), dtype)]),
            (lambda x, w: x.mT @ w, [((2, 21, 19), dtype), ((2, 21, 37), dtype)]),
            (lambda x, w: x @ w, [((2, 20, 40), dtype), ((2, 40, 36), dtype)]),
        ]
    for m in (1, 6, 18):
        gated = lambda x, g, u, r: r + silu(x @ g.mT) * (x @ u.mT)  # noqa: E731
        cases.append((gated, [((m, 24), F32), *[((21, 24), F32)] * 2, ((m, 21), F32)]))
        cases.append((lambda x, w: x.matmul(w.mT, "int32"), [((m, 30), byte), ((17, 30), byte)]))
    widths = [((5, 36), half), *[((n, 36), half) for n in (40, 9, 17)]]
    cases.append((lambda x, *ws: tuple(x @ w.mT for w in ws), widths))
    return kernels_of(cases, caps)


SIDE = 4096  # of a packed matrix of a model
PACKED = tuple(
    (name, planes)
    for name, form in packed.FORMS.items()
    for planes in (0, 1, 2)
    if not planes or run_of(form, SIDE)
)


def packed_kernels(caps: Caps, cases: Iterable[tuple[str, int]]) -> list[Kernel]:
    """Products of packed weights as models have them, by their name in weft check: one row, four
    rows of three weights, many rows; of float32, or of integers in so many planes."""
    found = []
    for name, planes in cases:
        form = packed.FORMS[name]._replace(group=min(packed.FORMS[name].group, 256))
        weight = packed.random_weight(form, 16, SIDE, np.random.default_rng(0))
        for m, count in ((1, 1), (4, 3), (512, 1)):
            x, nodes, outs = ops.input_node("x", (m, SIDE), F32), [], []
            with ops.building():
                left = rescale(*quantize(x, planes)) if planes else x
                for i in range(count):
                    own = {
                        part: ops.input_node(
                            f"{i}.{part}", (SIDE, v.shape[1]), dt.as_dtype(v.dtype), "weight"
                        )
                        for part, v in weight.parts.items()
                    }
                    nodes += own.values()
                    outs.append(ops.dot(left, ops.transpose(dequantize(form, own), (1, 0))))
            graph = Graph((x, *nodes), tuple(outs), meta={"frozen": True})
            made = compile_graph(graph, caps).kernels
            found += [apart(kernel) for kernel in made if kernel.name.startswith("mat")]
    return found


def packed_cases(names: tuple[str, ...]) -> list[Any]:
    """Parameters: a target, and the packed products it compiles. By default a vendor's first target
    takes a few."""
    few = (("Q8_0", 2), ("IQ4_NL", 0)) if names == AMD else (("Q4_K", 1), ("Q6_K", 2))
    slow = [pytest.param(gpu_target(n), PACKED, id=n, marks=pytest.mark.slow) for n in names]
    return [pytest.param(gpu_target(names[0]), few, id=f"{names[0]}-few"), *slow]


LLAMA = {
    "model_type": "llama", "vocab_size": 320, "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}  # fmt: skip
GPT2 = {
    "model_type": "gpt2", "vocab_size": 320, "n_embd": 64, "n_layer": 2, "n_head": 4,
    "n_positions": 64,
}  # fmt: skip
MINILM = {
    "model_type": "bert", "vocab_size": 320, "hidden_size": 96, "intermediate_size": 192,
    "num_hidden_layers": 2, "num_attention_heads": 12, "max_position_embeddings": 64,
    "type_vocab_size": 2,
}  # fmt: skip
MODELS = {"gpt2": GPT2, "llama": LLAMA, "llama-bf16": LLAMA | {"dtype": "bfloat16"},
          "minilm": MINILM}  # fmt: skip


def model_kernels(caps: Caps, name: str, folder: Path) -> list[Kernel]:
    """The kernels of a whole model's Programs, compiled for `caps`."""
    model = weft.load(random_folder(folder, MODELS[name]), device="cpu")
    found = {}
    for graph in model.graphs().values():
        for kernel in compile_graph(graph, caps, graph.name).kernels:
            found[kernel.name] = kernel
    return list(found.values())


def targets(names: tuple[str, ...]) -> list[Any]:
    """Parameters: a vendor's targets."""
    return [pytest.param(gpu_target(n), id=n) for n in names]


def models(names: tuple[str, ...]) -> list[Any]:
    """Parameters: a vendor's target and a model. By default a vendor's second target takes two of
    the models, the other vendor's the other two."""
    quick = list(MODELS)[names == AMD :: 2]
    return [
        pytest.param(
            gpu_target(n), name, id=f"{n}-{name}",
            marks=() if n == names[1] and name in quick else pytest.mark.slow,
        )
        for n, name in itertools.product(names, MODELS)
    ]  # fmt: skip


STEPS = tuple(itertools.product((TINY, GptSizes(layers=1)), (F32, dt.bfloat16)))


def steps(names: tuple[str, ...]) -> list[Any]:
    """Parameters: a target, and its training steps. By default a vendor's third target takes the
    larger step of one dtype, the other vendor's that of the other."""
    few = STEPS[2:3] if names == AMD else STEPS[3:]
    slow = [pytest.param(gpu_target(n), STEPS, id=n, marks=pytest.mark.slow) for n in names]
    return [pytest.param(gpu_target(names[2]), few, id=f"{names[2]}-larger"), *slow]


@functools.cache
def training(caps: Caps, steps: tuple[tuple[GptSizes, dt.DType], ...]) -> list[Kernel]:
    """The kernels of whole training steps (forward, backward, AdamW)."""
    recorder = Recorder(caps)
    registry._open_devices["recorder:0"] = recorder
    try:
        for shape, dtype in steps:
            Trainer(shape, "recorder:0", dtype).step()
    finally:
        del registry._open_devices["recorder:0"]
    return recorder.kernels


def shared_bytes(kernel: Kernel) -> int:
    """Bytes of the kernel's shared arrays."""
    arrays = [s for s in kernel.body.body if isinstance(s, ir.Array) and s.space == "shared"]
    return sum(a.size * a.dtype.itemsize for a in arrays)
