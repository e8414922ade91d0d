"""The rows of the table of GGUF's families (`family_gguf`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, NamedTuple

from weft.core.records import dataclass


class Key(NamedTuple):
    """A key of the metadata, without the architecture's name.

    `field` is the path of the field in config.json; one that begins with a dot is in the rope of
    full layers; "" is not a field, but known. `config` is the path in a DecoderConfig of the value
    that a writer writes; "" if it writes none, or computes it. A file must hold what is `needed`,
    and what the family's function requires.
    """

    name: str
    field: str
    config: str = ""
    needed: bool = False


@dataclass(frozen=True)
class GgufFamily:
    """A family in GGUF files. If several families have one `arch`, a file with experts belongs to
    the one with `sparse`. One with a key `flag` of the value `flagged` belongs to the one that
    names it, another in which layers slide to the one with `slides`."""

    arch: str
    keys: tuple[Key, ...] = ()  # instead of those of KEYS with an equal name or field, or besides
    # Values of fields for which a file has no key, or lacks it; otherwise they are null.
    fixed: Mapping[str, Any] = field(default_factory=dict)
    without: tuple[str, ...] = ()  # names in KEYS that the architecture does not use
    slides: bool = False
    flag: str = ""  # a key that only files of this family have with a value,
    flagged: bool | int = True  # this one,
    lacks: str = ""  # and without this key
    with_experts: str = ""  # the architecture of its files with experts, if it has another name
    sparse: bool = False
    turned: bool = False  # rows of queries and keys are in interleaved rope order
    tiled: bool = False  # heads of values with one key head are apart (`config.Delta`)
    other: str = ""  # the type of layers for which head_count_kv is 0
    names: Mapping[str, str] = field(default_factory=dict)  # parts of tensors' names: usual -> own
    written: bool = True  # weft writes such files
