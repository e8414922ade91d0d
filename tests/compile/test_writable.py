"""Groups hold what a kernel can compute; what a template refuses all the same is split."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
from graphs import check, f32, groups
from rows import few

from weft import ops
from weft.backends.registry import get
from weft.compile.merge import stranger
from weft.compile.passes import compile_graph, groups_of
from weft.core import dtypes as dt
from weft.core.caps import PRESETS, Caps
from weft.core.errors import CompileError
from weft.graph.ir import Graph, Node
from weft.templates import registry

CPU = get("cpu")
ROWS = (1, 2, 33, 64, 256, 512, 1024, 2048, 4096)
NAMES = ("layer_norm", "rms_norm", "dot", "add", "gelu", "softmax", "heads", "attention", "half")


def norm(x: Node, name: str = "layer_norm") -> Node:
    ones = ops.const(np.ones(x.shape[-1:], np.float32))
    more = (ops.mul(ones, 0.5),) if name == "layer_norm" else ()
    return ops.call(name, x, ones, *more, eps=1e-5)


@pytest.mark.parametrize("rows", ROWS)
def test_a_norm_of_a_residual_and_a_normed_product(rows: int) -> None:
    """The product's kernel takes one norm: the second is a kernel of its own."""
    x, w, r = f32("x", rows, 64), f32("w", 64, 96), f32("r", rows, 96)
    out = norm(ops.add(r, norm(ops.dot(x, w))))
    check(Graph((x, w, r), (out,)), CPU, tol=1e-4)


def chain(seed: int) -> Graph:
    """Norms, attention and products behind one another, at any number of rows."""
    rng = random.Random(seed)
    names = [rng.choice(NAMES) for _ in range(rng.randint(3, 7))]
    n, d = rng.choice(ROWS), rng.choice((16, 32, 96))
    n = min(n, 512) if "attention" in names else n
    x, y, w = f32("x", n, d), f32("y", n, d), f32("w", d, d)
    values = [x, y]
    for name in names:
        a, b = values[-1], rng.choice(values)
        values.append(_step(name, a, b, w))
    return Graph((x, y, w), (values[-1], values[-2]), name="-".join(names))


def _step(name: str, a: Node, b: Node, w: Node) -> Node:
    n, d = a.shape
    if name in ("layer_norm", "rms_norm"):
        return norm(ops.add(norm(ops.dot(a, w), name), b), name)
    if name == "dot":
        return ops.mul(ops.dot(a, w), 0.25)
    if name == "add":
        return ops.add(a, b)
    if name == "gelu":
        return ops.call("gelu", a, approximate="tanh")
    if name == "softmax":
        return ops.call("softmax", ops.add(a, b))
    if name == "heads":
        return ops.reshape(norm(ops.reshape(ops.dot(a, w), (n, 2, d // 2))), (n, d))
    if name == "half":
        return ops.add(ops.cast(ops.cast(norm(a), dt.float16), dt.float32), b)
    q, k, v = (_heads(z, n, d) for z in (norm(ops.dot(a, w)), a, b))
    out = ops.call("attention", q, k, v, causal=True, scale=0.25)
    return ops.reshape(ops.transpose(out, (0, 2, 1, 3)), (n, d))


def _heads(x: Node, n: int, d: int) -> Node:
    return ops.transpose(ops.reshape(x, (1, n, 2, d // 2)), (0, 2, 1, 3))


@pytest.mark.parametrize("seed", few(range(400), *range(24)))
def test_chains_on_the_cpu(seed: int) -> None:
    graph = chain(seed)
    assert [g for g in groups_of(graph, CPU.caps) if stranger(g) is not None] == []
    tol = 2e-2 if "half" in graph.name else 1e-3
    program = check(graph, CPU, tol=tol)
    assert not [why for why in program.meta["report"].stored if "could be written" in why]


@pytest.mark.parametrize("caps", PRESETS.values(), ids=PRESETS)
def test_no_group_of_any_target_holds_a_stranger(caps: Caps) -> None:
    for seed in range(12):
        assert [g for g in groups_of(chain(seed), caps) if stranger(g) is not None] == []


@pytest.fixture
def stubborn(request: pytest.FixtureRequest) -> Iterator[list[int]]:
    """A template of the named kind that writes one node besides the anchor at most."""
    kind = request.param
    real, sizes = registry.get(kind), []

    def refusing(group, caps, config):  # type: ignore[no-untyped-def]
        inner = [n for n in group.inside() if n is not group.anchor and n.op != "const"]
        sizes.append(len(inner))
        if len(inner) > 1:
            raise CompileError("too much at once")
        return real(group, caps, config)

    registry._TEMPLATES[kind] = refusing
    yield sizes
    registry._TEMPLATES[kind] = real


@pytest.mark.parametrize("stubborn", ["map", "matmul", "norm"], indirect=True)
def test_what_a_template_refuses_is_split(stubborn: list[int]) -> None:
    x, w, r = f32("x", 300, 16), f32("w", 16, 16), f32("r", 300, 16)
    y = ops.add(ops.exp(ops.mul(ops.dot(ops.tanh(ops.exp(ops.neg(x))), w), r)), r)
    out = ops.tanh(ops.add(norm(ops.add(ops.exp(ops.neg(y)), r)), y))
    graph = Graph((x, w, r), (out,))
    program = check(graph, CPU, tol=1e-3)
    assert max(stubborn) > 1  # it refused something
    assert len(groups(program)) > len(groups_of(graph, CPU.caps))


def test_what_cannot_be_split_is_refused_with_the_first_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refusing(group, caps, config):  # type: ignore[no-untyped-def]
        raise CompileError(f"never with {len(group.inside())}")

    registry.get("map")
    monkeypatch.setitem(registry._TEMPLATES, "map", refusing)
    x = f32("x", 300, 16)
    with pytest.raises(CompileError, match="never with 3"):
        compile_graph(Graph((x,), (ops.tanh(ops.exp(ops.neg(x))),)), CPU.caps)
