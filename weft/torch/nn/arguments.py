"""The arguments of modules in PyTorch's order, as the modules of weft.nn take them."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from weft.core.errors import UsageError
from weft.torch.nn.functional import reduction

# modules that take a device and a dtype, after all else unless _ORDER says so
_PLACED = {
    "AdaptiveLogSoftmaxWithLoss", "Bilinear", "Embedding", "EmbeddingBag", "GroupNorm", "LayerNorm",
    "Linear", "MultiheadAttention", "PReLU", "RMSNorm", "SyncBatchNorm", "Transformer",
    "TransformerDecoderLayer", "TransformerEncoderLayer",
    *(f"{kind}{cell}" for kind in ("GRU", "LSTM", "RNN") for cell in ("", "Cell")),
    *(f"{kind}{n}d" for kind in ("BatchNorm", "Conv", "ConvTranspose", "InstanceNorm")
      for n in (1, 2, 3)),
}  # fmt: skip
_NORM = "num_features eps momentum affine track_running_stats device dtype"
# PyTorch's order where weft's lacks parameters in the middle (deprecated ones of losses, private
# ones of embeddings), and where `bias` goes by name alone
_ORDER = {
    "BCELoss": "weight size_average reduce reduction",
    "BCEWithLogitsLoss": "weight size_average reduce reduction pos_weight",
    "CosineEmbeddingLoss": "margin size_average reduce reduction",
    "CrossEntropyLoss": "weight size_average ignore_index reduce reduction label_smoothing",
    "Embedding": "num_embeddings embedding_dim padding_idx max_norm norm_type scale_grad_by_freq "
    "sparse _weight _freeze device dtype",
    "EmbeddingBag": "num_embeddings embedding_dim max_norm norm_type scale_grad_by_freq mode "
    "sparse _weight include_last_offset padding_idx device dtype",
    "GroupNorm": "num_groups num_channels eps affine device dtype",
    "HingeEmbeddingLoss": "margin size_average reduce reduction",
    "KLDivLoss": "size_average reduce reduction log_target",
    "L1Loss": "size_average reduce reduction", "MSELoss": "size_average reduce reduction",
    "MarginRankingLoss": "margin size_average reduce reduction",
    "MultiLabelMarginLoss": "size_average reduce reduction",
    "MultiLabelSoftMarginLoss": "weight size_average reduce reduction",
    "MultiMarginLoss": "p margin weight size_average reduce reduction",
    "NLLLoss": "weight size_average ignore_index reduce reduction",
    "PoissonNLLLoss": "log_input full size_average eps reduce reduction",
    "SmoothL1Loss": "size_average reduce reduction beta",
    "SoftMarginLoss": "size_average reduce reduction",
    "SyncBatchNorm": "num_features eps momentum affine track_running_stats process_group device "
    "dtype",
    "TripletMarginLoss": "margin p eps swap size_average reduce reduction",
    **{f"{kind}{n}d": _NORM for kind in ("BatchNorm", "InstanceNorm") for n in (1, 2, 3)},
}  # fmt: skip


def taken(
    kind: type, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any], list[Any]]:
    """The arguments for weft's module, and the device and dtype for it. Raises UsageError for an
    argument that is given twice, or that weft does not take."""
    order = _order(kind)
    if len(args) > len(order) or kind.__name__ not in _PLACED | _ORDER.keys():
        return args, kwargs, []
    named = dict(zip(order, args, strict=False))
    if twice := named.keys() & kwargs.keys():
        raise UsageError(f"{kind.__name__}: {min(twice)} is given by place and by name")
    kwargs = named | kwargs
    if "size_average" in order:
        old = (kwargs.pop("size_average", None), kwargs.pop("reduce", None))
        if old != (None, None):
            kwargs["reduction"] = reduction(*old)
    if kwargs.pop("_weight", None) is not None or kwargs.pop("_freeze", False):
        raise UsageError(
            f"{kind.__name__}: _weight and _freeze are not supported; use from_pretrained"
        )
    if kind.__name__ not in _PLACED:
        return (), kwargs, []
    place = [kwargs.pop("device", None), kwargs.pop("dtype", None)]
    return (), kwargs, [x for x in place if x is not None]


@functools.cache
def _order(kind: type) -> list[str]:
    """PyTorch's parameters of a module that are given by place, in their order."""
    if kind.__name__ in _ORDER:
        return _ORDER[kind.__name__].split()
    found = inspect.signature(kind).parameters.values()
    own = [p.name for p in found if p.kind is p.POSITIONAL_OR_KEYWORD]
    return [*own, "device", "dtype"]
