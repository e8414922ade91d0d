"""Every public function on tiny tensors through both compilers of WGSL, against NumPy.

Extents of 1 to 5 (now and then 0) are where indices, counts and masks become constants that a
compiler works out by itself: naga inside wgpu while it runs, Tint (see tint.py) where installed.
"""

import contextlib
import random
from dataclasses import replace
from unittest.mock import patch

import hypothesis
import pytest
import tint
from hypothesis import strategies as st
from rows import few
from tiny_cases import CASES, HOST, OWN, PUBLIC, maker
from tiny_kit import Draw, browser, modules, tensors
from wgpu_case import device

import weft
from weft import ops
from weft.backends import wgsl
from weft.core import dtypes as dt
from weft.core.caps import PRESETS
from weft.core.tolerance import compare
from weft.graph.ir import toposort

NAMES = sorted(n for n in PUBLIC if n.rpartition(".")[2] not in HOST)
ONCE = list({n.rpartition(".")[2]: n for n in NAMES}.values())  # a method or its function
ON_VALUES = {
    "nonzero",
    "unique_values",
    "unique_all",
    "unique_counts",
    "unique_inverse",
}  # their shapes depend on values: eager only
# Which models alone use: tests/ops/test_dequantize.py and test_quantize_primitives.py play them.
OF_MODELS = {"recurrence", "dequantize", "first_rows", "quantize", "rescale"}
# Which the compiler alone makes: tests/compile/test_channels_last.py and test_codes.py play them.
OF_COMPILER = {"conv_last", "depthwise_last", "winograd_last"} | {
    "conv_codes", "conv_codes_last", "depthwise_codes_last"
}  # fmt: skip
# Which importers alone use: tests/compile/test_codes.py plays them.
OF_IMPORTERS = {"quantize_linear", "dequantize_linear"}
# Which optimisers of many parameters use: tests/optim/test_many_parameters.py plays them.
OF_OPTIMISERS = {"pointwise"}

pytestmark = pytest.mark.filterwarnings("ignore")


def by_chance(name, seed):
    return Draw(random.Random(f"{name} {seed}").randint)


def gradients(fn, given):
    """Those of fn's float operands, for half the sum of its results."""
    given = [t.detach().requires_grad_() if t.dtype.is_float else t for t in given]
    out = [t for t in tensors(fn(*given)) if t.dtype.is_float and t.requires_grad]
    leaves = [t for t in given if t.dtype.is_float]
    if not out or not leaves:
        return []
    total = sum((t.cast(dt.float32) * 0.5).sum() for t in out)
    return [g for g in weft.grad(total, leaves) if g is not None]


def agree(got, want):
    assert len(got) == len(want)
    for g, w in zip(got, want, strict=True):
        assert g.dtype == w.dtype
        kind = "dot" if g.dtype.is_float else "exact"
        result = compare(g.numpy(), w.numpy(), kind, g.dtype)
        assert result.ok, result.message


def taken_by_tint(texts):
    for text in texts if tint.present() else ():
        assert tint.refusal(text) is None, text


def taken_by_browsers(fn, given, features):
    """Kernels with barriers, as for most GPUs: what lavapipe takes long over is compiled only."""
    texts = modules(fn, given, replace(PRESETS["webgpu"], features=features))
    for text in texts:
        device().raw.create_shader_module(code=text)
    taken_by_tint(texts)


@contextlib.contextmanager
def tint_too():
    """What devices compile inside, Tint takes too (where it is installed)."""
    texts, render = [], wgsl.render

    def kept(*args):
        texts.append(render(*args))
        return texts[-1]

    with patch.object(wgsl, "render", kept):
        yield
    taken_by_tint(texts)


def check(name, draw):
    """One example: forward, then gradients, on the device against NumPy."""
    small = browser(draw.pick("native", "packed"))
    fn, arrays = maker(name)(draw, PUBLIC[name])
    given = [weft.tensor(a) for a in arrays]
    want, last = tensors(fn(*given)), name.rpartition(".")[2]
    with tint_too():
        if last in ON_VALUES or (arrays and draw.between(0, 1)):
            agree(tensors(fn(*[t.to("vulkan") for t in given])), want)  # a Program for each op
        else:
            agree(tensors(weft.compile(fn, device=small)(*given)), want)
        slopes = [] if last in (*ON_VALUES, *OWN) else gradients(fn, given)
        if slopes:
            agree(weft.compile(lambda *ts: gradients(fn, ts), device=small)(*given), slopes)
    features = small.caps.features & {"shader-f16"}
    if last not in ON_VALUES:
        taken_by_browsers(fn, given, features)
    if slopes:
        taken_by_browsers(lambda *ts: gradients(fn, ts), given, features)


def test_every_public_function_has_a_case():
    """A new one needs a maker in tiny_*.py, or a word in HOST if it computes nothing."""
    last = {n.rpartition(".")[2] for n in PUBLIC}
    assert [n for n in NAMES if maker(n) is None] == []
    assert HOST - last == set() and set(CASES) - last - set(PUBLIC) == set()


def test_the_cases_meet_every_primitive_and_composite():
    met = {"call"}

    def walk(graph):
        for node in toposort(graph.outputs):
            met.add(node.attrs["name"] if node.op == "call" else node.op)
            if node.op == "call" and node.body is not None:
                walk(node.body)

    for name in NAMES:
        if name.rpartition(".")[2] in ON_VALUES:
            continue
        for seed in range(2):
            fn, arrays = maker(name)(by_chance(name, seed), PUBLIC[name])
            given = [weft.tensor(a) for a in arrays]
            specs = [weft.Spec(t.shape, t.dtype) for t in given]
            walk(weft.trace(lambda *ts, fn=fn: tensors(fn(*ts)), specs))
            if gradients(fn, given):
                walk(weft.trace(lambda *ts, fn=fn: gradients(fn, ts), specs))
    others = OF_MODELS | OF_COMPILER | OF_IMPORTERS | OF_OPTIMISERS
    assert set(ops.PRIMITIVES) | set(ops.COMPOSITES) == met | others
    assert not met & others


@pytest.mark.parametrize("name", few(ONCE, *ONCE[::3]))
def test_tiny(name):
    check(name, by_chance(name, 0))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_tiny_at_length(name):
    @hypothesis.settings(max_examples=10, deadline=None, database=None, print_blob=False)
    @hypothesis.given(st.data())
    def run(data):
        check(name, Draw(lambda low, high: data.draw(st.integers(low, high))))

    run()
