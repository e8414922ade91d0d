"""The trained weights of a run: their initial values, reading and writing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from weft.core.arrays import all_finite
from weft.core.dtypes import as_dtype
from weft.core.errors import ModelError, UsageError
from weft.core.packed import Packed
from weft.hub.names import named
from weft.importers.hf_config import read_object
from weft.models.arch.config import DecoderConfig
from weft.models.arch.weights import Weights
from weft.models.run.sight import inside
from weft.models.weights import adapter_merge, adapters, peft_files
from weft.models.weights.adapter_base import fingerprint
from weft.models.weights.terms import copy_terms
from weft.models.weights.writing import write_model
from weft.training.model import (
    TrainableDecoder,
    base_weights,
    folder_weights,
    fresh_weights,
)
from weft.training.settings import TrainingSettings


class Trained:
    """The model of a run: a new one, or that of a folder, trained whole or by adapters.

    `config` and `raw` (config.json's fields) are the model's; `tokenizer` is the folder of the
    tokenizer's files. Raises ModelError for a weight that is not finite.
    """

    def __init__(
        self,
        settings: TrainingSettings,
        config: DecoderConfig,
        raw: dict[str, Any],
        tokenizer: Path,
    ) -> None:
        self.settings, self.config, self.raw, self._tokenizer = settings, config, raw, tokenizer
        s = settings
        weights: dict[str, np.ndarray | Packed]
        if s.model.base:
            weights = dict(base_weights(Path(s.model.base)))
            _check_finite(Weights.of(weights), s.model.base)
        else:
            weights = {**fresh_weights(config, s.train.seed)}
        trainable = None
        if s.lora.rank:
            roles = adapters.target_roles(config, s.lora.targets)
            weights |= adapters.fresh(config, roles, s.lora.rank, s.train.seed)
            config = replace(config, adapter_scale=s.lora.alpha / s.lora.rank)
            trainable = adapters.is_adapter
            self._base_digest = fingerprint(Path(s.model.base))
        self.model = TrainableDecoder(
            config, weights, s.train.context, trainable, compute=as_dtype(s.train.precision),
            dropout=s.model.dropout, adapter_dropout=s.lora.dropout,
            checkpointing=s.train.checkpointing, packed=s.data.pack,
        )  # fmt: skip

    def read(self, folder: Path) -> dict[str, np.ndarray]:
        """Returns the weights of a checkpoint, float32 by role. Raises UsageError if its adapter
        was trained on other weights than the model's."""
        if not self.settings.lora.rank:
            weights = folder_weights(folder)[1]
        else:
            adapter = peft_files.read(folder, self.config)
            if adapter.base_digest != self._base_digest:
                raise UsageError(
                    f"{self.settings.model.base} does not hold the weights that {folder} was "
                    "trained on; restore them, or name another [output] folder"
                )
            weights = dict(adapter.weights)
        _check_finite(weights, str(folder))
        return weights

    def whole(self) -> tuple[DecoderConfig, dict[str, np.ndarray]]:
        """Returns config and weights for inference, with adapters merged into the weights, or
        separate if the weights are packed."""
        arrays, was = self.model.arrays(), self.model.config
        if was.forms:
            return replace(self.config, forms=was.forms, adapter_scale=was.adapter_scale), arrays
        if not self.settings.lora.rank:
            return self.config, arrays
        return adapter_merge.merged(self.config, arrays, self.adapter())

    def write(self, folder: Path, dtype: str) -> None:
        """Writes the model, or in a LoRA run the adapter, into a folder."""
        if self.settings.lora.rank:
            adapters.write(folder, self.config, self.adapter(), inside(self.raw))
        else:
            weights = self.model.arrays()
            write_model(folder, self.config, self.raw, self._tokenizer, weights, dtype)
            if self.settings.model.base:
                copy_terms(Path(self.settings.model.base), folder)

    def is_written(self, folder: Path, dtype: str) -> bool:
        """Returns True if `write` has made this folder, in that dtype."""
        if self.settings.lora.rank:
            return (folder / adapters.CONFIG).exists()
        path = folder / "config.json"
        return path.exists() and read_object(path).get("dtype") == dtype

    def adapter(self) -> adapters.Adapter:
        """Returns the current adapter of a LoRA run."""
        lora = self.settings.lora
        weights = {r: np.array(t.numpy()) for r, t in self.model.named_parameters()}
        base = named(self.settings.model.base)
        return adapters.Adapter(
            lora.rank, lora.alpha, lora.dropout, base, weights, self._base_digest
        )


def _check_finite(weights: Mapping[str, np.ndarray], where: str) -> None:
    for role, value in weights.items():
        if as_dtype(value.dtype).is_float and not all_finite(value):
            raise ModelError(f"{where}: weight {role} is not finite; there is nothing to train on")
