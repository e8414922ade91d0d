"""Reads the modules of a sentence-transformers folder that change a text's vector."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from weft.core.errors import FileFormatError, ModelError
from weft.core.text import shown
from weft.importers.hf_config import Fields
from weft.importers.safetensors import Checkpoint, open_checkpoint
from weft.models.arch.family_parts import MAX_HIDDEN
from weft.models.arch.pooling import NORMALIZE, Step
from weft.models.weights.names import check_float

Arrays = dict[str, np.ndarray]
# Classes of torch.nn by the ends of their names.
_ACTS: Mapping[str, Any] = {
    "Identity": "identity", "Tanh": "tanh", "Sigmoid": "sigmoid", "GELU": "gelu", "ReLU": "relu",
    "SiLU": "silu",
}  # fmt: skip
_PLACES = ("module_input_name", "module_output_name")
_DENSE = ("in_features", "out_features", "bias", "activation_function", "use_residual", *_PLACES)


def activation_of(c: Fields, name: str, default: str = "torch.nn.modules.activation.Tanh") -> Any:
    """Returns the activation that a field names by its class in torch.nn."""
    given = c.text(name, default)
    known = _ACTS.get(given.rpartition(".")[2])
    if known is None or not given.startswith("torch.nn."):
        raise ModelError(
            f"{c.where}: {name} is {shown(given, 80)}; supported: {', '.join(_ACTS)} of torch.nn"
        )
    return known


def normalize(home: Path, width: int, known: Any) -> tuple[Step, Arrays]:
    if (home / "config.json").exists():
        _of_vectors(known(home / "config.json", _PLACES))
    return NORMALIZE, {}


def _of_vectors(c: Fields) -> Fields:
    """Returns a module's fields after checking that it reads and writes texts' vectors."""
    for name in _PLACES:
        if c.data.get(name) not in (None, "sentence_embedding"):
            raise ModelError(f"{c.where}: {name} = {shown(c.data[name])} is not supported")
    return c


def dense(home: Path, width: int, known: Any) -> tuple[Step, Arrays]:
    """Reads a Dense module for vectors of length `width`."""
    c = _of_vectors(known(home / "config.json", _DENSE))
    takes = c.integer("in_features", 1, MAX_HIDDEN)
    gives = c.integer("out_features", 1, MAX_HIDDEN)
    if takes != width:
        raise ModelError(f"{c.where}: in_features is {takes}; the vectors before have {width}")
    residual = c.flag("use_residual", False)
    shapes: dict[str, tuple[int, ...]] = {"linear.weight": (gives, takes)}
    shapes |= {"linear.bias": (gives,)} if c.flag("bias", True) else {}
    shapes |= {"residual.weight": (gives, takes)} if residual and gives != takes else {}
    step = Step("dense", activation_of(c, "activation_function"), residual, gives)
    names = {"linear.weight": "w", "linear.bias": "b", "residual.weight": "residual"}
    return step, read_arrays(home, {names[n]: (n, shape) for n, shape in shapes.items()})


def layer_norm(home: Path, width: int, known: Any) -> tuple[Step, Arrays]:
    c = known(home / "config.json", ("dimension",))
    if c.integer("dimension", 1, MAX_HIDDEN) != width:
        raise ModelError(f"{c.where}: dimension is {c.data['dimension']}; vectors have {width}")
    wanted = {"w": ("norm.weight", (width,)), "b": ("norm.bias", (width,))}
    return Step("norm"), read_arrays(home, wanted)


def read_arrays(home: Path, wanted: Mapping[str, tuple[str, tuple[int, ...]]]) -> Arrays:
    """Returns float32 arrays by role, from the tensors of a module's own file: `wanted` has name
    and shape of each. Raises ModelError for others than these, FileFormatError without a file."""
    checkpoint = open_checkpoint(home)
    known = {name for name, _ in wanted.values()}
    for name in checkpoint:
        if name not in known:
            raise ModelError(f"{checkpoint.where}: tensor {shown(name, 80)} is not expected")
    return {role: _array(checkpoint, *what) for role, what in wanted.items()}


def _array(checkpoint: Checkpoint, name: str, shape: tuple[int, ...]) -> np.ndarray:
    if name not in checkpoint:
        raise FileFormatError(f"{checkpoint.where}: tensor {name!r} is missing")
    check_float(checkpoint, name)
    found = checkpoint[name]
    if found.shape != shape:
        raise ModelError(
            f"{checkpoint.where}: tensor {name!r} has shape {list(found.shape)}; config.json asks "
            f"for {list(shape)}"
        )
    return found.astype(np.float32)


STEPS: Mapping[str, Any] = {"Dense": dense, "Normalize": normalize, "LayerNorm": layer_norm}


def step_of(kind: str, home: Path, width: int, known: Any) -> tuple[Step, Arrays]:
    """Returns the step that the module in `home` makes, and its arrays. `known` reads a file of
    known fields."""
    made: tuple[Step, Arrays] = STEPS[kind](home, width, known)
    return made
