"""The text of modules, as PyTorch writes it."""

from __future__ import annotations

import inspect
from typing import Any

from weft import nn
from weft.nn import tree
from weft.tensor.core import Tensor
from weft.tensor.guards import attributes

# What PyTorch shows of a class: "a" a value, "a=" with its name, "a?" unless it is the default,
# "a~" so and without quotes.
_POOL = "kernel_size= stride= padding= "
_CELL = "input_size hidden_size bias? "
_RECURRENT = "input_size hidden_size num_layers? bias? batch_first? dropout? bidirectional?"
_NORM = "num_features eps= momentum= affine= bias= track_running_stats="
_CONV = (
    "in_channels out_channels kernel_size= stride= padding~ dilation? output_padding? groups? "
    "bias? padding_mode~"
)
_SHOWN = {
    "Linear": "in_features= out_features= bias=",
    "Flatten": "start_dim= end_dim=",
    "Embedding": "num_embeddings embedding_dim padding_idx? max_norm? norm_type? "
    "scale_grad_by_freq? sparse?",
    "EmbeddingBag": "num_embeddings embedding_dim max_norm? norm_type? scale_grad_by_freq? mode= "
    "padding_idx?",
    "GroupNorm": "num_groups num_channels eps= affine= bias=",
    "LayerNorm": "normalized_shape eps= elementwise_affine= bias=",
    "RMSNorm": "normalized_shape eps= elementwise_affine=",
    "LocalResponseNorm": "size alpha= beta= k=",
    "LeakyReLU": "negative_slope= inplace?", "PReLU": "num_parameters=",
    "RReLU": "lower= upper= inplace?", "ELU": "alpha= inplace?", "CELU": "alpha= inplace?",
    "GELU": "approximate=", "Hardtanh": "min_val= max_val= inplace?", "Hardshrink": "lambd",
    "Softshrink": "lambd", "Softplus": "beta= threshold=",
    "Threshold": "threshold= value= inplace?",
    "GLU": "dim=", "Softmax": "dim=", "Softmin": "dim=", "LogSoftmax": "dim=",
    "PixelShuffle": "upscale_factor=", "PixelUnshuffle": "downscale_factor=",
    **dict.fromkeys(
        ("Upsample", "UpsamplingNearest2d", "UpsamplingBilinear2d"), "scale_factor? size? mode="
    ),
    "Fold": "output_size= kernel_size= dilation= padding= stride=",
    "Unfold": "kernel_size= dilation= padding= stride=",
    **dict.fromkeys(("RNN", "LSTM", "GRU"), _RECURRENT),
    **dict.fromkeys(("LSTMCell", "GRUCell"), _CELL), "RNNCell": f"{_CELL} nonlinearity~",
    **dict.fromkeys(("ReLU", "ReLU6", "SELU", "SiLU", "Mish", "Hardswish"), "inplace?"),
    **{f"AdaptiveAvgPool{n}d": "output_size=" for n in (1, 2, 3)},
    **{f"AdaptiveMaxPool{n}d": "output_size=" for n in (1, 2, 3)},
    **{f"AvgPool{n}d": _POOL for n in (1, 2, 3)},
    **{f"MaxPool{n}d": f"{_POOL} dilation= ceil_mode=" for n in (1, 2, 3)},
    **{f"LPPool{n}d": "norm_type= kernel_size= stride= ceil_mode=" for n in (1, 2, 3)},
    **{f"MaxUnpool{n}d": _POOL for n in (1, 2, 3)},
    **{f"BatchNorm{n}d": _NORM for n in (1, 2, 3)},
    "SyncBatchNorm": _NORM,
    **{f"InstanceNorm{n}d": _NORM for n in (1, 2, 3)},
    **{f"Conv{n}d": _CONV for n in (1, 2, 3)},
    **{f"ConvTranspose{n}d": _CONV for n in (1, 2, 3)},
    **{f"Dropout{n}": "p= inplace=" for n in ("", "1d", "2d", "3d")},
    **dict.fromkeys(("AlphaDropout", "FeatureAlphaDropout"), "p= inplace="),
}  # fmt: skip
# Of these, numbers stand for all axes.
_PER_AXIS = ("Conv", "AvgPool1", "MaxUnpool")
_AXES = ("kernel_size", "stride", "padding", "dilation", "output_padding")


def arguments(kind: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """A constructor's arguments by name, with its defaults, where a module's text shows them."""
    if kind.__name__ not in _SHOWN:
        return {}
    bound = inspect.signature(kind.__init__).bind(None, *args, **kwargs)
    bound.apply_defaults()
    return bound.arguments


def extra(kind: Any) -> Any:
    """The method extra_repr of a class of weft.torch.nn for one of weft.nn."""
    words = _SHOWN.get(kind.__name__)
    if words is None:
        theirs = kind.extra_repr
        return theirs if theirs is not nn.Module.extra_repr else lambda self: ""

    def extra_repr(self: Any) -> str:
        parts = (_part(kind, self, word) for word in words.split())
        return ", ".join(p for p in parts if p)

    return extra_repr


def _part(kind: Any, module: Any, word: str) -> str:
    name = word.rstrip("=?~")
    parameter = inspect.signature(kind.__init__).parameters.get(name)
    usual = None if parameter is None else parameter.default
    value = _value(kind, module, name, usual)
    if word == name:
        return repr(value)
    if word[-1] in "?~" and value == _spread(kind, name, usual):
        return ""
    return f"{name}={value}" if word[-1] == "~" else f"{name}={value!r}"


def _value(kind: Any, module: Any, name: str, usual: Any) -> Any:
    """An argument, as the module holds it now."""
    inside = attributes(module)
    given = inside.get("_given", inside)
    value, held = given.get(name, usual), inside.get(name)
    if name in ("bias", "affine", "elementwise_affine"):
        tensor = inside.get("bias" if name == "bias" else "weight", value)
        return tensor if isinstance(tensor, bool) else isinstance(tensor, Tensor)
    if name == "normalized_shape":
        return tuple(inside["weight"].shape) if value is None else _tuple(value)
    if name == "scale_factor" and isinstance(value, int):
        return float(value)
    if name == "stride" and value is None and not kind.__name__.startswith("LP"):
        value = given["kernel_size"]
    elif value is not None and isinstance(held, bool | int | float | str):
        value = held  # as it was set since
    return _spread(kind, name, held if value is None and name == "mode" else value)


def _tuple(value: Any) -> tuple[int, ...]:
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _spread(kind: Any, name: str, value: Any) -> Any:
    """A number as a tuple, where PyTorch holds one per axis."""
    title = kind.__name__
    if name in _AXES and title.startswith(_PER_AXIS) and isinstance(value, int):
        return (value,) * int(title[-2])
    return value


def shown(module: Any) -> str:
    """A module's text; equal modules in a row of a ModuleList on one line."""
    try:
        return _shown(module)
    except RecursionError:  # deeper than Python goes
        return tree.shown(module, nn.Module)


def _shown(module: Any) -> str:
    for _ in tree.walk(module):
        pass  # raises for a module that holds itself
    title, facts = type(module).__name__, module.extra_repr()
    texts = [(name, _text(child)) for name, child in module.named_children()]
    if isinstance(module, nn.MultiheadAttention):  # PyTorch's has nothing else to show
        facts, texts = "", [entry for entry in texts if entry[0] == "out_proj"]
    if isinstance(module, nn.ModuleList) and not isinstance(module, nn.Sequential):
        texts = _grouped(texts)
    lines = [line for line in facts.split("\n") if line]
    if not texts and len(lines) < 2:
        return f"{title}({facts})"
    lines += [f"({name}): {text}".replace("\n", "\n  ") for name, text in texts]
    return f"{title}(\n  " + "\n  ".join(lines) + "\n)"


def _text(module: Any) -> str:
    plain: Any = nn.Module.__repr__
    return _shown(module) if type(module).__repr__ is plain else repr(module)


def _grouped(texts: list[tuple[str, str]]) -> list[tuple[str, str]]:
    out: list[list[Any]] = []
    for name, text in texts:
        if out and out[-1][2] == text:
            out[-1][1] = name
        else:
            out.append([name, name, text])
    found = []
    for a, b, text in out:
        count = int(b) - int(a) + 1
        found.append((a, text) if count == 1 else (f"{a}-{b}", f"{count} x {text}"))
    return found
