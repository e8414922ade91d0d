"""What fuses with what: kinds and contents of the groups of well-known blocks."""

import numpy as np
from graphs import check, f32, groups, i32

from weft import ops
from weft.backends.interp import InterpDevice
from weft.backends.registry import get
from weft.core.caps import PRESETS
from weft.graph.ir import Graph

CPU = get("cpu")


def linear(x, w, b=None):
    y = ops.dot(x, ops.transpose(w, (1, 0)))
    return y if b is None else ops.add(y, ops.broadcast(b, y.shape))


def kinds(program):
    return [kind for kind, _ in groups(program)]


def test_mlp_is_two_kernels():
    x, w1, b1 = f32("x", 20, 16), f32("w1", 32, 16, role="weight"), f32("b1", 32, role="weight")
    w2, b2 = f32("w2", 16, 32, role="weight"), f32("b2", 16, role="weight")
    h = ops.call("gelu", linear(x, w1, b1), approximate="tanh")
    graph = Graph((x, w1, b1, w2, b2), (ops.add(x, linear(h, w2, b2)),))
    program = check(graph, CPU)
    assert kinds(program) == ["matmul", "matmul"]
    assert "exp" in groups(program)[0][1] and groups(program)[1][1].count("add") == 2
    assert program.meta["report"].copies == []


def test_gated_mlp_is_one_kernel_for_both_dots():
    x = f32("x", 20, 16)
    wg, wu = f32("wg", 32, 16, role="weight"), f32("wu", 32, 16, role="weight")
    out = ops.mul(ops.call("silu", linear(x, wg)), linear(x, wu))
    program = check(Graph((x, wg, wu), (out,)), CPU)
    assert kinds(program) == ["matmul"]
    assert groups(program)[0][1].count("dot") == 2


def test_qkv_is_one_kernel_for_a_single_row():
    x = f32("x", 1, 16)
    w = [f32(f"w{i}", n, 16, role="weight") for i, n in enumerate((32, 16, 16))]
    graph = Graph((x, *w), tuple(linear(x, v) for v in w))
    program = check(graph, CPU)
    assert kinds(program) == ["matvec"] and len(program.outputs) == 3


def test_gpus_join_the_dots_of_a_few_rows_alone():
    """With subgroups one launch reads all weights of a single row; blocks of rows stay apart."""
    for name, rows, expected in (
        ("cuda", 1, ["matvec"]),
        ("cuda", 20, ["matmul"] * 3),
        ("lavapipe", 1, ["matvec"] * 3),
    ):
        x = f32("x", rows, 16)
        w = [f32(f"w{i}", n, 16, role="weight") for i, n in enumerate((32, 16, 24))]
        graph = Graph((x, *w), tuple(linear(x, v) for v in w))
        assert kinds(check(graph, InterpDevice(PRESETS[name]))) == expected
    x = f32("x", 1, 16)
    wg, wu = f32("wg", 32, 16, role="weight"), f32("wu", 32, 16, role="weight")
    out = ops.mul(ops.call("silu", linear(x, wg)), linear(x, wu))
    assert kinds(check(Graph((x, wg, wu), (out,)), InterpDevice(PRESETS["cuda"]))) == ["matvec"]


def test_dots_that_feed_each_other_stay_apart():
    x, w = f32("x", 20, 16), f32("w", 16, 16, role="weight")
    v = f32("v", 16, 16, role="weight")
    a = linear(x, w)
    b = ops.dot(x, ops.reshape(ops.slice_(a, (0, 0), (16, 16), (1, 1)), (16, 16)))
    program = check(Graph((x, w, v), (b, linear(b, v))), CPU)
    assert kinds(program) == ["matmul", "matmul", "matmul"]


def test_norm_takes_its_producer_and_the_residual_is_stored_once():
    x, r = f32("x", 9, 16), f32("r", 9, 16)
    g, b = f32("g", 16, role="weight"), f32("b", 16, role="weight")
    w = f32("w", 16, 16, role="weight")
    h = ops.add(x, r)
    n = ops.call("layer_norm", h, g, b, eps=1e-5)
    out = ops.add(h, linear(n, w))
    program = check(Graph((x, r, g, b, w), (out,)), CPU)
    assert kinds(program) == ["map", "norm", "matvec"]


def test_attention_block_moves_no_data():
    """q, k, v in one [T, 3*H*D] product; heads are views; the output goes out in token order."""
    t, h, d = 20, 2, 16
    x, w = f32("x", t, h * d), f32("w", 3 * h * d, h * d, role="weight")
    o = f32("o", h * d, h * d, role="weight")
    qkv = linear(x, w)

    def heads(i):
        part = ops.slice_(qkv, (0, i * h * d), (t, (i + 1) * h * d), (1, 1))
        return ops.transpose(ops.reshape(part, (1, t, h, d)), (0, 2, 1, 3))

    a = ops.call("attention", heads(0), heads(1), heads(2), causal=True, scale=d**-0.5)
    merged = ops.reshape(ops.transpose(a, (0, 2, 1, 3)), (t, h * d))
    program = check(Graph((x, w, o), (ops.add(x, linear(merged, o)),)), CPU)
    assert kinds(program) == ["matmul", "attention", "matmul"]


def test_heads_of_windows_are_put_in_order_behind_a_reshape():
    """A window is a head of Hiera's (arXiv:2306.00989): its result is split before it is moved."""
    n, t, d = 3, 8, 16
    q, k, v = (f32(name, 1, n, t, d) for name in "qkv")
    a = ops.call("attention", q, k, v, causal=False, scale=d**-0.5)
    split = ops.reshape(a, (1, 1, n, t, d))
    out = ops.reshape(ops.transpose(split, (0, 3, 2, 1, 4)), (1, n * t, d))
    for device in (CPU, *(InterpDevice(PRESETS[name]) for name in ("webgpu", "cuda"))):
        assert kinds(check(Graph((q, k, v), (out,)), device)) == ["attention"]


def test_embedding_and_rope():
    n, h, d = 6, 2, 8
    ids, pos = i32("ids", n), i32("pos", n)
    table, w = f32("table", 11, h * d, role="weight"), f32("w", h * d, h * d, role="weight")
    cos, sin = f32("cos", 8, d // 2, role="weight"), f32("sin", 8, d // 2, role="weight")
    x = ops.gather(table, ids, axis=0)
    q = ops.reshape(linear(x, w), (n, h, d))
    out = ops.call("rope", q, ops.gather(cos, pos, axis=0), ops.gather(sin, pos, axis=0))
    program = check(Graph((ids, pos, table, w, cos, sin), (out,)), CPU)
    assert kinds(program) == ["map", "matvec", "map"]  # embed, project, rotate


def test_a_batched_linear_layer_takes_its_epilogue_through_the_reshape():
    x, w, b = f32("x", 2, 10, 16), f32("w", 8, 16, role="weight"), f32("b", 8, role="weight")
    flat = linear(ops.reshape(x, (20, 16)), w)
    y = ops.reshape(flat, (2, 10, 8))
    out = ops.tanh(ops.add(y, ops.broadcast(b, (2, 10, 8))))
    program = check(Graph((x, w, b), (out,)), CPU)
    assert kinds(program) == ["matmul"]


def test_equal_layers_share_kernels():
    x = f32("x", 20, 16)
    weights = [f32(f"w{i}", 16, 16, role="weight") for i in range(4)]
    y = x
    for w in weights:
        y = ops.tanh(linear(y, w))
    program = check(Graph((x, *weights), (y,)), CPU)
    assert len(program.steps) == 4 and len(program.kernels) == 1


def test_a_costly_value_of_two_kernels_is_computed_once():
    x = f32("x", 9, 16)
    e = ops.sin(ops.sin(ops.sin(ops.sin(ops.exp(x)))))  # dearer than reading it back
    outs = (ops.sum_(e, (0,)), ops.sum_(e, (1,)))
    program = check(Graph((x,), outs), CPU)
    assert sum(nodes.count("exp") for _, nodes in groups(program)) == 1


def test_a_cheap_value_of_two_kernels_is_computed_twice():
    x = f32("x", 9, 16)
    e = ops.exp(ops.mul(x, x))
    outs = (ops.sum_(e, (0,)), ops.sum_(e, (1,)))
    program = check(Graph((x,), outs), CPU)
    assert sum(nodes.count("exp") for _, nodes in groups(program)) == 2


def test_constants_fold_and_unused_work_goes():
    x = f32("x", 4, 4)
    two = ops.broadcast(ops.as_node(np.float32(2)), (4, 4))
    unused = ops.exp(x)
    y = ops.mul(x, ops.div(two, two))
    program = check(Graph((x,), (ops.transpose(ops.transpose(y, (1, 0)), (1, 0)),)), CPU)
    assert unused is not None
    assert program.kernels == () and program.meta["report"].copies == ["copy to out0"]


def test_the_first_reader_of_a_stored_value_writes_it():
    """A cell's memory is read by its output and by the next step: one kernel writes both. Where
    another reader comes before the first map of its shape, it has a kernel of its own."""
    x, y, w = (f32(n, 20, 16) for n in "xyw")
    memory = ops.add(ops.mul(ops.exp(x), y), ops.mul(ops.exp(y), x))
    out = ops.mul(ops.exp(memory), w)
    after = ops.dot(out, ops.transpose(memory, (1, 0)))
    program = check(Graph((x, y, w), (out, after)), CPU)
    assert kinds(program) == ["map", "matmul"] and len(program.steps[0].args) == 5
    first = ops.dot(memory, ops.transpose(memory, (1, 0)))
    late = ops.exp(ops.add(memory, ops.broadcast(ops.sum_(first), (20, 16))))
    check(Graph((x, y, w), (ops.mul(late, memory),)), CPU)
