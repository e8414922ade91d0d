"""Reads sentence-transformers folders, which define how token vectors become a text's vector."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from weft.core.errors import ModelError
from weft.core.notices import say_unknown
from weft.core.text import shown
from weft.importers.hf_config import MAX_CONFIG, Fields, parse_json, read_bounded, read_object
from weft.models.arch.encoders import MAX_TOKENS
from weft.models.arch.family_parts import MAX_HIDDEN
from weft.models.arch.pooling import COMMON_PROMPTS, Pooling
from weft.models.run.sentence_steps import STEPS, step_of

# Modes by the fields of older files, in the order of `MODES`.
_MODES = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
_POOLING = ("pooling_mode", *_MODES.values(), "include_prompt")
_LIMITS = ("max_seq_length", "do_lower_case")
_SETTINGS = ("prompts", "default_prompt_name", "truncate_dim", "model_type")
# Fields that change no vector: sizes known from the weights, comparison of vectors, versions,
# speed.
_INERT = ("word_embedding_dimension", "embedding_dimension", "similarity_fn_name", "__version__",
          "requirements", "unpad_inputs")  # fmt: skip
# Fields that weft does not support, and the values that have no effect.
_PLAIN: dict[str, tuple[Any, ...]] = {
    "transformer_task": ("feature-extraction",), "query_length": (), "document_length": (),
    "query_expansion": (), "module_output_name": ("token_embeddings",),
    "module_input_name": ("sentence_embedding",),
}  # fmt: skip
_EMPTY = ("model_args", "tokenizer_args", "config_args", "model_kwargs", "processor_kwargs",
          "config_kwargs", "processing_kwargs")  # fmt: skip
_LIMIT_FILES = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)


def vector_modules(folder: Path) -> tuple[str, ...]:
    """Returns the kinds of the modules that make a text's vector; () without modules.json."""
    path = folder / "modules.json"
    return tuple(module_kind(m)[:60] for m in modules_of(path)) if path.exists() else ()


def makes_vectors(folder: Path) -> bool:
    """Returns True if the files of a folder make vectors of its texts."""
    return "Pooling" in vector_modules(folder)


def read_pooling(folder: Path, hidden: int) -> tuple[Pooling, dict[str, np.ndarray]]:
    """Returns the pooling of a sentence-transformers folder for token vectors of length `hidden`,
    and the arrays of its steps; mean pooling without modules.json.

    Raises ModelError for a module, a pooling mode or a setting that weft does not support.
    """
    longest = tokenizer_limit(folder)
    path = folder / "modules.json"
    if not path.exists():
        return Pooling(max_length=longest, **_settings(folder)), {}
    kinds: list[str] = []
    made: dict[str, Any] = {"max_length": longest, "steps": ()}
    arrays: dict[str, np.ndarray] = {}
    for m in modules_of(path):
        kind = module_kind(m)
        home = inside(folder, m.text("path", ""), m.where)
        if kind == "Transformer" and home != folder:
            raise ModelError(f"{m.where}: a Transformer in a subfolder is not supported")
        if kind in STEPS and kinds[:2] == ["Transformer", "Pooling"]:
            width = Pooling(**made).width(hidden)
            step, own = step_of(kind, home, width, _known)
            arrays |= {f"{len(made['steps'])}.{role}": array for role, array in own.items()}
            made["steps"] += (step,)
        elif kind in _READERS:
            made |= _READERS[kind](home)
        elif kind not in STEPS:
            known = ", ".join([*_READERS, *STEPS])
            raise ModelError(f"{m.where}: {kind[:60]!r} is not supported; supported: {known}")
        kinds += [kind] if kind != "Dropout" else []
    if kinds[:2] != ["Transformer", "Pooling"] or not set(kinds[2:]) <= set(STEPS):
        raise ModelError(
            f"{path}: the modules are {', '.join(kinds)[:80] or 'none'}; expected Transformer, "
            f"Pooling and perhaps {', '.join(STEPS)}"
        )
    return Pooling(**{**made, **_settings(folder)}), arrays


def modules_of(path: Path) -> list[Fields]:
    """Returns the entries of a modules.json."""
    modules = parse_json(read_bounded(path, MAX_CONFIG), str(path))
    if not isinstance(modules, list) or not all(isinstance(m, dict) for m in modules):
        raise ModelError(f"{path}: expected a list of modules")
    return [Fields(m, f"{path}: module {i}") for i, m in enumerate(modules)]


def module_kind(module: Fields) -> str:
    """Returns the last part of a module's class name."""
    name: str = module.text("type")
    return name.rpartition(".")[2]


def _transformer(home: Path) -> dict[str, Any]:
    path = next((home / n for n in _LIMIT_FILES if (home / n).exists()), None)
    if path is None:
        return {}
    c = _known(path, _LIMITS, ("modality_config",))
    longest = c.integer("max_seq_length", 1, MAX_TOKENS, None)
    limit = {} if longest is None else {"max_length": longest}
    return {"lower_case": c.flag("do_lower_case", False), **limit}


def _pooling(home: Path) -> dict[str, Any]:
    c = _known(home / "config.json", _POOLING)
    return {"modes": _modes(c), "include_prompt": c.flag("include_prompt", True)}


_READERS: dict[str, Any] = {
    "Transformer": _transformer, "Pooling": _pooling,
    "Dropout": lambda home: {},  # only for training
}  # fmt: skip


def _settings(folder: Path) -> dict[str, Any]:
    """Returns the fields of config_sentence_transformers.json."""
    path = folder / "config_sentence_transformers.json"
    if not path.exists():
        return {}
    c = _known(path, _SETTINGS)
    kind = c.text("model_type", "SentenceTransformer")
    if kind != "SentenceTransformer":
        raise ModelError(
            f"{path}: the model is a {shown(kind, 40)}; weft embeds with SentenceTransformer"
        )
    prompts = c.section("prompts") or Fields({}, path.name)
    found = tuple((name, prompts.text(name, "")) for name in prompts.data)
    default = c.text("default_prompt_name", None)
    if default is not None and default not in (*COMMON_PROMPTS, *prompts.data):
        known = ", ".join(prompts.data) or "none"
        raise ModelError(
            f"{path}: default_prompt_name is {default[:40]!r}; the prompts are {known}"
        )
    dim = c.integer("truncate_dim", 1, MAX_HIDDEN, None)
    return {"prompts": found, "default": default, "dim": dim}


def _known(path: Path, names: tuple[str, ...], more: tuple[str, ...] = ()) -> Fields:
    """Returns a file's fields. Raises ModelError for fields that weft does not support."""
    c = Fields(read_object(path, MAX_CONFIG), str(path))
    for name, plain in _PLAIN.items():
        if name not in names and c.data.get(name) is not None and c.data[name] not in plain:
            raise ModelError(f"{path}: {name} = {shown(c.data[name])} is not supported")
    filled = {name: value for name, value in c.data.items() if name not in _EMPTY or value}
    say_unknown(str(path), filled, names, _INERT, _PLAIN, more)
    return c


def tokenizer_limit(folder: Path) -> int | None:
    """Returns the longest text by tokenizer_config.json, which sentence-transformers uses if its
    own files do not set it."""
    path = folder / "tokenizer_config.json"
    found = read_object(path).get("model_max_length") if path.exists() else None
    if found is None:
        return None
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise ModelError(f"{path}: model_max_length is {shown(found)}; expected a number")
    return int(found) if 1 <= found <= MAX_TOKENS else None


def inside(folder: Path, relative: str, where: str) -> Path:
    """Returns `folder/relative`. Raises ModelError for a path outside the folder."""
    parts = Path(relative).parts
    odd = len(relative) > 200 or any(c in "\\:" or not c.isprintable() for c in relative)
    if odd or Path(relative).is_absolute() or ".." in parts:
        raise ModelError(f"{where}: path {relative[:80]!r} leads out of the model folder")
    home = folder / relative
    if not home.resolve().is_relative_to(folder.resolve()):  # through a link
        raise ModelError(f"{where}: path {relative[:80]!r} leads out of the model folder")
    return home


def _modes(c: Fields) -> tuple[Any, ...]:
    value = c.data.get("pooling_mode")  # spelling of version 5: one name, or a list
    if value is not None:
        named = c.texts("pooling_mode") if isinstance(value, list) else (c.text("pooling_mode"),)
        wrong = [n for n in named if n not in _MODES]
        if wrong or not named:
            raise ModelError(
                f"{c.where}: pooling_mode {str(value)[:60]!r} is not supported; "
                f"supported: {', '.join(_MODES)}"
            )
        return named
    return tuple(mode for mode, name in _MODES.items() if c.flag(name, False)) or ("mean",)
