"""Selects the files of a repository that weft reads: JSON, chat templates, safetensors, GGUF."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence

from weft.core.errors import ModelError
from weft.hub.names import is_gguf
from weft.importers.gguf import PART
from weft.importers.safetensors import INDEX, SINGLE

CONFIG, ADAPTER_CONFIG, ADAPTER = "config.json", "adapter_config.json", "adapter_model.safetensors"
CARD = "README.md"
ADAPTERS = (ADAPTER, "adapters.safetensors")  # PEFT's and mlx-lm's
_BESIDE = {
    CARD, CONFIG, ADAPTER_CONFIG, "generation_config.json", "tokenizer.json",
    "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja",
    "modules.json", "quantize_config.json", "config_sentence_transformers.json",
}  # fmt: skip
_MODULES = re.compile(r"\d{1,2}_\w{1,40}/config\.json|sentence_[a-z-]{2,20}_config\.json", re.ASCII)
# A model's terms go where it goes: its licence files, and the card, which names the licence.
TERMS = re.compile(r"(licen[cs]e|notice|copying|copyright|use[-_]policy)([-_.][^/]*)?", re.I)
_NO_MODEL = ("mmproj", "imatrix")  # words in names of GGUF files that are not models
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")


def choose(
    repo: str, part: str, names: Collection[str], shards: Callable[[str], Sequence[str]]
) -> list[str]:
    """Returns the files to fetch among `names`: a folder's, small ones first, or those of one GGUF
    model in order. `shards` reads an index. Raises ModelError if nothing is readable, or if there
    are several models and `part` does not select one."""
    names = {name for name in names if is_plain(name)}
    if part:
        return _gguf(repo, part, names)
    weights = _weights(names, shards)
    if weights is not None:
        missing = [shard for shard in weights if shard not in names]
        if missing:
            raise ModelError(f"{repo}: {shown(missing[:1])} is missing ({INDEX} names it)")
        beside = [n for n in names if n in _BESIDE or _MODULES.fullmatch(n) or TERMS.fullmatch(n)]
        return [*sorted(beside), *weights]
    models = gguf_models(names)
    if len(models) == 1:
        return whole(repo, next(iter(models.values())))
    if models:
        raise ModelError(
            f"{repo} holds {len(models)} GGUF models: {shown(models)}\n"
            f"name one: {repo}:{shown(sorted(models)[:1])}, or its quantisation, as in :Q4_K_M"
        )
    raise ModelError(
        f"{repo} holds nothing that weft reads: {_kinds(names)}\n"
        f"weft reads {CONFIG} with {SINGLE} (or its index and shards), and GGUF files"
    )


def is_plain(name: str) -> bool:
    """Returns True for a relative path with / that stays in its folder, on any system."""
    parts = name.split("/")
    odd = any(c in '\\:*?"<>|' or not c.isprintable() for c in name)
    return not odd and len(name) < 500 and all(
        0 < len(p) < 250 and p[0] != " " and p[-1] not in " ." and p[0] != "." for p in parts
    )  # fmt: skip


def shown(names: Iterable[str], count: int = 12) -> str:
    """Returns some untrusted names, made safe for a terminal."""
    every = sorted(names)
    more = [f"and {len(every) - count} more"] if len(every) > count else []
    safe = ("".join(c if c.isprintable() else "?" for c in n[:120]) for n in every[:count])
    return ", ".join([*safe, *more])


def _weights(names: Collection[str], shards: Callable[[str], Sequence[str]]) -> list[str] | None:
    """Returns the safetensors files of a folder; None if it has no such model."""
    if CONFIG in names and SINGLE in names:
        return [SINGLE]
    if CONFIG in names and INDEX in names:
        return [INDEX, *shards(INDEX)]
    adapters = [name for name in ADAPTERS if name in names] if ADAPTER_CONFIG in names else []
    return adapters[:1] or None


def gguf_models(names: Collection[str]) -> dict[str, list[str]]:
    """Returns first file -> files, for every GGUF model."""
    out: dict[str, list[str]] = {}
    sets: dict[tuple[str, str], str] = {}
    for name in sorted(names):
        base = name.rpartition("/")[2].lower()
        if not is_gguf(base) or any(word in base for word in _NO_MODEL):
            continue
        split = PART.fullmatch(name)
        first = name if split is None else sets.setdefault((split[1], split[3]), name)
        out.setdefault(first, []).append(name)
    return out


def whole(repo: str, files: list[str]) -> list[str]:
    """Returns the files of a model. Raises ModelError if a part is missing."""
    split = PART.fullmatch(files[0])
    if split is not None:
        have = {PART.fullmatch(name)[2] for name in files}  # type: ignore[index]
        if len(have) != int(split[3]) or "00001" not in have:
            raise ModelError(
                f"{repo}: of {split[3]} parts of {shown(files[:1])} {len(have)} are there"
            )
    return files


def _gguf(repo: str, part: str, names: Collection[str]) -> list[str]:
    """Returns the files of the GGUF model that `part` selects, by a file's name or a
    quantisation."""
    models = gguf_models(names)
    if is_gguf(part):
        if part in names and part not in (f for files in models.values() for f in files):
            return [part]
        found = {first: files for first, files in models.items() if part in files}
    else:
        # Match a whole word: Q4_K is not Q4_K_M, Q4_0 is not IQ4_0.
        word = re.compile(rf"(?:^|[-._/]){re.escape(part)}(?:$|[-./])", re.IGNORECASE)
        found = {first: files for first, files in models.items() if word.search(_stem(first))}
    if len(found) == 1:
        return whole(repo, next(iter(found.values())))
    if found:
        raise ModelError(
            f"{repo} holds {len(found)} files of {part}: {shown(found)}\nadd the name of one file"
        )
    held = f"it holds {shown(models)}" if models else f"no GGUF is among {shown(names, 6)}"
    raise ModelError(f"{repo} holds no {shown([part])}; {held}")


def _stem(name: str) -> str:
    split = PART.fullmatch(name)
    return split[1] if split else name[: -len(".gguf")]


def _kinds(names: Collection[str]) -> str:
    """Describes the files of a repository in a few words."""
    if not names:
        return "it is empty"
    pickles = [n for n in names if n.endswith(_PICKLES)]
    if pickles:
        return f"{shown(pickles, 3)} (pickles, which weft does not open)"
    return shown(names, 6)
