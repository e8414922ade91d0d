"""The names of weights in a Hugging Face checkpoint, and their required shapes.

Roles are weft's own names: "embed", "head", "norm.w", "3.q.w" (layer 3, query projection), ...
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from weft.core.dtypes import as_dtype
from weft.core.errors import DTypeError, ModelError
from weft.host.mapped import release
from weft.host.pages import fresh
from weft.importers.safetensors import Checkpoint
from weft.models.arch.config import DecoderConfig, Layout, WeightSpec
from weft.models.arch.weights import Weight
from weft.models.weights.decoder_names import decoder_layout
from weft.models.weights.tensor_names import SENSES

if TYPE_CHECKING:
    from weft.importers.packed.checkpoint import PackedCheckpoint

OUTPUTS = ("head", "head.b")  # roles whose names are outside the model's prefix


def tensors_of(spec: WeightSpec, name: str, value: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the tensors of a checkpoint that hold a weight, by name."""
    value = np.ascontiguousarray(value.swapaxes(-1, -2)) if spec.turned else value
    return dict(zip(parts_of(spec, name), value)) if "{}" in name else {name: value}


def checkpoint_names(c: DecoderConfig) -> dict[str, str]:
    """Returns role -> name in a decoder's checkpoint as Hugging Face writes it."""
    layout = decoder_layout(c)
    return {
        role: spec.name if role in OUTPUTS else layout.prefixes[0] + spec.name
        for role, spec in layout.weights.items()
    }


def bind_weights(layout: Layout, checkpoint: Checkpoint) -> dict[str, Weight]:
    """Returns role -> weight of the layout. Raises the errors of `bind_names`."""
    names, specs = bind_names(layout, checkpoint), layout.weights
    tensor = lambda part, _: checkpoint[part]  # noqa: E731
    return {r: Weight(specs[r], partial(read_weight, specs[r], names[r], tensor)) for r in names}


def bind_names(layout: Layout, checkpoint: Checkpoint | PackedCheckpoint) -> dict[str, str]:
    """Returns role -> name (see WeightSpec) of every weight of the layout, checked for presence,
    shape and float dtype; packed ones for presence.

    Raises ModelError for a tensor that is missing or wrong, and for a tensor of the checkpoint that
    is neither used nor known to be inert. A missing untied head is an error too: assuming that it
    is tied would give wrong logits.
    """
    prefix = _prefix(layout, checkpoint)
    twin = _beside(prefix, layout.twin, checkpoint) if layout.twin else ""
    out: dict[str, str] = {}
    used: set[str] = set()
    for role, spec in layout.weights.items():
        name = _present(prefix, role, spec, checkpoint)
        if role == "embed" and name not in checkpoint and twin in checkpoint:
            name = twin
        if "{}" not in name and name not in checkpoint:
            name = _old_name(name, checkpoint)
        if "{}" in name and (whole := _whole_name(name)) in checkpoint:
            name = whole
        out[role] = name
        for part in parts_of(spec, name):
            _check(checkpoint, part, shape_of(spec, name))
            used.add(part)
    used |= {twin, *(prefix + name for name in layout.spare.values())}
    _check_layers(used, layout.inert, checkpoint)
    check_unread(used, layout.inert, checkpoint)
    return out


def _present(
    prefix: str, role: str, spec: WeightSpec, checkpoint: Checkpoint | PackedCheckpoint
) -> str:
    """Returns the family's own name of a weight, or the usual one if the checkpoint has that."""
    names = [
        _beside(prefix, name, checkpoint) if role in OUTPUTS else prefix + name
        for name in (spec.name, spec.usual)
        if name
    ]
    held = (n for n in names if n.format(0) in checkpoint or _whole_name(n) in checkpoint)
    return next(held, names[0])


def _beside(prefix: str, head: str, checkpoint: Checkpoint | PackedCheckpoint) -> str:
    """Returns the name of the head, which is outside the model's prefix."""
    names = (prefix + head, prefix.removesuffix("model.") + head, head)
    return next((name for name in names if name in checkpoint), head)


def untied(layout: Layout, checkpoint: Checkpoint | PackedCheckpoint) -> bool:
    """Returns True if the checkpoint holds a head that differs from the embedding, though the
    config ties them: then both are used, as in transformers 5."""
    prefix = _prefix(layout, checkpoint)
    embed, head = prefix + layout.probe, _beside(prefix, layout.twin, checkpoint)
    if not layout.twin or head not in checkpoint or embed not in checkpoint:
        return False
    if head in checkpoint.packed or embed in checkpoint.packed:
        return True
    one, other = checkpoint.plain(head), checkpoint.plain(embed)
    if one.shape != other.shape or one.dtype != other.dtype:
        return True
    rows = max(1, (1 << 22) // max(1, one[0].size)) if one.ndim and len(one) else 1
    parts = (slice(at, at + rows) for at in range(0, len(one), rows))
    return not all(one[p].tobytes() == other[p].tobytes() for p in parts)


def parts_of(spec: WeightSpec, name: str) -> list[str]:
    """Returns the names of the tensors that hold a weight."""
    return [name.format(i) for i in range(spec.shape[0])] if "{}" in name else [name]


def _whole_name(name: str) -> str:
    """Returns the name of one tensor for all experts: the gates' rows, and below them the
    others'."""
    whole = name.removesuffix(".weight").replace(".{}.", ".")
    return re.sub(r"\.(gate|up)_proj$", ".gate_up_proj", whole)


def shape_of(spec: WeightSpec, name: str) -> tuple[int, ...]:
    """Returns the shape of each of the tensors called `name` that hold a weight."""
    shape = spec.shape[1:] if "{}" in name else spec.shape
    if "{}" in spec.name and name.endswith(".gate_up_proj"):
        return (shape[0], 2 * shape[1], *shape[2:])
    return (*shape[:-2], *shape[:-3:-1]) if spec.turned else shape


def _check(checkpoint: Checkpoint | PackedCheckpoint, name: str, shape: tuple[int, ...]) -> None:
    if name not in checkpoint:
        raise ModelError(f"{checkpoint.where}: tensor {name!r} is missing; {_hint(checkpoint)}")
    if name in checkpoint.packed:
        return
    info = checkpoint.info(name)
    if info.shape != shape:
        raise ModelError(
            f"{checkpoint.where}: tensor {name!r} has shape {list(info.shape)}; "
            f"config.json asks for {list(shape)}"
        )
    check_float(checkpoint, name)


def check_float(checkpoint: Checkpoint | PackedCheckpoint, name: str) -> None:
    """Raises ModelError unless a tensor holds floats of at most 32 bits."""
    info = checkpoint.info(name)
    try:
        is_float = as_dtype(info.dtype).is_float and info.dtype.itemsize <= 4
    except DTypeError:
        is_float = False
    if not is_float:
        raise ModelError(
            f"{checkpoint.where}: tensor {name!r} is {info.dtype}; "
            "expected float32, float16 or bfloat16"
        )


def read_weight(
    spec: WeightSpec, name: str, tensor: Callable[[str, tuple[int, ...]], np.ndarray]
) -> np.ndarray:
    """Reads the weight called `name` with tensor(name, its shape): unchanged, turned, or joined
    from several tensors, one at a time. Raises ModelError if their dtypes differ."""
    shape = shape_of(spec, name)
    if spec.turned:
        value = tensor(name, shape)
        return _copied(value, value.swapaxes(-1, -2))
    if name != spec.name and shape != spec.shape and "{}" not in name:  # half of the tensor
        first = 0 if "gate_proj" in (spec.usual or spec.name) else spec.shape[1]
        value = tensor(name, shape)
        return _copied(value, value[:, first : first + spec.shape[1]])
    if "{}" not in name:
        return tensor(name, shape)
    out = None
    for i, part in enumerate(parts_of(spec, name)):
        value = tensor(part, shape)
        out = fresh(spec.shape, value.dtype) if out is None else out
        if value.dtype != out.dtype:
            raise ModelError(f"tensor {part!r} is {value.dtype}; others like it are {out.dtype}")
        out[i] = value
        release(value)  # frees the file's pages: one copy at a time
    assert out is not None
    return out


def _copied(value: np.ndarray, view: np.ndarray) -> np.ndarray:
    """Returns a contiguous copy of a view of `value`, whose pages of a file are given back."""
    out = fresh(view.shape, view.dtype)
    out[...] = view
    release(value)
    return out


_LAYER = re.compile(r"\.(\d+)\.")


def _check_layers(
    used: set[str], inert: Mapping[str, str], checkpoint: Checkpoint | PackedCheckpoint
) -> None:
    """Raises ModelError for tensors of layers beyond config.json's number: without them it would be
    another model."""
    forms = {_LAYER.sub(".#.", name, count=1) for name in used}
    known = _pattern(inert)
    for name in checkpoint:
        if name in used or known.search(name) or not _LAYER.search(name):
            continue
        if _LAYER.sub(".#.", name, count=1) in forms:
            raise ModelError(
                f"{checkpoint.where}: tensor {name!r} belongs to a layer that config.json does not "
                "count; its number of layers is wrong, or the weights are another model's"
            )


def check_unread(
    used: set[str], inert: Mapping[str, str], checkpoint: Checkpoint | PackedCheckpoint
) -> None:
    """Raises ModelError for the first tensor that is neither used nor known to be inert."""
    known = _pattern(inert)
    for name in checkpoint:
        if name in used or known.search(name) or SENSES.search(name):
            continue
        if not _zero_bias(name, used, checkpoint):
            raise ModelError(
                f"{checkpoint.where}: tensor {name[:200]!r} is not part of this model; leaving "
                "it out would change the results. Does config.json belong to these weights?"
            )


def _pattern(inert: Mapping[str, str]) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{pattern})" for pattern in inert) or r"(?!)")


def _zero_bias(name: str, used: set[str], checkpoint: Checkpoint | PackedCheckpoint) -> bool:
    """Returns True for a bias of zeros, which some packers write for layers without a bias."""
    layer = name.removesuffix(".bias")
    if layer == name or f"{layer}.weight" not in used or name in checkpoint.packed:
        return False
    return not checkpoint.plain(name).any()


def _old_name(name: str, checkpoint: Checkpoint | PackedCheckpoint) -> str:
    """Returns the layer-norm name of early BERT checkpoints, if this checkpoint has it."""
    old = name.replace("LayerNorm.weight", "LayerNorm.gamma")
    old = old.replace("LayerNorm.bias", "LayerNorm.beta")
    return old if old in checkpoint else name


def _prefix(layout: Layout, names: Iterable[str]) -> str:
    known = set(names)
    for prefix in layout.prefixes:
        if prefix + layout.probe in known:
            return prefix
    return layout.prefixes[0]


def _hint(checkpoint: Checkpoint | PackedCheckpoint) -> str:
    shown = ", ".join(list(checkpoint)[:3])
    return f"the file holds {len(checkpoint)} tensors ({shown}, ...)"
