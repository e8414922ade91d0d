"""scaled_dot_product_attention, against PyTorch's."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import weft
from weft.errors import DTypeError, ShapeError, UsageError

RNG = np.random.default_rng(0)
sdpa = weft.functional.scaled_dot_product_attention
torch_sdpa = torch.nn.functional.scaled_dot_product_attention
MASK = RNG.random((2, 1, 5, 7)) > 0.4
MASK[..., 0] = True  # every query sees a key
CASES = {
    "plain": (4, 7, 8, {}),
    "causal": (4, 5, 8, {"is_causal": True}),
    "causal, more keys": (4, 7, 8, {"is_causal": True}),
    "scale": (4, 7, 8, {"scale": 0.3}),
    "grouped": (2, 7, 8, {"enable_gqa": True}),
    "bool mask": (4, 7, 8, {"attn_mask": MASK}),
    "grouped mask": (2, 7, 8, {"attn_mask": MASK, "enable_gqa": True}),
    "float mask": (4, 7, 8, {"attn_mask": RNG.normal(size=(5, 7))}),
    "other value width": (4, 7, 3, {}),
}


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name: str) -> None:
    groups, keys, width, options = CASES[name]
    shapes = ((2, 4, 5, 8), (2, groups, keys, 8), (2, groups, keys, width))
    arrays = [RNG.normal(size=s) for s in shapes]
    theirs = [torch.tensor(a, requires_grad=True) for a in arrays]
    ours = [weft.tensor(a, requires_grad=True) for a in arrays]
    given = {k: v for k, v in options.items() if k != "attn_mask"}
    mask = options.get("attn_mask")
    want = torch_sdpa(*theirs, None if mask is None else torch.tensor(mask), **given)
    got = sdpa(*ours, None if mask is None else weft.tensor(mask), **given)
    np.testing.assert_allclose(got.numpy(), want.detach().numpy(), rtol=1e-9, atol=1e-12)
    want.square().sum().backward()
    got.square().sum().backward()
    for a, b in zip(ours, theirs):
        np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), rtol=1e-7, atol=1e-10)


def test_three_axes_narrow_floats_and_compiled() -> None:
    q = weft.randn(3, 6, 16)
    want = sdpa(q, q, q, is_causal=True)
    assert want.shape == (3, 6, 16)
    got = weft.compile(lambda x: sdpa(x, x, x, is_causal=True), device="cpu")(q)
    np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-5, atol=1e-6)
    narrow = q.cast("float16")
    masked = sdpa(narrow, narrow, narrow, attn_mask=weft.tensor(np.zeros((6, 6), bool)))
    assert masked.dtype == weft.float16 and not masked.numpy().any()


def test_refused() -> None:
    q, k = weft.randn(1, 4, 3, 8), weft.randn(1, 2, 3, 8)
    with pytest.raises(ShapeError, match="enable_gqa"):
        sdpa(q, k, k)
    with pytest.raises(UsageError, match="not both"):
        sdpa(q, q, q, attn_mask=weft.ones((3, 3)), is_causal=True)


TORCH_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
MASKED = {
    "bool": {"attn_mask": torch.tensor(RNG.random((2, 1, 24, 40)) > 0.3)},
    "float": {"attn_mask": torch.tensor(RNG.normal(size=(24, 40)))},
    "one row for all": {"attn_mask": torch.tensor(RNG.normal(size=(1, 40)))},
    "causal, more keys": {"is_causal": True},
    "grouped": {"attn_mask": torch.tensor(RNG.random((24, 40)) > 0.3), "enable_gqa": True},
    "dropout of nothing": {"dropout_p": 1e-12},
}


def _rounded(dtype: str, *shape: int) -> torch.Tensor:
    """Float64 numbers that `dtype` holds exactly, large enough that softmax is sharp."""
    return torch.tensor(RNG.normal(size=shape) * 4).to(TORCH_DTYPES[dtype]).double()


def _ours(x: torch.Tensor, dtype: str, grad: bool = False) -> weft.Tensor:
    cast = dtype if x.dtype.is_floating_point else None
    return weft.tensor(x.detach().numpy(), dtype=cast, requires_grad=grad)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", MASKED)
@pytest.mark.parametrize("dtype", TORCH_DTYPES)
def test_narrow_results_are_rounded_once(dtype: str, name: str, compiled: bool) -> None:
    """Half a unit in the last place from float64 (and a little of float32), with every option
    that PyTorch's function has; gradients within what 16-bit products of them cost."""
    options = dict(MASKED[name])
    groups = 2 if options.get("enable_gqa") else 4
    q = _rounded(dtype, 2, 4, 24, 32)
    k, v = _rounded(dtype, 2, groups, 40, 32), _rounded(dtype, 2, groups, 40, 32)
    theirs = [x.clone().requires_grad_() for x in (q, k, v)]
    mask = options.pop("attn_mask", None)
    if mask is not None and mask.dtype != torch.bool:
        mask = mask.to(TORCH_DTYPES[dtype]).double()
    want = torch_sdpa(*theirs, mask, **{**options, "dropout_p": 0.0})
    given = [] if mask is None else [_ours(mask, dtype)]
    ours = [_ours(x, dtype, grad=True) for x in (q, k, v)]

    def run(*xs: weft.Tensor) -> weft.Tensor:
        return sdpa(*xs[:3], *xs[3:], **options, **({} if xs[3:] else {"attn_mask": None}))

    narrow_drop = compiled and options.get("dropout_p")  # random numbers need a key in a trace
    fn = weft.compile(run, device="cpu") if compiled and not narrow_drop else run
    got = fn(*[x.detach() for x in ours], *given)
    bits = 8 if dtype == "bfloat16" else 11
    limit = 2.0**-bits * want.detach().abs().numpy() * 1.001 + 2e-5
    far = np.abs(got.cast("float64").numpy() - want.detach().numpy())
    assert got.dtype.name == dtype and (far <= limit).all(), far.max()
    if compiled:
        return
    want.square().sum().backward()
    run(*ours, *given).cast("float32").square().sum().backward()
    for a, b in zip(ours, theirs):
        scale = float(b.grad.abs().max())
        assert a.grad is not None
        off = np.abs(a.grad.cast("float64").numpy() - b.grad.numpy()).max() / scale
        assert off <= 4 * 2.0**-bits, off


def test_hidden_rows_two_axes_and_broadcast_batches() -> None:
    """As PyTorch: -inf hides as False does, a row that sees nothing is zeros; [T, D] operands and
    batches that broadcast."""
    q = torch.tensor(RNG.normal(size=(3, 4)))
    k = torch.tensor(RNG.normal(size=(5, 4)))
    mask = torch.tensor(RNG.normal(size=(3, 5)))
    mask[1], mask[2, 1:] = -torch.inf, -torch.inf
    ours = [weft.tensor(x.numpy()) for x in (q, k, k, mask)]
    got = sdpa(*ours).numpy()
    np.testing.assert_allclose(got, torch_sdpa(q, k, k, mask).numpy(), rtol=1e-12)
    assert not got[1].any()
    wide, one = RNG.normal(size=(2, 3, 4, 5)), RNG.normal(size=(1, 3, 6, 5))
    want = torch_sdpa(*(torch.tensor(x) for x in (wide, one, one)))
    got = sdpa(*(weft.tensor(x) for x in (wide, one, one))).numpy()
    np.testing.assert_allclose(got, want.numpy(), rtol=1e-9)
    with pytest.raises(DTypeError, match="attn_mask is int32"):
        sdpa(*ours[:3], weft.ones((3, 5), "int32"))
    empty = sdpa(weft.zeros((1, 1, 3, 4)), *[weft.zeros((1, 1, 0, 4))] * 2)
    assert empty.shape == (1, 1, 3, 4) and not empty.numpy().any()
    assert sdpa(*[weft.zeros((1, 1, 3, 0))] * 3, ours[3][:, :3]).shape == (1, 1, 3, 0)
