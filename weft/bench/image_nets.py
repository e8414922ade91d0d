"""Convolution nets to measure and compare: ResNet-50 (He et al. 2015, stride in the 3 x 3
convolutions), MobileNetV3-Large (Howard et al. 2019) and a detector like YOLOv8n (C2f, SPPF, three
scales), with random weights. Written over a namespace of modules, so that the same source builds
weft's net and, given torch.nn, its twin with the same state dict.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from weft.bench import encoder_nets

IMAGES: dict[str, int] = {"resnet50": 224, "mobilenet_v3": 224, "yolo": 320}  # pixels per side


ENCODERS = ("vit_b16", "bert_base")


def example(name: str, batch: int) -> np.ndarray:
    """Returns an input of a net: images [N, 3, S, S], or for BERT the tokens of texts [N, T]."""
    random = np.random.default_rng(0)
    if name == "bert_base":
        size = encoder_nets.BERT
        return random.integers(0, size.kinds, (batch, size.places))
    pixels = IMAGES.get(name, encoder_nets.VIT.places)
    return random.standard_normal((batch, 3, pixels, pixels), dtype=np.float32)


def build(name: str, nn: Any, cat: Callable[..., Any], functional: Any = None) -> Any:
    """The net `name` (a key of IMAGES, or one of ENCODERS) of modules from `nn`, in evaluation
    mode; `cat` joins a list of tensors along an axis, `functional` has an encoder's attention.
    Takes what `example` gives. Gives logits [N, 1000], of the detector [N, 144, places]; of BERT
    see `encoder_nets`."""
    if name == "vit_b16":
        return encoder_nets.vit(nn, functional, cat)
    if name == "bert_base":
        return encoder_nets.bert(nn, functional)
    made = {"resnet50": _resnet50, "mobilenet_v3": _mobilenet, "yolo": _yolo}[name](nn, cat)
    return made.eval()


def _normed(nn: Any, inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1,
            act: Any = None) -> Any:  # fmt: skip
    """Convolution, batch norm and an activation."""
    layers = [
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
    ]
    return nn.Sequential(*layers, *([act()] if act else []))


# -- ResNet-50 --------------------------------------------------------------------------------


def _resnet50(nn: Any, cat: Callable[..., Any]) -> Any:
    class Bottleneck(nn.Module):
        def __init__(self, inputs: int, width: int, stride: int) -> None:
            super().__init__()
            self.a = _normed(nn, inputs, width, 1, act=nn.ReLU)
            self.b = _normed(nn, width, width, 3, stride, act=nn.ReLU)
            self.c = _normed(nn, width, 4 * width, 1)
            straight = stride == 1 and inputs == 4 * width
            self.skip = nn.Identity() if straight else _normed(nn, inputs, 4 * width, 1, stride)
            self.relu = nn.ReLU()

        def forward(self, x: Any) -> Any:
            return self.relu(self.c(self.b(self.a(x))) + self.skip(x))

    layers = [_normed(nn, 3, 64, 7, 2, act=nn.ReLU), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for i, (width, count) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
        for j in range(count):
            layers.append(Bottleneck(inputs, width, 2 if i and not j else 1))
            inputs = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


# -- MobileNetV3-Large ------------------------------------------------------------------------

_BLOCKS = (  # kernel, expanded, outputs, squeeze and excite, hard swish, stride
    (3, 16, 16, 0, 0, 1), (3, 64, 24, 0, 0, 2), (3, 72, 24, 0, 0, 1), (5, 72, 40, 1, 0, 2),
    (5, 120, 40, 1, 0, 1), (5, 120, 40, 1, 0, 1), (3, 240, 80, 0, 1, 2), (3, 200, 80, 0, 1, 1),
    (3, 184, 80, 0, 1, 1), (3, 184, 80, 0, 1, 1), (3, 480, 112, 1, 1, 1), (3, 672, 112, 1, 1, 1),
    (5, 672, 160, 1, 1, 2), (5, 960, 160, 1, 1, 1), (5, 960, 160, 1, 1, 1),
)  # fmt: skip


def _mobilenet(nn: Any, cat: Callable[..., Any]) -> Any:
    class Squeeze(nn.Module):
        def __init__(self, channels: int) -> None:
            super().__init__()
            narrow = max((channels // 4 + 4) // 8 * 8, 8)
            self.gate = nn.Sequential(
                nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, narrow, 1), nn.ReLU(),
                nn.Conv2d(narrow, channels, 1), nn.Hardsigmoid(),
            )  # fmt: skip

        def forward(self, x: Any) -> Any:
            return x * self.gate(x)

    class Inverted(nn.Module):
        def __init__(self, inputs: int, k: int, wide: int, outputs: int, se: int, act: Any,
                     stride: int) -> None:  # fmt: skip
            super().__init__()
            layers = [_normed(nn, inputs, wide, 1, act=act)] if wide != inputs else []
            layers.append(_normed(nn, wide, wide, k, stride, wide, act))
            layers += [Squeeze(wide)] if se else []
            self.body = nn.Sequential(*layers, _normed(nn, wide, outputs, 1))
            self.straight = stride == 1 and inputs == outputs

        def forward(self, x: Any) -> Any:
            return x + self.body(x) if self.straight else self.body(x)

    layers, inputs = [_normed(nn, 3, 16, 3, 2, act=nn.Hardswish)], 16
    for k, wide, outputs, se, hard, stride in _BLOCKS:
        act = nn.Hardswish if hard else nn.ReLU
        layers.append(Inverted(inputs, k, wide, outputs, se, act, stride))
        inputs = outputs
    layers += [_normed(nn, inputs, 960, 1, act=nn.Hardswish), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(960, 1280), nn.Hardswish(), nn.Linear(1280, 1000))


# -- a detector -------------------------------------------------------------------------------


def _yolo(nn: Any, cat: Callable[..., Any]) -> Any:
    def conv(inputs: int, outputs: int, kernel: int = 1, stride: int = 1) -> Any:
        return _normed(nn, inputs, outputs, kernel, stride, act=nn.SiLU)

    class Pair(nn.Module):
        def __init__(self, channels: int, add: bool) -> None:
            super().__init__()
            self.body = nn.Sequential(conv(channels, channels, 3), conv(channels, channels, 3))
            self.add = add

        def forward(self, x: Any) -> Any:
            return x + self.body(x) if self.add else self.body(x)

    class C2f(nn.Module):
        def __init__(self, inputs: int, outputs: int, count: int, add: bool) -> None:
            super().__init__()
            half = outputs // 2
            self.left, self.right = conv(inputs, half), conv(inputs, half)
            self.pairs = nn.ModuleList([Pair(half, add) for _ in range(count)])
            self.join = conv((2 + count) * half, outputs)

        def forward(self, x: Any) -> Any:
            parts = [self.left(x), self.right(x)]
            for pair in self.pairs:
                parts.append(pair(parts[-1]))
            return self.join(cat(parts, 1))

    class SPPF(nn.Module):
        def __init__(self, channels: int) -> None:
            super().__init__()
            self.first, self.join = conv(channels, channels // 2), conv(2 * channels, channels)
            self.pool = nn.MaxPool2d(5, 1, 2)

        def forward(self, x: Any) -> Any:
            parts = [self.first(x)]
            for _ in range(3):
                parts.append(self.pool(parts[-1]))
            return self.join(cat(parts, 1))

    class Head(nn.Module):
        def __init__(self, inputs: int) -> None:
            super().__init__()
            sides = (conv(inputs, 64, 3), conv(64, 64, 3), nn.Conv2d(64, 64, 1))
            kinds = (conv(inputs, 80, 3), conv(80, 80, 3), nn.Conv2d(80, 80, 1))
            self.sides, self.kinds = nn.Sequential(*sides), nn.Sequential(*kinds)

        def forward(self, x: Any) -> Any:
            return cat([self.sides(x), self.kinds(x)], 1).flatten(2)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            first = (conv(3, 16, 3, 2), conv(16, 32, 3, 2), C2f(32, 32, 1, True))
            self.p3 = nn.Sequential(*first, conv(32, 64, 3, 2), C2f(64, 64, 2, True))
            self.p4 = nn.Sequential(conv(64, 128, 3, 2), C2f(128, 128, 2, True))
            self.p5 = nn.Sequential(conv(128, 256, 3, 2), C2f(256, 256, 1, True), SPPF(256))
            self.up = nn.Upsample(scale_factor=2)
            self.n4, self.n3 = C2f(384, 128, 1, False), C2f(192, 64, 1, False)
            self.d4, self.d5 = conv(64, 64, 3, 2), conv(128, 128, 3, 2)
            self.m4, self.m5 = C2f(192, 128, 1, False), C2f(384, 256, 1, False)
            self.heads = nn.ModuleList([Head(c) for c in (64, 128, 256)])

        def forward(self, x: Any) -> Any:
            p3 = self.p3(x)
            p4 = self.p4(p3)
            p5 = self.p5(p4)
            n4 = self.n4(cat([self.up(p5), p4], 1))
            n3 = self.n3(cat([self.up(n4), p3], 1))
            m4 = self.m4(cat([self.d4(n3), n4], 1))
            m5 = self.m5(cat([self.d5(m4), p5], 1))
            return cat([head(y) for head, y in zip(self.heads, (n3, m4, m5))], 2)

    return Net()
