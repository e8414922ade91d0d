"""A recurrence against its definition in float64, and what it promises of bits."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from weft import ops
from weft.backends.llvm.gpu_target import gpu_target
from weft.compile.analysis import row_bounds
from weft.core.caps import PRESETS
from weft.core.dtypes import float32, int32
from weft.core.errors import DTypeError, ShapeError
from weft.graph.ir import Graph
from weft.tensor import Tensor

sys.path.append(str(Path(__file__).parent.parent / "backends"))

# slots of the rows (-1 - s begins s), key heads, value heads, K, V, tiled
CASES = [
    ([2, 2, -1, 0, 1], 2, 4, 8, 16, False),
    ([-2, 1, 1, 1, 0, -3, 2], 2, 6, 6, 10, True),
    ([0], 1, 3, 20, 37, False),
    ([-1, 0, 0], 1, 2, 33, 130, True),
    ([1, -1, 2], 2, 2, 5, 1, False),
]


# By name: the axes of the decay beside its rows, and True if the memory learns by the delta rule.
FORMS = {
    "delta rule": (1, True), "Mamba 2": (1, False), "Kimi Linear": (2, True),
    "decay of keys": (2, False), "Mamba": (3, False),
}  # fmt: skip


def operands(
    slots: list[int], groups: int, heads: int, k: int, v: int, form: str = "delta rule"
) -> list[np.ndarray]:
    rng, n = np.random.default_rng(0), len(slots)
    axes, learns = FORMS[form]
    key = rng.standard_normal((n, groups, k))
    floats = [
        rng.standard_normal((n, groups, k)), key / np.linalg.norm(key, axis=-1, keepdims=True),
        rng.standard_normal((n, heads, v)), rng.uniform(0.5, 1, (n, heads, k, v)[: axes + 1]),
        *[rng.uniform(0, 1, (n, heads))] * learns, np.array(slots),
        rng.standard_normal((3, heads, k, v)),
    ]  # fmt: skip
    return [x.astype(np.int32 if x.dtype == np.int64 else np.float32) for x in floats]


def defined(xs: list[np.ndarray], tiled: bool) -> list[np.ndarray]:
    q, k, v, decay, *rate, slots, memory = (x.astype(np.float64) for x in xs)
    out, share = np.zeros(v.shape), v.shape[1] // k.shape[1]
    decay = decay.reshape(*decay.shape, *(1,) * (4 - decay.ndim))
    for n, given in enumerate(slots.astype(int)):
        slot = given if given >= 0 else -1 - given
        memory[slot] *= given >= 0
        for h in range(v.shape[1]):
            g = h % k.shape[1] if tiled else h // share
            m = memory[slot, h] * decay[n, h]
            learned = (v[n, h] - k[n, g] @ m) * rate[0][n, h] if rate else v[n, h]
            m += np.outer(k[n, g], learned)
            memory[slot, h], out[n, h] = m, 0.5 * (q[n, g] @ m)
    return [out, memory]


def run(device: Any, xs: list[np.ndarray], tiled: bool) -> list[np.ndarray]:
    """Returns readings and memories; queries that are the keys are one operand with them."""
    same = xs[0] is xs[1]

    def fn(*xs: Tensor) -> tuple[Tensor, ...]:
        values = [x.value for x in (*xs[:1], *xs)[not same :]]
        return tuple(map(Tensor, ops.call("recurrence", *values, tiled=tiled, scale=0.5)))

    return [x.numpy() for x in weft.compile(fn, device=device)(*map(weft.tensor, xs[same:]))]


def check(device: str, form: str, case: Any, same: bool = False) -> None:
    slots, *sizes, tiled = case
    xs = operands(slots, *sizes, form)
    xs[0] = xs[1] if same else xs[0]
    want, got = defined(xs, tiled), run(device, xs, tiled)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, atol=3e-5, rtol=1e-4)
    for a, b in zip(ops.call("recurrence", *xs, tiled=tiled, scale=0.5), want, strict=True):
        np.testing.assert_allclose(a, b, atol=3e-5, rtol=1e-4)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("device", ["cpu", "interp:cpu-neon", "interp:cuda", "interp:hip-wave64"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{len(case[0])}x{case[3]}x{case[4]}")
def test_its_definition(device: str, case: Any, form: str) -> None:
    check(device, form, case)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", sorted(PRESETS))
def test_every_target(name: str, form: str) -> None:
    """With one operand for queries and keys: WebGPU allows eight."""
    check(f"interp:{name}", form, CASES[1], same=True)


@pytest.mark.parametrize("form", FORMS)
def test_vulkan(form: str) -> None:
    for case in CASES[:2]:
        check("vulkan", form, case, same=True)


@pytest.mark.parametrize("form", FORMS)
def test_bits_do_not_depend_on_the_cut(form: str) -> None:
    """Rows in one step, in two, and without those of another slot before them."""
    xs = operands([-3, 2, -1, 0, 0, 0, 0], 2, 4, 12, 21, form)
    out, memory = run("cpu", xs, False)
    for cut in (3, 5, 6):
        first = run("cpu", [*(x[:cut] for x in xs[:-1]), xs[-1]], False)
        second = run("cpu", [*(x[cut:] for x in xs[:-1]), first[1]], False)
        np.testing.assert_array_equal(np.concatenate([first[0], second[0]]), out)
        np.testing.assert_array_equal(second[1], memory)
    alone = run("cpu", [*(x[2:] for x in xs[:-1]), xs[-1]], False)
    np.testing.assert_array_equal(alone[0], out[2:])


def test_rows_that_nobody_wants_change_no_memory() -> None:
    """Their number is known even where it is lost on the way to the first operand."""
    with ops.building():
        x = ops.input_node("x", (8, 3, 4), float32, "input", rows="n")
        slot = ops.input_node("slot", (8,), int32, "input", rows="n")
        memory = ops.input_node("memory", (2, 3, 4, 4), float32, "state")
        turned = ops.transpose(ops.mul(ops.transpose(x, (1, 0, 2)), 2.0), (1, 0, 2))
        decay = ops.reshape(ops.slice_(turned, (0, 0, 0), (8, 3, 1)), (8, 3))
        out, _ = ops.call("recurrence", turned, turned, turned, decay, slot, memory)
    graph = Graph((x, slot, memory), (out,))
    bounds = row_bounds(graph.nodes())
    assert bounds[id(turned)] is None
    assert bounds[id(out)] == ("n", 1)


@pytest.mark.skipif(sys.platform != "linux", reason="the emulator needs Linux")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("arch", ["sm_80", "gfx1100"])
def test_as_code_of_gpus(arch: str, form: str) -> None:
    """What LLVM makes of it for GPUs, executed, has the CPU's bits."""
    from gpu_emulator import Emulated

    slots, *sizes, tiled = CASES[1]
    xs = operands(slots, *sizes, form)
    for a, b in zip(run(Emulated(gpu_target(arch)), xs, tiled), run("cpu", xs, tiled), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("device", ["cpu", "interp:webgpu"])
def test_decays_of_elements_take_no_memory(device: str) -> None:
    """They are computed in the recurrence, which uses each once."""
    _, k, v, decay, slot, memory = operands([-1, 0, 0], 1, 1, 6, 40, "Mamba")
    step, speed = decay[:, 0, 0], decay[0]

    def fn(step: Tensor, speed: Tensor, *xs: Tensor) -> Tensor:
        wide = ops.broadcast(ops.reshape(step.value, (3, 1, 1, 40)), (3, 1, 6, 40))
        fade = ops.mul(wide, ops.broadcast(ops.reshape(speed.value, (1, 1, 6, 40)), (3, 1, 6, 40)))
        keys, *rest = (x.value for x in xs)
        return Tensor(ops.call("recurrence", keys, keys, rest[0], ops.exp(fade), *rest[1:])[0])

    made = weft.compile(fn, device=device)
    found = made(*map(weft.tensor, (step, speed, k, v, slot, memory))).numpy()
    assert [kernel.name.partition("_")[0] for kernel in made.programs()[0].kernels] == [
        "recurrence"
    ]
    faded = np.exp(step[:, None, None, :].astype(np.float64) * speed).astype(np.float32)
    want = 2 * defined([k, k, v, faded, slot, memory], False)[0]
    np.testing.assert_allclose(found, want, atol=3e-5, rtol=1e-4)


def test_what_is_refused() -> None:
    xs = operands([0, 0], 2, 4, 8, 16)
    for at, changed, error in (
        (0, xs[0][:1], ShapeError), (2, xs[2][:, :3], ShapeError), (6, xs[6][0], ShapeError),
        (3, xs[3][:, :3], ShapeError), (4, xs[4][:, :3], ShapeError),
        (5, xs[5].astype(np.float32), DTypeError), (3, xs[3].astype(np.float16), DTypeError),
    ):  # fmt: skip
        with pytest.raises(error, match="recurrence"):
            ops.call("recurrence", *xs[:at], changed, *xs[at + 1 :])
    for few in (xs[:5], [*xs, xs[6]]):
        with pytest.raises(ShapeError, match="recurrence"):
            ops.call("recurrence", *few)
