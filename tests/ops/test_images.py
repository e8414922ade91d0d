"""Convolutions, pools, resizes and norms of images of one to three axes against PyTorch, forward
and gradient, over shapes that hypothesis chooses."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings, strategies as st

import weft
from weft.core.errors import ShapeError, UsageError

F, T = weft.functional, torch.nn.functional
RANKS = st.integers(1, 3)


def same(ours: Any, theirs: Any, *arrays: np.ndarray, tolerance: float = 1e-9) -> None:
    """Values and gradients of a function of float64 arrays."""
    a = [weft.tensor(x, requires_grad=True) for x in arrays]
    b = [torch.tensor(x, requires_grad=True) for x in arrays]
    y, z = ours(*a), theirs(*b)
    assert y.shape == tuple(z.shape)
    weight = np.random.default_rng(9).standard_normal(y.shape)
    (y * weft.tensor(weight)).sum().backward()
    (z * torch.tensor(weight)).sum().backward()
    np.testing.assert_allclose(y.numpy(), z.detach().numpy(), rtol=tolerance, atol=tolerance)
    for u, v in zip(a, b, strict=True):
        np.testing.assert_allclose(u.grad.numpy(), v.grad.numpy(), rtol=tolerance, atol=tolerance)


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape)


def each(draw: Any, rank: int, low: int, high: int) -> tuple[int, ...]:
    return tuple(draw(st.integers(low, high)) for _ in range(rank))


@given(st.data(), RANKS)
@settings(max_examples=60, deadline=None)
def test_convolutions(data: Any, rank: int) -> None:
    draw = data.draw
    groups, kernel = draw(st.sampled_from([1, 1, 2, 3])), each(draw, rank, 1, 3)
    c, o = groups * draw(st.integers(1, 2)), groups * draw(st.integers(1, 2))
    size, more = each(draw, rank, 3, 7), {
        "stride": each(draw, rank, 1, 3), "padding": each(draw, rank, 0, 2),
        "dilation": each(draw, rank, 1, 2), "groups": groups,
    }  # fmt: skip
    reach = [d * (k - 1) + 1 for d, k in zip(more["dilation"], kernel)]
    assume(all(n + 2 * p >= r for n, p, r in zip(size, more["padding"], reach)))
    x, w, b = numbers(2, c, *size), numbers(o, c // groups, *kernel), numbers(o)
    names = f"conv{rank}d"
    same(
        lambda x, w, b: getattr(F, names)(x, w, b, **more),
        lambda x, w, b: getattr(T, names)(x, w, b, **more),
        x, w, b,
    )  # fmt: skip


@given(st.data(), RANKS)
@settings(max_examples=60, deadline=None)
def test_transposed_convolutions(data: Any, rank: int) -> None:
    draw = data.draw
    groups, kernel = draw(st.sampled_from([1, 1, 2])), each(draw, rank, 1, 5)
    c, o = groups * draw(st.integers(1, 2)), groups * draw(st.integers(1, 2))
    size = each(draw, rank, 1, 4)
    more = {"stride": each(draw, rank, 1, 3), "padding": each(draw, rank, 0, 2)}
    apart = each(draw, rank, 1, 3)
    beyond = tuple(draw(st.integers(0, max(s, d) - 1)) for s, d in zip(more["stride"], apart))
    sides = zip(size, more["stride"], more["padding"], apart, kernel, beyond)
    assume(all((n - 1) * s - 2 * p + d * (k - 1) + e + 1 > 0 for n, s, p, d, k, e in sides))
    x, w, b = numbers(2, c, *size), numbers(c, o // groups, *kernel), numbers(o)
    more |= {"output_padding": beyond, "groups": groups, "dilation": apart}  # type: ignore[dict-item]
    name = f"conv_transpose{rank}d"
    same(
        lambda x, w, b: getattr(F, name)(x, w, b, **more),
        lambda x, w, b: getattr(T, name)(x, w, b, **more),
        x, w, b,
    )  # fmt: skip


def test_padding_may_differ_before_and_after() -> None:
    x, w = numbers(1, 2, 5, 6), numbers(3, 2, 3, 2)
    same(
        lambda x, w: F.conv2d(x, w, padding=((2, 0), (1, 3)), stride=2),
        lambda x, w: T.conv2d(T.pad(x, (1, 3, 2, 0)), w, stride=2),
        x, w,
    )  # fmt: skip
    w = numbers(2, 3, 3, 4)
    same(
        lambda x, w: F.conv_transpose2d(x, w, padding=((2, 0), (1, 3)), stride=2),
        lambda x, w: T.conv_transpose2d(x, w, stride=2)[:, :, 2:, 1:-3],
        x, w,
    )  # fmt: skip


@given(st.data(), RANKS)
@settings(max_examples=60, deadline=None)
def test_pools(data: Any, rank: int) -> None:
    draw = data.draw
    kernel, size = each(draw, rank, 1, 4), each(draw, rank, 4, 9)
    at = {
        "kernel_size": kernel, "stride": each(draw, rank, 1, 3),
        "padding": tuple(draw(st.integers(0, k // 2)) for k in kernel),
        "ceil_mode": draw(st.booleans()),
    }  # fmt: skip
    x = numbers(2, 2, *size)
    mine, other = getattr(F, f"max_pool{rank}d"), getattr(T, f"max_pool{rank}d")
    same(lambda x: mine(x, **at), lambda x: other(x, **at), x)
    found = mine(weft.tensor(x), **at, return_indices=True)[1].numpy()
    np.testing.assert_array_equal(found, other(torch.tensor(x), **at, return_indices=True)[1])
    counted = at if rank == 1 and not at["ceil_mode"] else {**at, "count_include_pad": False}
    mine, other = getattr(F, f"avg_pool{rank}d"), getattr(T, f"avg_pool{rank}d")
    same(lambda x: mine(x, **counted), lambda x: other(x, **counted), x)
    if not any(at.pop("padding")):
        mine, other = getattr(F, f"lp_pool{rank}d"), getattr(T, f"lp_pool{rank}d")
        if rank == 1:
            at["kernel_size"] = kernel[0]
        same(lambda x: mine(x, 3.0, **at), lambda x: other(x, 3.0, **at), np.abs(x) + 0.5)


@pytest.mark.parametrize("p", [1, 2, 3, 4, 1.5, 0.5, -2, np.inf, -np.inf])
def test_norms_of_negative_and_zero_windows(p: float) -> None:
    """Values and gradients: the sum of odd powers may be negative (NaN unless p is 1) or 0."""
    x = np.array([[[-1, -2, 3, 4, -5, -6, 0, 0, 2, 3]]], np.float32)
    a, b = torch.tensor(x, requires_grad=True), weft.tensor(x, requires_grad=True)
    want, got = T.lp_pool1d(a, p, 2), F.lp_pool1d(b, p, 2)
    np.testing.assert_allclose(got.numpy(), want.detach().numpy(), rtol=2e-6)
    if p >= 1:  # the power of 0 has no slope below
        want.sum().backward()
        got.sum().backward()
        np.testing.assert_allclose(b.grad.numpy(), a.grad.numpy(), rtol=1e-5, atol=1e-7)


def test_indices_of_a_pool_with_ties_and_the_lowest() -> None:
    x = np.array([[[-np.inf, -np.inf, 2, 2, 1, np.nan]]], np.float32)
    y, at = F.max_pool1d(weft.tensor(x), 2, padding=1, stride=2, return_indices=True)
    np.testing.assert_array_equal(at.numpy(), [[[0, 2, 3, 5]]])
    np.testing.assert_array_equal(y.numpy()[0, 0, 1:], [2, 2, np.nan])
    fn = weft.compile(lambda x: F.max_pool1d(x, 2, padding=1, stride=2, return_indices=True))
    np.testing.assert_array_equal(fn(weft.tensor(x))[1].numpy(), at.numpy())


@given(st.data(), RANKS)
@settings(max_examples=30, deadline=None)
def test_adaptive_pools(data: Any, rank: int) -> None:
    size, out = each(data.draw, rank, 1, 7), each(data.draw, rank, 1, 8)
    x = numbers(2, 2, *size)
    for kind in ("avg", "max"):
        name = f"adaptive_{kind}_pool{rank}d"
        mine, other = getattr(F, name), getattr(T, name)
        same(functools.partial(mine, output_size=out), functools.partial(other, output_size=out), x)
    found = mine(weft.tensor(x), out, return_indices=True)[1].numpy()
    np.testing.assert_array_equal(found, other(torch.tensor(x), out, return_indices=True)[1])


@given(st.data(), RANKS)
@settings(max_examples=80, deadline=None)
def test_interpolate(data: Any, rank: int) -> None:
    draw = data.draw
    linear = ("linear", "bilinear", "trilinear")[rank - 1]
    more = ("bicubic",) if rank == 2 else ()
    mode = draw(st.sampled_from(["nearest", "nearest-exact", "area", linear, *more]))
    at: dict[str, Any] = {"mode": mode}
    if mode in (linear, *more):
        at["align_corners"] = draw(st.booleans())
    if draw(st.booleans()):
        at["size"] = each(draw, rank, 1, 9)
    else:
        at["scale_factor"] = tuple(draw(st.sampled_from([0.5, 1.7, 2.0, 3.0])) for _ in range(rank))
        at["recompute_scale_factor"] = draw(st.booleans()) or None
    x = numbers(2, 2, *each(draw, rank, 2, 6))
    same(lambda x: F.interpolate(x, **at), lambda x: T.interpolate(x, **at), x, tolerance=1e-6)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("size", [(3, 9), (7, 4), (12, 2), (5, 3)])
def test_antialias(mode: str, corners: bool, size: tuple[int, int]) -> None:
    at: dict[str, Any] = {"mode": mode, "antialias": True, "align_corners": corners}
    x = numbers(2, 2, 8, 7)
    same(lambda x: F.interpolate(x, size, **at), lambda x: T.interpolate(x, size, **at), x,
         tolerance=1e-6)  # fmt: skip


@given(st.data(), st.integers(2, 3))
@settings(max_examples=60, deadline=None)
def test_grid_sample(data: Any, rank: int) -> None:
    draw = data.draw
    modes = ["bilinear", "nearest", "bicubic"][: 5 - rank]
    at: dict[str, Any] = {
        "mode": draw(st.sampled_from(modes)),
        "padding_mode": draw(st.sampled_from(["zeros", "border", "reflection"])),
        "align_corners": draw(st.booleans()),
    }  # fmt: skip
    x = numbers(2, 3, *each(draw, rank, 1, 5))
    grid = numbers(2, *each(draw, rank, 1, 4), rank) * 0.9 + 0.0137
    if at["mode"] == "nearest":  # of which the places have no derivative
        places = {F: weft.tensor(grid), T: torch.tensor(grid)}
        same(lambda x: F.grid_sample(x, places[F], **at),
             lambda x: T.grid_sample(x, places[T], **at), x)  # fmt: skip
    else:
        same(lambda x, g: F.grid_sample(x, g, **at), lambda x, g: T.grid_sample(x, g, **at),
             x, grid, tolerance=1e-6)  # fmt: skip


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_unfold_and_fold(data: Any) -> None:
    draw = data.draw
    at = {"kernel_size": each(draw, 2, 1, 3), "dilation": each(draw, 2, 1, 2),
          "padding": each(draw, 2, 0, 1), "stride": each(draw, 2, 1, 3)}  # fmt: skip
    x = numbers(2, 3, *each(draw, 2, 5, 8))
    same(lambda x: F.unfold(x, **at), lambda x: T.unfold(x, **at), x)
    columns = T.unfold(torch.tensor(x), **at).numpy() + 1
    size = x.shape[2:]
    same(lambda c: F.fold(c, size, **at), lambda c: T.fold(c, size, **at), columns)


@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("rest", [(), (5,), (3, 4), (2, 3, 2)])
def test_group_and_instance_norm(groups: int, rest: tuple[int, ...]) -> None:
    x, w, b = numbers(2, 6, *rest), numbers(6), numbers(6) + 1
    if rest or groups < 6:
        same(
            lambda x, w, b: F.group_norm(x, groups, w, b),
            lambda x, w, b: T.group_norm(x, groups, w, b),
            x, w, b,
        )  # fmt: skip
    if rest and groups == 6:
        same(
            lambda x, w, b: F.instance_norm(x, weight=w, bias=b),
            lambda x, w, b: T.instance_norm(x, weight=w, bias=b),
            x, w, b,
        )  # fmt: skip
        kept = [np.abs(v) + 0.1 for v in (w, b)]
        ours = F.instance_norm(*map(weft.tensor, (x, *kept)), use_input_stats=False).numpy()
        want = T.instance_norm(*map(torch.tensor, (x, *kept)), use_input_stats=False).numpy()
        np.testing.assert_allclose(ours, want, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("r", [1, 2, 3])
def test_pixel_shuffle(r: int) -> None:
    x = numbers(2, 2 * r * r, 3, 4)
    same(lambda x: F.pixel_shuffle(x, r), lambda x: T.pixel_shuffle(x, r), x)
    back = numbers(2, 2, 3 * r, 4 * r)
    same(lambda x: F.pixel_unshuffle(x, r), lambda x: T.pixel_unshuffle(x, r), back)


def test_refused() -> None:
    image, line = weft.ones((1, 4, 6, 6)), weft.ones((1, 4, 6))
    for error, text, call in (
        (ShapeError, r"expected \[N, C, H, W\]", lambda: F.conv2d(line, weft.ones((1, 4, 1, 1)))),
        (ShapeError, "output_padding", lambda: F.conv_transpose2d(
            image, weft.ones((4, 1, 2, 2)), output_padding=1)),
        (ShapeError, "leaves an image", lambda: F.conv_transpose1d(
            line, weft.ones((4, 1, 1)), padding=3)),
        (UsageError, "pairs", lambda: F.conv2d(
            image, weft.ones((1, 4, 1, 1)), padding=((1, 1),))),
        (UsageError, "one integer or three", lambda: F.max_pool3d(
            weft.ones((1, 1, 2, 2, 2)), (1, 1))),
        (UsageError, "norm_type", lambda: F.lp_pool2d(image, 0, 2)),
        (UsageError, "one of nearest", lambda: F.interpolate(image, 3, mode="lanczos")),
        (UsageError, "not both", lambda: F.interpolate(image, 3, 2.0)),
        (UsageError, "align_corners", lambda: F.interpolate(image, 3, align_corners=True)),
        (ShapeError, "does not fit mode", lambda: F.interpolate(image, 3, mode="linear")),
        (ShapeError, "groups that divide C", lambda: F.group_norm(image, 3)),
        (ShapeError, "C r r", lambda: F.pixel_shuffle(image, 3)),
    ):  # fmt: skip
        with pytest.raises(error, match=text):
            call()
