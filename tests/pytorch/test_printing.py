"""Tensors and modules print as PyTorch's do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch as theirs

import weft.torch as torch

TEXTS = """
Linear(3,2) Linear(3,2,bias=False) Bilinear(2,3,4) Identity() Flatten() Unflatten(1,(2,3))
Embedding(5,3) Embedding(5,3,padding_idx=0) EmbeddingBag(5,3,mode='sum') Conv1d(3,4,3)
Conv2d(3,4,3,padding=1,stride=2) Conv2d(4,4,3,groups=2,bias=False,padding='same')
Conv2d(4,4,(3,1),padding_mode='reflect',padding=1) Conv3d(1,2,3,dilation=2)
ConvTranspose2d(3,4,2,stride=2,output_padding=1) BatchNorm1d(4) BatchNorm2d(4,affine=False)
BatchNorm3d(4,track_running_stats=False) InstanceNorm1d(4) InstanceNorm2d(4,affine=True)
GroupNorm(2,4) LayerNorm(4) LayerNorm((2,3),elementwise_affine=False) RMSNorm(4) RMSNorm(4,eps=1e-6)
LocalResponseNorm(2) Dropout(0.1) Dropout2d(0.2) AlphaDropout(0.1) ReLU() ReLU(inplace=True)
LeakyReLU(0.2) PReLU(3) RReLU() ELU(2.0) GELU(approximate='tanh') SiLU(inplace=True) Mish()
Hardtanh(-2,2) Hardshrink() Softplus() Threshold(0.1,20) Sigmoid() GLU() Softmax(dim=1)
LogSoftmax(dim=-1) MaxPool2d(2) MaxPool2d((2,2),stride=1,padding=1) AvgPool1d(2) AvgPool2d(3,2)
AdaptiveAvgPool2d((None,3)) LPPool2d(2,3) MaxUnpool2d(2) ZeroPad2d(1) ConstantPad1d(1,2.0)
ReflectionPad2d(1) PixelShuffle(2) Upsample(scale_factor=2) Upsample(size=(3,3),mode='bilinear')
UpsamplingBilinear2d(scale_factor=2) Fold((4,4),2) Unfold(3) RNN(3,4,nonlinearity='relu') LSTM(3,4)
LSTM(3,4,num_layers=2,bidirectional=True,batch_first=True,dropout=0.1) GRU(3,4,bias=False)
RNNCell(2,3) GRUCell(2,3,bias=False) TransformerEncoderLayer(4,2,8) CrossEntropyLoss()
L1Loss(reduction='sum') CosineSimilarity(dim=0) Sequential(Linear(2,3),ReLU(),Linear(3,1))
Sequential() ModuleList([Linear(2,2),Linear(2,2),ReLU()]) ModuleDict({'a':Linear(2,2)})
Sequential(Sequential(Linear(1,1),Linear(1,1)),Tanh())
"""


def made(m: Any, text: str) -> str:
    return repr(eval(text, dict(vars(m.nn))))


def test_modules() -> None:
    for text in TEXTS.split():
        # a class of PyTorch's own that is a Linear
        want = made(theirs, text).replace("NonDynamicallyQuantizableLinear", "Linear")
        assert made(torch, text) == want


def test_modules_of_ones_own() -> None:
    def texts(m: Any) -> list[str]:
        class Leaf(m.nn.Module):  # type: ignore[misc]
            def __init__(self, dim: int) -> None:
                super().__init__()
                self.dim = dim

        class Net(m.nn.Linear):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__(1, 2)
                self.leaves = m.nn.ModuleList([Leaf(1), Leaf(2), m.nn.Dropout(0.1)])
                self.leaves[2].p = 0.25

        class Named(Leaf):
            def extra_repr(self) -> str:
                return f"dim={self.dim}"

        return [repr(Leaf(3)), repr(Net()), repr(m.nn.Sequential(Named(3)))]

    assert texts(torch) == texts(theirs)


def arrays() -> Iterator[np.ndarray]:
    rng = np.random.default_rng(0)
    for i in range(300):
        shape = tuple(rng.integers(0 if i % 10 == 0 else 1, 8, rng.integers(0, 4)))
        shape = (40, 50) if i % 17 == 0 else (3, 20, 30) if i % 31 == 0 else shape
        normal, often = rng.normal(size=shape), rng.random(shape) < 0.3
        yield np.asarray(
            [
                normal * 10 ** rng.uniform(-6, 9), np.round(normal * 10 ** rng.uniform(0, 6)),
                np.round(normal * 10), normal, np.where(often, np.nan, normal),
                np.where(often, -np.inf, np.round(normal)), often,
                rng.integers(-9, 10 ** rng.integers(1, 9), shape),
                rng.integers(0, 200, shape).astype(np.uint8),
                normal.astype(np.float32), normal.astype(np.float16),
            ][i % 11]
        )  # fmt: skip


def test_numbers() -> None:
    for array in arrays():
        assert repr(torch.tensor(array)) == repr(theirs.tensor(array))


def test_facts_and_options() -> None:
    def texts(m: Any) -> list[str]:
        x = m.tensor([[1.5, 2], [3, 4]], requires_grad=True)
        out = [
            repr(x), str((x * 2).exp()), repr(x.sum()), repr(m.nn.Parameter(m.ones(2))),
            f"{x.sum()} {x.sum():.3f} {m.ones(2)}", repr(m.zeros(2, 0, dtype=m.int64)),
            repr(m.zeros(30, requires_grad=True) + 1e-5), repr(m.zeros(2, 2).to(m.bfloat16)),
            repr([m.arange(3), m.tensor(1.0)]), repr(m.zeros(0)),
        ]  # fmt: skip
        try:
            m.set_printoptions(precision=2, sci_mode=True, linewidth=40)
            out.append(repr(m.arange(20).double() / 3))
            m.set_printoptions(profile="short", threshold=10)
            out += [repr(m.arange(20.0)), repr(m.arange(60).reshape(2, 30))]
            m.set_printoptions(profile="full")
            out.append(repr(m.arange(1500)))
        finally:
            m.set_printoptions(profile="default")
        return out

    for mine, other in zip(texts(torch), texts(theirs), strict=True):
        assert mine == other


def test_a_traced_tensor_has_a_text() -> None:
    seen: list[str] = []

    @torch.compile
    def fn(x: Any) -> Any:
        seen.append(repr(x))
        return x * 1

    fn(torch.ones(2))
    assert seen == ["Tensor(traced, shape=[2])"]
