"""Which of a model's weights are packed, in which form, and the searches for their scales."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from weft.core.dtypes import DType
from weft.core.packed import Form, Packed
from weft.models.config import DecoderConfig, EncoderConfig, Kind
from weft.models.decoder_names import decoder_layout
from weft.models.names import encoder_layout
from weft.models.quantize.schemes import Scheme
from weft.models.quantize.search import Search
from weft.program.device import HOST

Target = tuple[Form, DType]  # what a weight becomes: its form, and the dtype of scales


class Packing:
    """The scheme of each kind of weight that is packed ("none": it is left); `plan` holds those of
    single weights, by role. Scales are of the dtype `scales`, by default the scheme's. Weights are
    given as the model's layers hold them."""

    def __init__(
        self,
        config: DecoderConfig | EncoderConfig,
        schemes: Mapping[Kind, str],
        device: Any = HOST,
        scales: DType | None = None,
    ) -> None:
        if isinstance(config, DecoderConfig):
            layout, self._transposed = decoder_layout(config), config.transposed
        else:
            layout, self._transposed = encoder_layout(config), False
        self.kinds = {role: spec.kind for role, spec in layout.weights.items()}
        self.plan: dict[str, str] = {}
        self._schemes, self._scales = schemes, scales
        self._device = device
        self._searches: dict[Target, Search] = {}

    def target(self, role: str, weight: np.ndarray, name: str = "") -> Target | None:
        """What a weight becomes, or would by the scheme `name`; None where it stays as it is."""
        name = name or self.plan.get(role) or self._schemes.get(self.kinds[role], "none")
        if name == "none":
            return None
        scheme = Scheme(name)
        form = scheme.form(self.matrix(role, weight).shape[1])
        return None if form is None else (form, self._scales or scheme.scale_dtype)

    def matrix(self, role: str, weight: np.ndarray) -> np.ndarray:
        """From how the layers of the family hold a weight to [N, K], or back; experts' matrices
        [E, N, K] one under the other."""
        if self.kinds[role] == "experts":
            return weight.reshape(-1, weight.shape[-1])
        return weight.T if self._transposed and self.kinds[role] == "matrix" else weight

    def search(self, target: Target) -> Search:
        if target not in self._searches:
            self._searches[target] = Search(*target, self._device)
        return self._searches[target]

    def packed(self, role: str, weight: np.ndarray, h: np.ndarray | None = None) -> Packed:
        """A weight that has a target, by a search alone; h[K] weighs its columns."""
        target = self.target(role, weight)
        assert target is not None
        return Packed(target[0], self.search(target)(self.matrix(role, weight), h))
