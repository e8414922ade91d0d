"""Decides which weights of a model are packed, and in which form; holds the searches for scales."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from weft.core.dtypes import DType
from weft.core.packed import Form, Packed
from weft.models.arch.config import DecoderConfig, Kind
from weft.models.arch.conformer_config import ConformerConfig
from weft.models.arch.encoder_config import EncoderConfig
from weft.models.arch.seq2seq_config import Seq2SeqConfig
from weft.models.weights.conformer_names import conformer_layout
from weft.models.weights.decoder_names import decoder_layout
from weft.models.weights.encoder_names import encoder_layout
from weft.models.weights.seq2seq_names import seq2seq_layout
from weft.program.device import HOST
from weft.quantize.schemes import Scheme
from weft.quantize.search import Search

Target = tuple[Form, DType]  # a weight's new form, and the dtype of its scales


class Packing:
    """The scheme of each kind of weight ("none": unpacked).

    `plan` holds the schemes of single weights, by role. Scales have the dtype `scales`, by default
    the scheme's. Weights are given in the layout of the model's layers.
    """

    def __init__(
        self,
        config: DecoderConfig | EncoderConfig | Seq2SeqConfig | ConformerConfig,
        schemes: Mapping[Kind, str],
        device: Any = HOST,
        scales: DType | None = None,
    ) -> None:
        if isinstance(config, DecoderConfig):
            layout, self._transposed = decoder_layout(config), config.transposed
        elif isinstance(config, Seq2SeqConfig):
            layout, self._transposed = seq2seq_layout(config), False
        elif isinstance(config, ConformerConfig):
            layout, self._transposed = conformer_layout(config), False
        else:
            layout, self._transposed = encoder_layout(config), False
        self.kinds = {role: spec.kind for role, spec in layout.weights.items()}
        self.plan: dict[str, str] = {}
        self._schemes, self._scales = schemes, scales
        self._device = device
        self._searches: dict[Target, Search] = {}

    def target(self, role: str, weight: np.ndarray, name: str = "") -> Target | None:
        """Returns the form and scale dtype of a weight, by its scheme or by the scheme `name`; None
        if it stays unpacked."""
        name = name or self.plan.get(role) or self._schemes.get(self.kinds[role], "none")
        if name == "none":
            return None
        scheme = Scheme(name)
        form = scheme.form(self.matrix(role, weight).shape[1])
        return None if form is None else (form, self._scales or scheme.scale_dtype)

    def matrix(self, role: str, weight: np.ndarray) -> np.ndarray:
        """Converts a weight from its family's layout to [N, K], or back. Experts' matrices [E, N,
        K] are stacked along N."""
        if self.kinds[role] == "experts":
            return weight.reshape(-1, weight.shape[-1])
        return weight.T if self._transposed and self.kinds[role] == "matrix" else weight

    def search(self, target: Target) -> Search:
        if target not in self._searches:
            self._searches[target] = Search(*target, self._device)
        return self._searches[target]

    def packed(self, role: str, weight: np.ndarray, h: np.ndarray | None = None) -> Packed:
        """Packs a weight that has a target by a search alone; h[K] weights its columns."""
        target = self.target(role, weight)
        assert target is not None
        return Packed(target[0], self.search(target)(self.matrix(role, weight), h))
