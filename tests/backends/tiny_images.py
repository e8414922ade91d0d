"""Tiny calls on images of one to three axes: convolutions, pools, resizes, norms."""

import math

import numpy as np
from tiny_public import case

from weft.core import dtypes as dt

F32 = dt.float32


def _axes(f):
    """How many axes the images of conv1d, max_pool3d, ... have."""
    return int(f.__name__[-2])


def _image(d, axes, channels=None, least=3):
    c = d.between(1, 2) if channels is None else channels
    return (d.between(1, 2), c, *[d.between(least, least + 2 - axes // 3) for _ in range(axes)])


def _sizes(d):
    """A kernel, stride and padding that fit an image of at least 2 x 2."""
    k = d.between(1, 3)
    return k, d.between(1, 2), d.between(min(1, k // 2), k // 2)


@case("conv1d conv2d conv3d")
def _(d, f):
    k, stride, pad = _sizes(d)
    groups, axes = d.between(1, 2), _axes(f)
    c, o, dtype = groups * d.between(1, 2), groups * d.between(1, 2), d.dtype("f")
    shapes = (_image(d, axes, c), (o, c // groups, *[k] * axes), (o,))
    options = {"stride": stride, "padding": pad, "groups": groups}
    arrays = [d.array(s, dtype) for s in shapes][: d.between(2, 3)]
    return lambda *ts: f(*ts, **options), arrays


@case("conv_transpose1d conv_transpose2d conv_transpose3d")
def _(d, f):
    k, stride, pad = _sizes(d)
    groups, axes = d.between(1, 2), _axes(f)
    c, o, dtype = groups * d.between(1, 2), groups * d.between(1, 2), d.dtype("f")
    shapes = (_image(d, axes, c), (c, o // groups, *[k] * axes), (o,))
    options = {"stride": stride, "padding": pad, "groups": groups}
    options |= {"output_padding": d.between(0, stride - 1)}
    arrays = [d.array(s, dtype) for s in shapes][: d.between(2, 3)]
    return lambda *ts: f(*ts, **options), arrays


@case("max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d")
def _(d, f):
    k, stride, pad = _sizes(d)
    ceil, x = d.pick(False, True), d.array(_image(d, _axes(f)), d.dtype("f"))
    return lambda t: f(t, k, stride, pad, ceil_mode=ceil), [x]


@case("lp_pool1d lp_pool2d lp_pool3d")
def _(d, f):
    k, stride, _ = _sizes(d)
    return lambda t: f(t, 2.0, k, stride), [d.array(_image(d, _axes(f)), F32, 1, 2)]


@case("adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d")
@case("adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d")
def _(d, f):
    axes = _axes(f)
    size = tuple(d.between(1, 3) for _ in range(axes))
    return lambda t: f(t, size), [d.array(_image(d, axes, least=1), d.dtype("f"))]


@case("interpolate")
def _(d, f):
    mode = d.pick("nearest", "bilinear", "bicubic")
    sizes = tuple(d.between(1, 5) for _ in range(2))
    corners = {} if mode == "nearest" else {"align_corners": d.pick(False, True)}
    return lambda t: f(t, sizes, mode=mode, **corners), [d.array(_image(d, 2, least=2), F32)]


@case("pixel_shuffle pixel_unshuffle")
def _(d, f):
    times, (n, c, h, w) = d.between(1, 2), _image(d, 2, least=1)
    grown = (n, c * times**2, h, w), (n, c, h * times, w * times)
    shape = grown[f.__name__ == "pixel_unshuffle"]
    return lambda t: f(t, times), [d.array(shape, d.dtype("f"))]


@case("channel_shuffle")
def _(d, f):
    groups = d.between(1, 3)
    return lambda t: f(t, groups), [d.array(_image(d, 2, 2 * groups, 1), d.dtype("f"))]


@case("max_unpool1d max_unpool2d max_unpool3d")
def _(d, f):
    axes = _axes(f)
    x = d.array(_image(d, axes, least=1), d.dtype("f"))
    size = [2 * n for n in x.shape[2:]]
    at = np.random.default_rng(len(size)).permutation(math.prod(size))[: math.prod(x.shape[2:])]
    at = np.broadcast_to(at.reshape(x.shape[2:]), x.shape).astype(np.int32)
    return lambda t, i: f(t, i, 2), [x, np.ascontiguousarray(at)]


@case("fractional_max_pool2d fractional_max_pool3d")
def _(d, f):
    axes = _axes(f)
    x = d.array(_image(d, axes), d.dtype("f"))
    size = tuple(d.between(1, n - 1) for n in x.shape[2:])
    drawn = d.array((*x.shape[:2], axes), F32, 0, 0.9)
    return lambda t, u: f(t, 2, size, samples=u), [x, drawn]


@case("functional.pad")
def _(d, f):
    mode = d.pick("constant", "reflect", "replicate", "circular")
    x = d.array(_image(d, 2), d.dtype())
    widths = [d.between(-1, 2) for _ in range(4)]
    return lambda t: f(t, widths, mode), [x]


@case("grid_sample")
def _(d, f):
    x = d.array(_image(d, 2, least=1), F32)
    grid = d.array((x.shape[0], d.between(1, 2), d.between(1, 3), 2), F32, -1.5, 1.5)
    mode, corners = d.pick("bilinear", "nearest", "bicubic"), d.pick(False, True)
    padding = d.pick("zeros", "border", "reflection")
    return lambda t, g: f(t, g, mode, padding, corners), [x, grid]


@case("unfold")
def _(d, f):
    k, stride, pad = _sizes(d)
    x = d.array(_image(d, 2), d.dtype("f"))
    return lambda t: f(t, k, padding=pad, stride=stride), [x]


@case("fold")
def _(d, f):
    k, size = (d.between(1, 2), d.between(1, 3)), (d.between(3, 4), 3)
    count = (size[0] - k[0] + 1) * (size[1] - k[1] + 1)
    x = d.array((d.between(1, 2), d.between(1, 2) * k[0] * k[1], count), F32)
    return lambda t: f(t, size, k), [x]


@case("group_norm")
def _(d, f):
    groups = d.between(1, 2)
    c = groups * d.between(1, 2)
    arrays = [d.array(_image(d, 2, c, least=2), F32), d.array(c, F32), d.array(c, F32)]
    return lambda t, *w: f(t, groups, *w, eps=0.125), arrays[: d.pick(1, 3)]


@case("instance_norm")
def _(d, f):
    x = d.array(_image(d, d.between(1, 3), least=2), F32)
    w, b = (d.array(x.shape[1], F32) for _ in range(2))
    return lambda t, w, b: f(t, weight=w, bias=b, eps=0.125), [x, w, b]


@case("local_response_norm")
def _(d, f):
    x = d.array(_image(d, d.between(1, 2), d.extent(), least=1), d.dtype("f"))
    size, before = d.between(1, 3), d.pick(None, 0)
    return lambda t: f(t, size, 0.5, 0.75, 1.0, before), [x]


@case("batch_norm")
def _(d, f):
    n, c = d.between(2, 5), d.extent()
    training = d.pick(False, True)
    stats = [d.array(c, F32), d.array(c, F32, 1, 2)]
    return (
        lambda x, m, v, w, b: f(
            x, m.detach() + 0, v.detach() + 0, w, b, training=training, eps=0.125
        ),
        [d.array((n, c, d.extent(), 2), F32), *stats, d.array(c, F32), d.array(c, F32)],
    )
