"""Functions of networks over a batch that holds nothing: shapes and gradients as PyTorch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as TF

import weft
import weft.functional as F

IMAGE = [(0, 2, 6, 6)]
CASES: dict[str, tuple[str, list[tuple[int, ...]], dict[str, Any]]] = {
    "pool, places": ("max_pool2d", IMAGE, {"kernel_size": 2, "return_indices": True}),
    "adaptive pool, places": (
        "adaptive_max_pool2d", IMAGE, {"output_size": 3, "return_indices": True}),
    "pool": ("avg_pool2d", IMAGE, {"kernel_size": 2}),
    "convolution": ("conv2d", [*IMAGE, (3, 2, 3, 3), (3,)], {}),
    "transposed": ("conv_transpose2d", [*IMAGE, (2, 3, 3, 3), (3,)], {"stride": 2}),
    "group norm": ("group_norm", [(0, 4, 3)], {"num_groups": 2}),
    "group norm, rows": ("group_norm", [(0, 2)], {"num_groups": 1}),
    "group norm, no places": ("group_norm", [(2, 4, 0)], {"num_groups": 2}),
    "instance norm": ("instance_norm", [(0, 3, 4)], {}),
    "layer norm of two axes": ("layer_norm", [(0, 4, 3), (4, 3), (4, 3)], {"axes": 2}),
    "rms norm of two axes": ("rms_norm", [(0, 4, 3), (4, 3)], {"axes": 2}),
    "unfold": ("unfold", [(0, 2, 5, 5)], {"kernel_size": 2}),
    "fold": ("fold", [(0, 8, 16)], {"output_size": (5, 5), "kernel_size": 2}),
    "bilinear": ("interpolate", IMAGE, {"scale_factor": 2.0, "mode": "bilinear"}),
    "attention": ("scaled_dot_product_attention", [(0, 2, 5, 4)] * 3, {"is_causal": True}),
    "samples": ("grid_sample", [*IMAGE, (0, 3, 4, 2)], {"align_corners": False}),
    "samples, bicubic": (
        "grid_sample", [*IMAGE, (0, 3, 4, 2)], {"mode": "bicubic", "align_corners": False}),
    "samples, volume": ("grid_sample", [(0, 2, 3, 3, 3), (0, 2, 2, 2, 3)],
        {"align_corners": True, "padding_mode": "reflection"}),
}  # fmt: skip


def first(x: Any) -> Any:
    return x[0] if isinstance(x, tuple) else x


def in_torch(name: str, given: list[torch.Tensor], options: dict[str, Any]) -> torch.Tensor:
    options = dict(options)
    axes = options.pop("axes", None)
    if axes:
        made = getattr(TF, name)(given[0], given[0].shape[-axes:], *given[1:], **options)
    else:
        made = getattr(TF, name)(*given, **options)
    made = first(made)
    assert isinstance(made, torch.Tensor)
    return made


@pytest.mark.parametrize("case", CASES)
def test_shapes_and_gradients(case: str) -> None:
    name, shapes, options = CASES[case]
    arrays = [np.ones(s, np.float32) for s in shapes]
    given = [torch.tensor(a, requires_grad=True) for a in arrays]
    want = in_torch(name, given, options)
    want.sum().backward()  # type: ignore[no-untyped-call]
    function = getattr(F, name)
    compiled = weft.compile(lambda *x: function(*x, **options))
    assert first(compiled(*arrays)).shape == tuple(want.shape)
    tensors = [weft.tensor(a).requires_grad_() for a in arrays]
    got = first(function(*tensors, **options))
    assert got.shape == tuple(want.shape)
    got.sum().backward()
    for t, g in zip(tensors, given, strict=True):
        assert t.grad is not None and g.grad is not None
        np.testing.assert_array_equal(t.grad.numpy(), g.grad.numpy())
