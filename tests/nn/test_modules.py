"""Every module forward and backward against PyTorch's from the same state dict."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from nnkit import check, close, random, twin
from present import opened
from rows import by_turns

import weft
from weft import nn
from weft.core.errors import ShapeError, UsageError

T = torch.nn
IMAGE = random(2, 4, 9, 8, seed=1)
IDS = np.random.default_rng(2).integers(0, 11, (3, 5)).astype(np.int32)

MODULES: dict[str, tuple[Callable[[Any], Any], np.ndarray]] = {
    "linear": (lambda m: m.Linear(6, 4), random(3, 5, 6)),
    "linear-plain": (lambda m: m.Linear(6, 4, bias=False), random(5, 6)),
    "embedding": (lambda m: m.Embedding(11, 6), IDS),
    "embedding-padding": (lambda m: m.Embedding(11, 6, padding_idx=3), IDS),
    "layer_norm": (lambda m: m.LayerNorm(6), random(3, 5, 6)),
    "layer_norm-plain": (lambda m: m.LayerNorm(6, elementwise_affine=False), random(3, 6)),
    "rms_norm": (lambda m: m.RMSNorm(6), random(3, 5, 6)),
    "rms_norm-eps": (lambda m: m.RMSNorm(6, eps=1e-3), random(3, 5, 6)),
    "layer_norm-axes": (lambda m: m.LayerNorm((4, 9, 8)), IMAGE),
    "layer_norm-two": (lambda m: m.LayerNorm((9, 8), bias=False), IMAGE),
    "layer_norm-two-plain": (lambda m: m.LayerNorm([9, 8], elementwise_affine=False), IMAGE),
    "rms_norm-axes": (lambda m: m.RMSNorm((4, 9, 8)), IMAGE),
    "rms_norm-two-plain": (lambda m: m.RMSNorm((9, 8), elementwise_affine=False), IMAGE),
    "conv2d": (lambda m: m.Conv2d(4, 6, 3), IMAGE),
    "conv2d-options": (lambda m: m.Conv2d(4, 6, (3, 2), (2, 1), (2, 1), (1, 2)), IMAGE),
    "conv2d-groups": (lambda m: m.Conv2d(4, 6, 3, padding=1, groups=2, bias=False), IMAGE),
    "conv2d-depthwise": (lambda m: m.Conv2d(4, 4, 3, stride=2, padding=1, groups=4), IMAGE),
    "conv2d-pointwise": (lambda m: m.Conv2d(4, 5, 1), IMAGE),
    "conv2d-same": (lambda m: m.Conv2d(4, 5, 4, padding="same"), IMAGE),
    "conv2d-same-dilated": (
        lambda m: m.Conv2d(4, 6, (3, 2), padding="same", dilation=2, groups=2),
        IMAGE,
    ),
    "conv2d-valid": (lambda m: m.Conv2d(4, 6, 3, stride=2, padding="valid"), IMAGE),
    "conv1d-same": (lambda m: m.Conv1d(4, 6, (3,), padding="same", dilation=(2,)), random(2, 4, 9)),
    "conv1d": (lambda m: m.Conv1d(4, 6, 3, stride=2, padding=1), random(2, 4, 9)),
    "max_pool2d": (lambda m: m.MaxPool2d(2), IMAGE),
    "max_pool2d-options": (lambda m: m.MaxPool2d(3, stride=2, padding=1), IMAGE),
    "max_pool2d-ties": (lambda m: m.MaxPool2d(3, stride=1), np.round(IMAGE)),
    "max_pool2d-ceil": (lambda m: m.MaxPool2d(2, ceil_mode=True), IMAGE),
    "max_pool2d-ceil-wide": (
        lambda m: m.MaxPool2d((3, 2), (3, 4), (1, 1), (2, 1), ceil_mode=True),
        IMAGE,
    ),
    "avg_pool2d-ceil": (lambda m: m.AvgPool2d(3, 2, 1, True), IMAGE),
    "avg_pool2d-ceil-inside": (lambda m: m.AvgPool2d((2, 3), (2, 3), (1, 1), True, False), IMAGE),
    "avg_pool2d-ceil-divisor": (lambda m: m.AvgPool2d(2, 3, 0, True, divisor_override=5), IMAGE),
    "avg_pool2d-divisor": (lambda m: m.AvgPool2d(3, 2, 1, divisor_override=7), IMAGE),
    "avg_pool2d": (lambda m: m.AvgPool2d(2), IMAGE),
    "avg_pool2d-padding": (lambda m: m.AvgPool2d(3, stride=2, padding=1), IMAGE),
    "avg_pool2d-inside": (
        lambda m: m.AvgPool2d(3, stride=2, padding=1, count_include_pad=False),
        IMAGE,
    ),
    "max_pool1d": (lambda m: m.MaxPool1d(3, 2, 1), random(2, 4, 9)),
    "max_pool3d": (lambda m: m.MaxPool3d(2), random(1, 2, 4, 5, 6)),
    "avg_pool1d": (lambda m: m.AvgPool1d(3, 2, 1), random(2, 4, 9)),
    "avg_pool3d": (lambda m: m.AvgPool3d((1, 2, 3)), random(1, 2, 4, 5, 6)),
    "lp_pool1d": (lambda m: m.LPPool1d(2, 3, 2), random(2, 4, 9)),
    "lp_pool1d-sum": (lambda m: m.LPPool1d(1, 3, ceil_mode=True), random(2, 4, 10)),
    "lp_pool2d": (lambda m: m.LPPool2d(2, (3, 2), ceil_mode=True), IMAGE),
    "lp_pool2d-cubes": (lambda m: m.LPPool2d(3.0, 2, 1), np.abs(IMAGE) + 0.1),
    "lp_pool2d-largest": (lambda m: m.LPPool2d(float("inf"), 2), IMAGE),
    "lp_pool2d-smallest": (lambda m: m.LPPool2d(-float("inf"), 2), IMAGE),
    "lp_pool3d": (lambda m: m.LPPool3d(2, 2), random(1, 2, 4, 5, 6)),
    "unfold": (lambda m: m.Unfold((3, 2), 2, 1, (1, 2)), IMAGE),
    "fold": (lambda m: m.Fold((5, 4), (3, 2), padding=1, stride=2), random(2, 12, 9)),
    "adaptive-max": (lambda m: m.AdaptiveMaxPool2d((4, 3)), IMAGE),
    "adaptive-line": (lambda m: m.AdaptiveMaxPool1d(4), random(2, 4, 9)),
    "adaptive-volume": (lambda m: m.AdaptiveAvgPool3d((2, 2, 5)), random(1, 2, 4, 5, 6)),
    "conv3d": (lambda m: m.Conv3d(2, 3, (2, 3, 1), padding=(1, 0, 1)), random(1, 2, 4, 5, 6)),
    "conv_transpose1d": (lambda m: m.ConvTranspose1d(4, 6, 3, 2, groups=2), random(2, 4, 9)),
    "conv_transpose2d": (lambda m: m.ConvTranspose2d(4, 3, 3, 2, 1, 1), IMAGE),
    "conv_transpose3d": (lambda m: m.ConvTranspose3d(2, 3, 2), random(1, 2, 4, 5, 6)),
    "batch_norm3d": (lambda m: m.BatchNorm3d(2), random(2, 2, 4, 3, 3)),
    "group_norm": (lambda m: m.GroupNorm(2, 4), IMAGE),
    "instance_norm1d": (lambda m: m.InstanceNorm1d(4, affine=True), random(2, 4, 9)),
    "instance_norm2d": (lambda m: m.InstanceNorm2d(4), IMAGE),
    "instance_norm3d": (lambda m: m.InstanceNorm3d(2), random(2, 2, 4, 3, 3)),
    "upsample": (lambda m: m.Upsample(scale_factor=2, mode="bilinear"), IMAGE),
    "pixel_shuffle": (lambda m: m.PixelShuffle(2), IMAGE),
    "pixel_unshuffle": (lambda m: m.PixelUnshuffle(4), random(1, 2, 8, 4)),
    "adaptive": (lambda m: m.AdaptiveAvgPool2d(1), IMAGE),
    "adaptive-parts": (lambda m: m.AdaptiveAvgPool2d((3, 2)), IMAGE),
    "adaptive-uneven": (lambda m: m.AdaptiveAvgPool2d((4, 3)), IMAGE),
    "adaptive-more": (lambda m: m.AdaptiveAvgPool2d((12, 8)), IMAGE),
    "adaptive-kept": (lambda m: m.AdaptiveAvgPool2d((None, 5)), IMAGE),
    "batch_norm1d": (lambda m: m.BatchNorm1d(6), random(8, 6)),
    "batch_norm1d-long": (lambda m: m.BatchNorm1d(4), random(2, 4, 9)),
    "batch_norm2d": (lambda m: m.BatchNorm2d(4), IMAGE),
    "batch_norm2d-unbiased": (lambda m: m.BatchNorm2d(4, bias=False), IMAGE),
    "batch_norm2d-average": (lambda m: m.BatchNorm2d(4, momentum=None), IMAGE),
    "batch_norm2d-plain": (
        lambda m: m.BatchNorm2d(4, affine=False, track_running_stats=False),
        IMAGE,
    ),
    "batch_norm2d-eval": (lambda m: m.BatchNorm2d(4).eval(), IMAGE),
    "flatten": (lambda m: m.Flatten(), IMAGE),
    "identity": (lambda m: m.Identity(), IMAGE),
    "relu": (lambda m: m.ReLU(), np.maximum(IMAGE, 0)),
    "gelu": (lambda m: m.GELU(), IMAGE),
    "gelu-tanh": (lambda m: m.GELU("tanh"), IMAGE),
    "silu": (lambda m: m.SiLU(), IMAGE),
    "tanh": (lambda m: m.Tanh(), IMAGE),
    "sigmoid": (lambda m: m.Sigmoid(), IMAGE),
    "softmax": (lambda m: m.Softmax(dim=1), IMAGE),
    "log_softmax": (lambda m: m.LogSoftmax(dim=-1), IMAGE),
    "sequential": (lambda m: m.Sequential(m.Linear(6, 8), m.ReLU(), m.Linear(8, 2)), random(5, 6)),
}


@pytest.mark.filterwarnings("ignore:Using padding=.same. with even kernel")
@pytest.mark.parametrize("name,way", by_turns(MODULES, ["compiled", "eager"]))
def test_forward_and_backward_are_pytorchs(name: str, way: str) -> None:
    make, x = MODULES[name]
    torch.manual_seed(0)
    check(make(nn), make(T), x, ways=(way,))


LOGITS, TARGETS = random(7, 5), np.array([0, 4, 2, -100, 1, 1, 3], np.int64)
DENSE = 1 / (1 + np.exp(-random(7, 5, seed=4)))
LOSSES: dict[str, tuple[Callable[[Any], Any], np.ndarray, np.ndarray]] = {
    "cross_entropy": (lambda m: m.CrossEntropyLoss(), LOGITS, TARGETS),
    "cross_entropy-smooth": (lambda m: m.CrossEntropyLoss(label_smoothing=0.1), LOGITS, TARGETS),
    "cross_entropy-ignore": (
        lambda m: m.CrossEntropyLoss(ignore_index=1),
        LOGITS,
        abs(TARGETS) % 5,
    ),
    "cross_entropy-sum": (lambda m: m.CrossEntropyLoss(reduction="sum"), LOGITS, TARGETS),
    "cross_entropy-none": (lambda m: m.CrossEntropyLoss(reduction="none"), LOGITS, TARGETS),
    "cross_entropy-axes": (
        lambda m: m.CrossEntropyLoss(label_smoothing=0.2),
        random(2, 5, 3),
        np.array([[0, 1, 4], [-100, 2, 2]]),
    ),
    "nll": (lambda m: m.NLLLoss(), LOGITS, TARGETS),
    "nll-axes": (lambda m: m.NLLLoss(reduction="sum"), random(2, 5, 3), np.array([[0, 1, 4]] * 2)),
    "cross_entropy-dense": (
        lambda m: m.CrossEntropyLoss(label_smoothing=0.1),
        LOGITS,
        DENSE / DENSE.sum(1, keepdims=True),
    ),
    "cross_entropy-dense-axes": (lambda m: m.CrossEntropyLoss(), IMAGE, np.abs(IMAGE)),
    "mse": (lambda m: m.MSELoss(), LOGITS, DENSE),
    "l1": (lambda m: m.L1Loss(reduction="sum"), LOGITS, DENSE),
    "bce": (lambda m: m.BCEWithLogitsLoss(), LOGITS * 30, DENSE),
    "bce-none": (lambda m: m.BCEWithLogitsLoss(reduction="none"), LOGITS, DENSE),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses_are_pytorchs(name: str) -> None:
    make, x, target = LOSSES[name]
    check(make(nn), make(T), x, target)


def test_pos_weight_is_pytorchs() -> None:
    weight = np.array([1, 2, 0.5, 3, 1], np.float32)
    ours = nn.BCEWithLogitsLoss(pos_weight=weft.tensor(weight))
    check(ours, T.BCEWithLogitsLoss(pos_weight=torch.tensor(weight)), LOGITS, DENSE)


WEIGHTED: dict[str, tuple[str, dict[str, Any], np.ndarray, np.ndarray]] = {
    "mean": ("CrossEntropyLoss", {}, LOGITS, TARGETS),
    "sum": ("CrossEntropyLoss", {"reduction": "sum"}, LOGITS, TARGETS),
    "none": ("CrossEntropyLoss", {"reduction": "none"}, LOGITS, TARGETS),
    "smooth": ("CrossEntropyLoss", {"label_smoothing": 0.3}, LOGITS, TARGETS),
    "ignored": ("CrossEntropyLoss", {"ignore_index": 1}, LOGITS, abs(TARGETS) % 5),
    "axes": (
        "CrossEntropyLoss",
        {"label_smoothing": 0.1},
        random(2, 5, 3),
        np.array([[0, 1, 4], [-100, 2, 2]]),
    ),
    "dense": (
        "CrossEntropyLoss",
        {"label_smoothing": 0.1},
        random(2, 5, 3),
        random(2, 5, 3, low=0),
    ),
    "nll": ("NLLLoss", {}, LOGITS, TARGETS),
    "nll-none": ("NLLLoss", {"reduction": "none"}, LOGITS, TARGETS),
    "bce": ("BCEWithLogitsLoss", {}, LOGITS, DENSE),
    "bce-sum": ("BCEWithLogitsLoss", {"reduction": "sum"}, LOGITS, DENSE),
}


@pytest.mark.parametrize("name", WEIGHTED)
def test_weighted_losses_are_pytorchs(name: str) -> None:
    loss, options, x, target = WEIGHTED[name]
    weight = np.array([1, 2, 0.5, 3, 0.1], np.float32)
    ours = getattr(nn, loss)(weight=weft.tensor(weight), **options)
    check(ours, getattr(T, loss)(weight=torch.tensor(weight), **options), x, target)


@pytest.mark.parametrize("device", ["interp", "vulkan"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_weighted_cross_entropy_on_devices(device: str, smoothing: float) -> None:
    opened(device)
    weight = weft.tensor(np.array([1, 2, 0.5, 3, 0.1], np.float32))

    def run(x: Any, y: Any) -> Any:
        x = x.detach().requires_grad_()
        loss = weft.functional.cross_entropy(x, y, weight, label_smoothing=smoothing)
        loss.backward()
        return loss.detach(), x.grad

    want = run(weft.tensor(LOGITS), weft.tensor(TARGETS))
    got = weft.compile(run, device)(LOGITS, TARGETS)
    for a, b in zip(got, want):
        close(a.numpy(), b.numpy(), 1e-6)


def test_running_statistics_serve_evaluation() -> None:
    ours, theirs = nn.BatchNorm2d(4), T.BatchNorm2d(4)
    twin(ours, theirs)
    step = weft.compile(lambda x: ours(x), "cpu")
    for seed in range(3):
        x = random(2, 4, 5, 5, seed=seed) * 2 + 1
        close(step(x), theirs(torch.tensor(x)))
    ours.eval(), theirs.eval()
    close(step(x), theirs(torch.tensor(x)))  # recompiled: the mode is part of the signature
    assert len(step.programs()) == 2
    state = {k: v.numpy() for k, v in theirs.state_dict().items()}
    for name, value in ours.state_dict().items():
        close(value, state[name])


def test_what_does_not_fit_is_named() -> None:
    x = weft.tensor(IMAGE)
    with pytest.raises(ShapeError, match=r"conv2d.*float32\[2, 4, 9, 8\]"):
        nn.Conv2d(3, 6, 3)(x)
    with pytest.raises(ShapeError, match="does not fit"):
        nn.Conv2d(4, 6, 11)(x)
    with pytest.raises(ShapeError, match="expected 5 channels on axis 1"):
        nn.BatchNorm2d(5)(x)
    with pytest.raises(ShapeError, match="values per channel"):
        nn.BatchNorm1d(4)(weft.ones((1, 4)))
    weight = weft.ones(4)
    with pytest.raises(ShapeError, match="float for each of 5 classes"):
        nn.CrossEntropyLoss(weight)(weft.tensor(LOGITS), weft.tensor(TARGETS))
    with pytest.raises(ShapeError, match=r"expected the last axes to be \[9, 7\]"):
        nn.LayerNorm((9, 7))(x)
    with pytest.raises(UsageError, match="layer_norm: weight and bias are tensors"):
        weft.functional.layer_norm(x, (8,))  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="does not divide"):
        nn.MultiheadAttention(10, 3)
    with pytest.raises(UsageError, match="not a probability"):
        nn.Dropout(1.5)
    with pytest.raises(UsageError, match="reduction"):
        nn.MSELoss(reduction="median")(x, x)


LACKING: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("ConvTranspose2d", (4, 4, 3), {"padding_mode": "reflect"}),
    ("InstanceNorm2d", (4,), {"track_running_stats": True}),
    ("Embedding", (5, 4), {"max_norm": 1.0}),
    ("Embedding", (5, 4), {"sparse": True}),
]


@pytest.mark.parametrize(("name", "args", "options"), LACKING)
def test_options_that_weft_lacks_are_named(
    name: str, args: tuple[Any, ...], options: dict[str, Any]
) -> None:
    with pytest.raises(UsageError, match=f"{name}: {next(iter(options))}=.* is not supported"):
        getattr(nn, name)(*args, **options)


SHARED = set(nn.__all__) & set(dir(T)) - {"Buffer", "init", "Module"}


@pytest.mark.parametrize("name", sorted(SHARED))
def test_arguments_come_in_pytorchs_order(name: str) -> None:
    """So that a call for one is a call for the other; deprecated and placement arguments apart."""
    apart = {"self", "size_average", "reduce", "device", "dtype", "_weight", "_freeze"}
    apart |= {"min_value", "max_value"}
    ours, theirs = (
        [p for p in inspect.signature(getattr(m, name).__init__).parameters if p not in apart]
        for m in (nn, T)
    )
    if name.startswith("Parameter") or name in ("ModuleDict", "ModuleList", "Sequential"):
        return
    if name in ("GRU", "LSTM", "RNN"):  # they pass all to RNNBase
        theirs = list(inspect.signature(T.RNNBase.__init__).parameters)[2:]
        ours, theirs = ([n for n in names if n not in apart | {"nonlinearity", "proj_size"}]
                        for names in (ours, theirs))  # fmt: skip
    assert ours == theirs


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_an_rms_norm_without_an_eps_is_pytorchs(dtype):
    import weft.torch as wt

    tiny = [[1e-3, 2e-3], [1e-4, 3.0], [0.0, 0.0]]
    there = torch.tensor(tiny, dtype=getattr(torch, dtype))
    want = torch.nn.functional.rms_norm(there, (2,)).double().numpy()
    here = weft.tensor(tiny, dtype=dtype)
    ours = {
        "functional": weft.functional.rms_norm(here),
        "module": weft.nn.RMSNorm(2)(here),
        "torch": wt.nn.functional.rms_norm(wt.tensor(here), (2,)),
    }
    for name, got in ours.items():
        np.testing.assert_allclose(got.numpy().astype("f8"), want, rtol=1e-2, err_msg=name)
