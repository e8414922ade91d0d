"""Every public class shows in one short line what it is and its numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import weft
from weft import nn, optim

MODULES = [
    (nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False),
     "Conv2d(3, 8, kernel_size=(3, 3), stride=2, padding=1, bias=False)"),
    (nn.Conv1d(4, 8, 3, groups=2, dilation=2),
     "Conv1d(4, 8, kernel_size=(3,), dilation=2, groups=2)"),
    (nn.ConvTranspose2d(3, 8, 3, 2, output_padding=1),
     "ConvTranspose2d(3, 8, kernel_size=(3, 3), stride=2, output_padding=1)"),
    (nn.MaxPool2d(2), "MaxPool2d(2)"),
    (nn.MaxPool2d(3, 2, 1, ceil_mode=True), "MaxPool2d(3, stride=2, padding=1, ceil_mode=True)"),
    (nn.AvgPool1d(2, count_include_pad=False), "AvgPool1d(2, count_include_pad=False)"),
    (nn.AdaptiveAvgPool2d((1, 2)), "AdaptiveAvgPool2d((1, 2))"),
    (nn.AdaptiveMaxPool2d(2, return_indices=True), "AdaptiveMaxPool2d(2, return_indices=True)"),
    (nn.Upsample(scale_factor=2.0, mode="bilinear"),
     "Upsample(scale_factor=2.0, mode='bilinear')"),
    (nn.PixelShuffle(2), "PixelShuffle(2)"),
    (nn.Embedding(10, 4, padding_idx=1), "Embedding(10, 4, padding_idx=1)"),
    (nn.Flatten(0), "Flatten(start_dim=0)"),
    (nn.CrossEntropyLoss(label_smoothing=0.1), "CrossEntropyLoss(label_smoothing=0.1)"),
    (nn.MSELoss("sum"), "MSELoss(reduction='sum')"),
]  # fmt: skip


@pytest.mark.parametrize(("module", "want"), MODULES, ids=[want for _, want in MODULES])
def test_modules(module: nn.Module, want: str) -> None:
    assert repr(module) == want


def test_multihead_attention_tells_its_sizes() -> None:
    assert repr(nn.MultiheadAttention(8, 2)).split("\n")[1].strip() == "8, 2"


def objects() -> list[Any]:
    net = nn.Linear(2, 3)
    fast = weft.compile(net, device="cpu")
    fast(weft.ones((1, 2)))
    opt = optim.AdamW(net.named_parameters())
    model = weft.load(Path(weft.__file__).parent / "box", device="cpu")
    return [
        fast, fast.programs()[0], fast.sessions()[0], opt, opt.groups[0], optim.LossScaler(),
        optim.SGD(net.parameters(), optim.linear(0.1, 5)), weft.autocast(), model, model.tokenizer,
        model.device,
    ]  # fmt: skip


def test_other_classes() -> None:
    for made in objects():
        text = repr(made)
        assert len(text) <= 200 and " object at 0x" not in text and type(made).__name__ in text
        assert any(c.isdigit() for c in text) or isinstance(made, weft.autocast)
