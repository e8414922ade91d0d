"""The pieces that a model is quantised in, and the file of each finished one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from weft.core.packed import Packed, split, stacked
from weft.importers.safetensors import SafetensorsFile, save_file
from weft.models.arch.config import DecoderConfig
from weft.models.arch.weights import Weights
from weft.models.weights.decoder_names import decoder_layout
from weft.models.weights.names import (
    checkpoint_names,
    parts_of,
    read_weight,
    tensors_of as plain_tensors,
)
from weft.quantize import compressed
from weft.quantize.gguf import kind_of
from weft.quantize.packing import Packing, Target
from weft.quantize.resume import Unfinished


class Pieces:
    """The pieces of a model: first the weights outside the layers, then each layer.

    `roles` lists the weights of each piece. `left` is the folder of finished pieces; for a GGUF
    file (`gguf`) they hold raw parts, which are joined at the end.
    """

    def __init__(
        self, config: DecoderConfig, weights: Weights, packing: Packing, left: Unfinished,
        gguf: bool,
    ) -> None:  # fmt: skip
        self.weights, self.packing, self.left, self.gguf = weights, packing, left, gguf
        self.layout = decoder_layout(config).weights
        self.names = checkpoint_names(config)
        rest = [r for r in weights if not r.split(".")[0].isdigit()]
        layers = (f"{i}." for i in range(config.layers))
        self.roles = [rest, *([r for r in weights if r.startswith(at)] for at in layers)]

    def __len__(self) -> int:
        return len(self.roles)

    def form(self, role: str) -> Target | None:
        """Returns the form a weight gets; None if it stays unpacked."""
        found = self.packing.target(role, self.weights[role])
        if found is not None and self.gguf:
            kind_of(found[0])
        return found

    def forms(self, roles: Iterable[str]) -> dict[str, Target]:
        """Returns the forms of the packed weights, by role."""
        return {r: form for r in roles if (form := self.form(r)) is not None}

    def target(self, role: str, scheme: str) -> Target:
        """Returns the form that a scheme would give to a packed weight."""
        found = self.packing.target(role, self.weights[role], scheme)
        assert found is not None
        return found

    def is_linear(self, role: str) -> bool:
        """Returns True if readers of the result see the weight as a linear layer."""
        return self.packing.kinds[role] in ("matrix", "experts", "router", "gate", "head")

    def linears(self, role: str) -> list[str]:
        """Returns the names of the layers whose matrices a weight holds."""
        names = parts_of(self.layout[role], self.names[role])
        return [name.removesuffix(".weight") for name in names]

    def matrix(self, role: str) -> np.ndarray:
        """Returns a weight as [N, K]."""
        return self.packing.matrix(role, self.weights[role])

    # -- files

    def name(self, piece: int) -> str:
        return f"model-{piece + 1:05d}-of-{len(self):05d}.safetensors"

    def file(self, piece: int) -> Path:
        return self.left.folder / self.name(piece)

    def finished(self, piece: int) -> bool:
        """Returns True if an earlier run or this one has written the piece."""
        return self.left.has(self.name(piece))

    def write(self, piece: int, weights: Mapping[str, np.ndarray | Packed]) -> None:
        """Writes the file of a finished piece."""
        tensors: dict[str, np.ndarray] = {}
        for role, value in weights.items():
            name = self.names[role]
            if not isinstance(value, Packed):
                tensors |= plain_tensors(self.layout[role], name, value)
            elif self.gguf:  # raw parts: the GGUF file is made from all pieces
                tensors |= {f"{name}.{p}": v for p, v in value.parts.items()}
            else:
                for one, part in zip(self.linears(role), split(value, len(self.linears(role)))):
                    tensors |= compressed.tensors_of(one, part)
        save_file(self.file(piece), tensors, {"format": "pt"})
        self.left.add(self.name(piece))

    def read(self, piece: int, roles: list[str]) -> dict[str, np.ndarray | Packed]:
        """Reads the weights of a finished piece."""
        file = SafetensorsFile(self.file(piece))
        out: dict[str, np.ndarray | Packed] = {}
        for role in roles:
            name, found = self.names[role], self.form(role)
            if found is None:
                out[role] = read_weight(self.layout[role], name, lambda part, _: file[part])
            elif self.gguf:
                out[role] = Packed(found[0], {p: file[f"{name}.{p}"] for p in found[0].parts})
            else:
                each = [compressed.packed_from(file, one, found[0]) for one in self.linears(role)]
                out[role] = stacked(each)
        return out
