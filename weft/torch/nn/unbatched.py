"""Modules of torch.nn that also take one example without a batch."""

from __future__ import annotations

import functools
from typing import Any

from weft.tensor.core import Tensor
from weft.torch.nn.batches import batched

DROPS = ("Dropout1d", "Dropout2d", "Dropout3d")
# the axes of one example
_AXES = {
    **{f"{kind}{n}d": n + 1 for n in (1, 2, 3) for kind in (
        "Conv", "ConvTranspose", "AvgPool", "MaxPool", "LPPool", "MaxUnpool", "AdaptiveAvgPool",
        "AdaptiveMaxPool", "InstanceNorm",
    )},
    "Fold": 2, "Unfold": 3, "FractionalMaxPool2d": 3, "FractionalMaxPool3d": 4,
}  # fmt: skip
# the sequences that a module takes first
_SEQUENCES = {
    "TransformerEncoderLayer": 1, "TransformerEncoder": 1, "TransformerDecoderLayer": 2,
    "TransformerDecoder": 2, "Transformer": 2,
}  # fmt: skip
KINDS = _AXES.keys() | _SEQUENCES.keys()


def dropping(kind: Any) -> Any:
    """The function of a dropout of channels, for inputs of any rank that PyTorch takes."""
    name = kind.__name__.lower()

    def drop(x: Tensor, p: float, training: bool, key: Any) -> Any:
        return batched(name, lambda input: kind._apply(input, p, training, key), {"input": x})

    return staticmethod(drop)


def forward(name: str, inner: Any) -> Any:
    """The pass of a module, of this name, that takes one example as a batch of one."""
    if name in _AXES:
        return _of_images(inner, _AXES[name])
    return _of_sequences(inner, _SEQUENCES[name] - 1)


def _of_images(inner: Any, axes: int) -> Any:
    @functools.wraps(inner)
    def forward(self: Any, input: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(input, "ndim", None) != axes:
            return inner(self, input, *args, **kwargs)
        args = tuple(x.unsqueeze(0) if isinstance(x, Tensor) else x for x in args)
        kwargs = {n: x.unsqueeze(0) if isinstance(x, Tensor) else x for n, x in kwargs.items()}
        made = inner(self, input.unsqueeze(0), *args, **kwargs)
        return tuple(m.squeeze(0) for m in made) if isinstance(made, tuple) else made.squeeze(0)

    return forward


def _of_sequences(inner: Any, more: int) -> Any:
    @functools.wraps(inner)
    def forward(self: Any, input: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(input, "ndim", None) != 2:
            return inner(self, input, *args, **kwargs)
        axis = 0 if _batch_first(self) else 1
        args = tuple(x.unsqueeze(axis) if i < more else x for i, x in enumerate(args))
        for name, x in kwargs.items():
            if x is not None and name in ("memory", "tgt"):
                kwargs[name] = x.unsqueeze(axis)
            elif x is not None and name.endswith("key_padding_mask"):
                kwargs[name] = x.unsqueeze(0)
        return inner(self, input.unsqueeze(axis), *args, **kwargs).squeeze(axis)

    return forward


def _batch_first(module: Any) -> bool:
    found = (getattr(m, "batch_first", None) for m in module.modules())
    return next((x for x in found if x is not None), False)
