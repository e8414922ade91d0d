"""Packed weights: every type of GGUF's blocks, every form of other makers, with float and integer
inputs; whole models of each, and GGUF files of every architecture."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import weft
from fingerprints.models import CONTEXT, steps
from fingerprints.sources import DEVICE, Built, table, traced
from weft.conform import packed
from weft.conform.models import CONFIGS
from weft.core.dtypes import as_dtype
from weft.importers.gguf_blocks import BY_NAME
from weft.importers.hf_config import Fields
from weft.importers.packed.gguf import FORMS
from weft.models.weights.gguf import _NO_WEIGHTS
from weft.models.weights.random_weights import random_folder
from weft.training.model import config_of

# A llama of one layer that every type of blocks fits: rows of 256.
_WIDE = {
    "model_type": "llama", "vocab_size": 64, "hidden_size": 256, "intermediate_size": 512,
    "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "dtype": "float16",
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
}  # fmt: skip
INPUTS = ("float32", "int8")


def forms() -> dict[str, Any]:
    """Every form of packed weights that weft makes or reads, by a name."""
    found = dict(packed.FORMS) | {name: form for name, (form, _) in FORMS.items()}
    return {name.replace(" ", "-"): form for name, form in found.items()}


def _form(name: str, folder: Path) -> Built:
    form = forms()[name]
    yield "rows", traced(lambda: packed._whole(DEVICE, form))
    for planes in (0, 1, 2):
        yield f"dot{planes}", traced(partial(packed._product, DEVICE, form, planes))


def kinds() -> list[str]:
    """The layouts of other makers (tests/models/packed_zoo.py)."""
    from packed_zoo import KINDS

    return list(KINDS)


def _kind(name: str, folder: Path) -> Built:
    from packed_zoo import checkpoint, write_folder

    made = write_folder(folder / "model", *checkpoint(name)[:2])
    yield from halves(made)


def halves(path: Path) -> Built:
    """A step of a prompt with float inputs, one of rows with integers (where the matrices are
    packed): the forms' own cases have products with each."""
    model = weft.load(path, device=DEVICE, context=CONTEXT)
    yield from steps(model, "prefill")
    if model.config.forms:
        model = weft.load(path, device=DEVICE, context=CONTEXT, act_dtype="int8")
    yield from steps(model, "rows16")


def blocks() -> list[str]:
    """The block types of GGUF that a model may use, if the gguf package knows them."""
    import gguf

    readable = [name for name in BY_NAME if name not in _NO_WEIGHTS]
    return [name for name in readable if name in gguf.GGMLQuantizationType.__members__]


def _block(name: str, folder: Path) -> Built:
    """A file whose matrices have this type: their bytes are zeros, which say nothing of a graph."""
    import gguf
    from gguf_zoo import plain, write_gguf

    kind, block = gguf.GGMLQuantizationType[name], BY_NAME[name]

    def pack(_: str, value: np.ndarray) -> tuple[np.ndarray, Any]:
        if value.ndim == 1 or block.layout.isbuiltin:
            return plain(_, value) if value.ndim == 1 else (value.astype(block.layout), kind)
        size = value.shape[-1] // block.elements * block.nbytes
        return np.zeros((*value.shape[:-1], size), np.uint8), kind

    base = random_folder(folder / "model", _WIDE, 3, 0.2)
    path = write_gguf(base, folder / "model.gguf", pack)
    yield from halves(path)


def architectures() -> dict[str, dict[str, Any]]:
    """Rows of tests/models/model_zoo.py, with what the converter needs to be other."""
    from family_zoo import UNSAID
    from model_zoo import DECODERS, FAMILIES
    from test_family_gguf import FIXED

    return {name: FIXED.get(name, {}) for name in DECODERS | FAMILIES if name not in UNSAID}


def _file(name: str, folder: Path) -> Built:
    from gguf_zoo import write_gguf
    from model_zoo import write_model

    write_model(name, folder / "model", changed=architectures()[name])
    path = write_gguf(folder / "model", folder / "model.gguf")
    yield from steps(weft.load(path, device=DEVICE, context=CONTEXT), "rows16")


def _mixed(name: str, folder: Path) -> Built:
    config = replace(config_of(Fields(CONFIGS["llama"], "config")), act_dtype=as_dtype(name))
    runner: Any = packed.model(DEVICE, config, CONTEXT)[0]
    for kind in ("prefill", "decode", "rows64"):
        yield kind, runner.graph(kind)


GROUPS = {
    "forms": lambda: table("forms", forms(), _form, alone=True),
    "packed": lambda: table("packed", kinds(), _kind, alone=True),
    "blocks": lambda: table("blocks", blocks(), _block, alone=True),
    "gguf": lambda: table("gguf", architectures(), _file, alone=True),
    "mixed": lambda: table("mixed", INPUTS, _mixed),
}
