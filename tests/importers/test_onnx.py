"""ONNX files run: node tests of the onnx package, and ONNX Runtime on what it lacks."""

from __future__ import annotations

import numpy as np
import onnx_cases as kit
import pytest
from onnx_kit import MS, beside, peer, rows, run, single

import weft
from weft.errors import CallError, DTypeError, ShapeError
from weft.importers import from_onnx

onnx = pytest.importorskip("onnx")
helper = onnx.helper
RANDOM = "random numbers of its own"
EXPECTED = {  # failures, and why
    **dict.fromkeys(("test_bernoulli_seed", "test_bernoulli_seed_expanded"), RANDOM),
    **{f"test_training_dropout{x}": RANDOM for x in ("", "_mask", "_default", "_default_mask")},
    **dict.fromkeys(("test_not_2d", "test_not_3d", "test_not_4d"), "opset 1"),
    **dict.fromkeys(("test_dft_inverse", "test_dft_inverse_opset19"), "noise of the reference"),
}


# -- the suite of the onnx package ----------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_node_tests_pass() -> None:
    """95 % or more of those in weft's dtypes; docs/onnx.md lists the rest."""
    count = 0
    wrong = {}
    for case in kit.cases():
        if case.wide:
            continue
        count += 1
        try:
            kit.by_weft(case)
        except Exception as error:
            wrong[case.name] = str(error)[:200]
    unexpected = {n: e for n, e in wrong.items() if n not in EXPECTED and "image_decoder" not in n}
    unexpected = {n: e for n, e in unexpected.items() if "causal_fp16" not in n}
    assert count >= 1500 and len(wrong) <= 0.05 * count
    assert not unexpected


SAMPLE = """abs pow clip slice_neg_steps gather_elements_0 topk_smallest if
    scan_sum scan9_sum lstm_with_peepholes gru_defaults simple_rnn_batchwise convtranspose_1d
    matmulinteger averagepool_2d_ceil quantizelinear dynamicquantizelinear qlinearconv einsum_sum
    softmax_axis_0 layer_normalization_2d_axis0 attention_3d_gqa gelu_tanh_1 nonzero_example
    nonmaxsuppression_two_classes unique_sorted_without_axis range_float_type_positive_delta
    affine_grid_2d cumsum_1d scatternd_add convinteger_with_padding gathernd_example_float32
    maxpool_2d_ceil reduce_l1_default_axes_keepdims_example instancenorm_example mod_broadcast
"""


def test_a_sample_of_the_node_tests() -> None:
    found = [*kit.cases(*(f"test_{name}" for name in SAMPLE.split()))]
    assert len(found) >= 25
    for case in found:
        kit.by_weft(case)


# -- calling --------------------------------------------------------------------------------------


def test_inputs_by_order_and_by_name() -> None:
    made = from_onnx(single("Sub", {"a": rows(2), "b": rows(2)}))
    a, b = rows(2), rows(2, seed=1)
    assert np.array_equal(made(a, b).numpy(), a - b)
    assert np.array_equal(made(b=b, a=a).numpy(), a - b)
    with pytest.raises(CallError, match="b is missing"):
        made(a)
    with pytest.raises(CallError, match="no input 'c'"):
        made(a, b, c=a)
    with pytest.raises(DTypeError, match="float32"):
        made(a.astype(np.float16), b)
    with pytest.raises(ShapeError, match="shape"):
        made(rows(3), b)


def test_integers_that_decide_shapes_are_part_of_the_signature() -> None:
    made = from_onnx(single("Reshape", {"x": rows(2, 6), "shape": np.array([3, 4])}))
    x = rows(2, 6)
    for shape in ([3, 4], [6, 2], [-1, 6]):
        assert np.array_equal(made(x, np.array(shape)).numpy(), x.reshape(shape))
    assert ("input shape", "part of the signature") in [(a, b[:21]) for a, b in made.where()]


def test_a_node_that_needs_values_runs_by_itself() -> None:
    """What comes before and after it is compiled."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("NonZero", ["a"], ["i"]),
        helper.make_node("Transpose", ["i"], ["t"]),
        helper.make_node("GatherND", ["a", "t"], ["y"]),
    ]
    info = [helper.make_tensor_value_info("x", 1, (16, 16))]
    graph = helper.make_graph(nodes, "g", info, [onnx.ValueInfoProto(name="y")])
    made = from_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))
    for seed in range(2):
        x = rows(16, 16, seed=seed)
        assert np.array_equal(made(x).numpy(), x[x > 0])
    assert "by itself" in dict(made.where())["NonZero 'i'"]


def test_integers_beyond_int32_are_exact_or_refused() -> None:
    arrays = {"x": np.array([1, 2]), "w": np.array([1 << 40, 0])}
    model = single("Add", arrays, ["w"])
    np.testing.assert_array_equal(run(model, arrays["x"])[0], [(1 << 40) + 1, 2])
    with pytest.raises(DTypeError, match="int32"):
        run(model, arrays["x"], device="interp")


def test_it_runs_on_a_gpu() -> None:
    if not any(d.kind == "vulkan" and d.available for d in weft.devices()):
        pytest.skip("no Vulkan device")
    arrays = {"x": rows(1, 3, 8, 8), "w": rows(4, 3, 3, 3, seed=1)}
    model = single("Conv", arrays, ["w"], pads=[1, 0, 2, 1], strides=[2, 1])
    (made,) = run(model, arrays["x"], device="vulkan")
    np.testing.assert_allclose(made, peer(model, arrays["x"])[0], rtol=1e-4, atol=1e-5)


def test_it_is_part_of_a_larger_function() -> None:
    made = from_onnx(single("Exp", {"x": rows(3)}))
    x = rows(3)
    both = weft.compile(lambda x: made(x) * 2.0)
    np.testing.assert_allclose(both(x).numpy(), np.exp(x) * 2, rtol=1e-6)


# -- com.microsoft, beside ONNX Runtime -----------------------------------------------------------


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("k", [64, 48])
def test_matmul_nbits(zeros: bool, k: int) -> None:
    rng = np.random.default_rng(0)
    n, block = 8, 32
    groups = -(-k // block)
    arrays = {"x": rows(3, k), "w": rng.integers(0, 256, (n, groups, block // 2)).astype(np.uint8)}
    arrays["s"] = rng.random((n, groups)).astype(np.float32)
    if zeros:
        arrays["z"] = rng.integers(0, 256, (n, -(-groups // 2))).astype(np.uint8)
    attrs = {"K": k, "N": n, "bits": 4, "block_size": block}
    model = single("MatMulNBits", arrays, [x for x in arrays if x != "x"], MS, **attrs)
    beside(model, arrays["x"], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("step", [0, 3])
@pytest.mark.parametrize("rotary", [0, 1])
def test_group_query_attention(step: int, rotary: int) -> None:
    """A prompt of 5 (step 0), and one token after 3."""
    t, before, d = (5, 0, 16) if not step else (1, step, 16)
    arrays = {
        "q": rows(2, t, 4 * d),
        "k": rows(2, t, 2 * d, seed=1),
        "v": rows(2, t, 2 * d, seed=2),
    }
    arrays |= {"pk": rows(2, 2, before, d, seed=3), "pv": rows(2, 2, before, d, seed=4)}
    arrays["last"] = np.full(2, t + before - 1, np.int32)
    arrays["total"] = np.array(t + before, np.int32)
    angle = np.outer(np.arange(16), np.arange(d // 2) + 1) * 0.1
    arrays |= {"c": np.cos(angle).astype(np.float32), "s": np.sin(angle).astype(np.float32)}
    attrs = {"num_heads": 4, "kv_num_heads": 2, "do_rotary": rotary, "outputs": ["y", "nk", "nv"]}
    model = single("GroupQueryAttention", arrays, ["c", "s"], MS, **attrs)
    beside(model, *[a for n, a in arrays.items() if n not in ("c", "s")])


def test_skip_layer_normalization() -> None:
    arrays = {
        "x": rows(2, 3, 8),
        "skip": rows(2, 3, 8, seed=1),
        "g": rows(8, seed=2),
        "b": rows(8, seed=3),
    }
    beside(
        single("SkipLayerNormalization", arrays, ["g", "b"], MS, epsilon=1e-5),
        arrays["x"],
        arrays["skip"],
    )
    del arrays["b"]
    model = single("SkipSimplifiedLayerNormalization", arrays, ["g"], MS, epsilon=1e-5)
    beside(model, arrays["x"], arrays["skip"])


@pytest.mark.parametrize("op", ["Gelu", "FastGelu", "QuickGelu"])
def test_activations(op: str) -> None:
    beside(single(op, {"x": rows(4, 8)}, (), MS), rows(4, 8), rtol=1e-3)


def test_multi_head_attention() -> None:
    arrays = {"q": rows(2, 3, 16), "k": rows(2, 5, 16, seed=1), "v": rows(2, 5, 16, seed=2)}
    beside(single("MultiHeadAttention", arrays, (), MS, num_heads=2), *arrays.values())


def test_fused_matmul() -> None:
    arrays = {"a": rows(2, 5, 3), "b": rows(2, 4, 5, seed=1)}
    model = single("FusedMatMul", arrays, (), MS, transA=1, transB=1, alpha=0.5)
    beside(model, *arrays.values())


def test_quantised_addition() -> None:
    scale, zero = np.array(0.05, np.float32), np.array(128, np.uint8)
    arrays = {"a": np.arange(64, dtype=np.uint8) * 3, "sa": scale, "za": zero}
    arrays |= {"b": np.arange(64, dtype=np.uint8)[::-1] * 2, "sb": scale, "zb": zero}
    arrays |= {"sy": np.array(0.1, np.float32), "zy": zero}
    constants = [n for n in arrays if n not in "ab"]
    beside(single("QLinearAdd", arrays, constants, MS), arrays["a"], arrays["b"], atol=1.01)
