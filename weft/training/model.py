"""A decoder with differentiable weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from weft import ops
from weft.core.dtypes import DType, as_dtype, float32
from weft.core.errors import ModelError, UsageError
from weft.core.packed import Packed
from weft.importers.hf_config import Fields, read_config
from weft.models.arch.config import DecoderConfig, Kind
from weft.models.arch.decoder import train_forward
from weft.models.arch.families import DECODERS
from weft.models.arch.hooks import TrainingHooks
from weft.models.arch.inputs import tables
from weft.models.arch.picture_rows import PictureRows
from weft.models.arch.weights import Weight, Weights
from weft.models.weights.adapters import is_adapter
from weft.models.weights.decoder_names import decoder_layout
from weft.models.weights.reading import as_stored, is_packed, read_weights
from weft.tensor import functional
from weft.tensor.autograd import no_grad
from weft.tensor.core import Tensor
from weft.tensor.random import rand
from weft.tensor.recomputing import checkpoint

RESIDUAL = (".o.w", ".conv_out.w", ".down.w")  # projections that add to the residual stream
# kinds of weights that are cast to the compute dtype
MULTIPLIED: tuple[Kind, ...] = ("matrix", "experts", "head", "router", "gate", "conv", "adapter")
GIVEN = ".router_bias"  # chooses experts, and no gradient reaches it
Watch = Callable[[str, Any], None]


class TrainableDecoder:
    """The weights of a DecoderConfig as tensors by role ("embed", "0.q.w", ...), and its loss.

    Roles for which `trainable` is true (default: all) require gradients and are held as float32
    masters. The others keep their dtype; packed ones are held by their parts ("0.q.w.codes", ...).
    `compute` is the dtype of matrix products; products with packed weights use float32.

    `dropout` applies to embeddings and residual branches while `key` is set. With `checkpointing`
    the backward pass recomputes the inner values of each layer. With `packed`, an id given as ~id
    begins another document in a row (`decoder.train_forward`).
    """

    def __init__(
        self,
        config: DecoderConfig,
        weights: Mapping[str, np.ndarray | Packed],
        context: int,
        trainable: Callable[[str], bool] | None = None,
        compute: DType | str = float32,
        dropout: float = 0.0,
        adapter_dropout: float = 0.0,
        checkpointing: bool = False,
        packed: bool = False,
    ) -> None:
        check_context(config, context)
        if checkpointing and config.shares:
            raise UsageError(
                f"[train] checkpointing: layers of {config.family} share keys and values, which "
                "are kept; leave it out"
            )
        if config.traced is not None and (checkpointing or dropout):
            what = "[train] checkpointing" if checkpointing else "[model] dropout"
            raise UsageError(
                f"{what}: {config.family} is traced from transformers, whose layers weft does not "
                "know apart; leave it out"
            )
        if packed and config.attn_softcap:
            raise UsageError(
                f"[data] pack: {config.family} caps its attention scores, so none can be far below "
                "the others and hide a conversation; leave it out"
            )
        dtype = as_dtype(compute)
        arrays = Weights.of(weights)
        self._layout = decoder_layout(config).weights
        self.config = replace(
            config, act_dtype=dtype, act_by_form=False, kv_dtype=dtype, forms=arrays.forms
        )
        self.tensors: dict[str, Tensor] = {}
        for role, value in arrays.items():
            if (trainable is None or trainable(role)) and not role.endswith(GIVEN):
                self.tensors[role] = Tensor(np.array(value, np.float32), role).requires_grad_()
            else:
                self.tensors[role] = Tensor(value, role)
        self._tables = {name: Tensor(t, name) for name, t in tables(config, context).items()}
        self.dropout, self.adapter_dropout = dropout, adapter_dropout
        self.checkpointing, self.packed = checkpointing, packed
        self.key: Tensor | None = None  # uint32 [2], the dropout key of this step; None: no dropout
        # Index of the batch within an accumulated step; each part draws its own numbers.
        self.part = 0
        # Of this step: what `PictureTable.inputs` gives of the pictures in its rows; {}: none.
        self.shown: Mapping[str, Tensor] = {}
        self._draws = 0

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Returns (role, tensor) for each trained tensor."""
        return ((role, t) for role, t in self.tensors.items() if t.requires_grad)

    def kind(self, role: str) -> Kind | None:
        """Returns the kind of a tensor; None for the parts of packed weights."""
        if is_adapter(role):
            return "adapter"
        return self._layout[role].kind if role in self._layout else None

    def arrays(self) -> dict[str, np.ndarray]:
        """Returns copies of all tensors on the host, by role."""
        return {role: np.array(t.numpy()) for role, t in self.tensors.items()}

    def assign(self, weights: Mapping[str, np.ndarray]) -> None:
        """Assigns new content (float32, by role) to some of the tensors."""
        with no_grad():
            for role, value in weights.items():
                t = self.tensors[role]
                t.assign(Tensor(np.array(value, np.float32)).to(t.device))

    def logits(self, ids: Tensor, watch: Watch | None = None) -> Tensor:
        """Returns logits float32 [B * T, vocab] for ids int32 [B, T]. Calls `watch` with "layer i"
        and the layer's result."""
        self._draws = self.part << 20
        training = self._training(watch)
        pictures, turns = self._pictures()
        out = train_forward(
            self.config, self._values(), ids.value, training, self.packed, pictures, turns
        )
        return Tensor(out)

    def _pictures(self) -> tuple[PictureRows | None, Any]:
        """Returns the pictures of this step, and the rotary positions of its rows."""
        flat = {k: t.reshape((-1, *t.shape[2:])).value for k, t in self.shown.items()}
        turns = flat.pop("turns", None)
        return (PictureRows(**flat) if flat else None), turns

    def loss(self, ids: Tensor, targets: Tensor) -> Tensor:
        """Returns the mean cross-entropy (nats, float32 []) for targets int32 [B, T]; -100 is
        ignored."""
        return functional.cross_entropy(self.logits(ids), targets.reshape((-1,)))

    def _values(self) -> dict[str, Any]:
        """Returns the operands of this step by role, with matrices in the compute dtype."""
        dtype = self.config.act_dtype
        values = {role: t.value for role, t in {**self.tensors, **self._tables}.items()}
        if dtype is float32:
            return values
        wanted = {role for role in values if self.kind(role) in MULTIPLIED}
        if self.config.tied and "embed" in values:
            values["head"] = values["embed"]
            wanted.add("head")
        return {r: ops.cast(v, dtype) if r in wanted else v for r, v in values.items()}

    def _training(self, watch: Watch | None) -> TrainingHooks:
        def layer(i: int, fn: Callable[[Any], Any], x: Any) -> Any:
            def run(t: Tensor) -> Tensor:
                self._draws = (self.part << 20) + 64 * (i + 1)  # the same draws when recomputed
                return Tensor(fn(t.value))

            out = (checkpoint(run, Tensor(x)) if self.checkpointing else run(Tensor(x))).value
            if watch is not None:
                watch(f"layer {i}", out)
            return out

        return TrainingHooks(
            layer, self._dropper(self.dropout), self._dropper(self.adapter_dropout), derived=True
        )

    def _dropper(self, share: float) -> Callable[[Any], Any] | None:
        """Returns inverted dropout (Srivastava et al. 2014), or None if nothing is dropped."""
        if not share or self.key is None:
            return None

        def drop(x: Any) -> Any:
            self._draws += 1
            return dropped(Tensor(x), share, self.key, self._draws).value

        return drop


def dropped(x: Tensor, share: float, key: Any, number: int) -> Tensor:
    """Returns x with each element zeroed with probability `share`, the rest scaled to keep the
    mean. The draw `number` of a key (uint32 [2]) always gives the same mask."""
    salt = Tensor(np.array([number, 0], np.uint32))
    kept = rand(*x.shape, key=key.detach() + salt) >= share
    return x * kept.cast(float32) * (1.0 / (1.0 - share))


# -- weights to start from -------------------------------------------------------------------------


def fresh_weights(config: DecoderConfig, seed: int) -> dict[str, np.ndarray]:
    """Returns initial float32 weights: matrices normal with deviation 0.02, norms and scalars one,
    biases zero. Matrices that add to the residual stream are smaller by sqrt(2 layers) (Radford et
    al. 2019)."""
    rng = np.random.Generator(np.random.Philox(seed))
    out = {}
    for role, spec in decoder_layout(config).weights.items():
        if spec.kind == "bias":
            out[role] = np.zeros(spec.shape, np.float32)
        elif spec.kind in ("norm", "scale"):
            out[role] = np.full(spec.shape, 1.0 - config.norm_offset, np.float32)
        else:
            scale = 0.02 / math.sqrt(2 * config.layers) if role.endswith(RESIDUAL) else 0.02
            out[role] = rng.standard_normal(spec.shape, np.float32) * np.float32(scale)
    return out


def folder_weights(folder: Path) -> tuple[DecoderConfig, dict[str, np.ndarray]]:
    """Returns the config and weights (float32, by role) of a Hugging Face folder. Raises
    ModelError."""
    if not folder.is_dir():
        raise ModelError(f"{folder} is not a folder; expected a Hugging Face model folder")
    config, bound = base_source(read_config(folder), folder)
    return config, {role: np.asarray(w.value(), np.float32) for role, w in bound.items()}


def base_weights(folder: Path) -> Mapping[str, np.ndarray | Packed]:
    """Returns the weights, by role, of a base model for adapters. If it is packed, packed weights
    stay packed and other weights keep their dtypes; otherwise all are float32. Raises
    ModelError."""
    raw = read_config(folder)
    if not is_packed(folder, raw):
        return folder_weights(folder)[1]
    return {role: weight.value() for role, weight in base_source(raw, folder)[1].items()}


def base_source(raw: Fields, folder: Path) -> tuple[DecoderConfig, Mapping[str, Weight]]:
    """Returns the config, and by role the weights, of the model in a folder. Raises ModelError."""
    if raw.text("model_type", "") not in DECODERS:
        from weft.models.zoo.source import zoo_source

        made = zoo_source(folder, raw)
        return _trainable(raw, made.config), made.weights
    config = config_of(raw, folder)
    return config, read_weights(folder, raw, decoder_layout(config))


def check_context(config: DecoderConfig, context: int) -> None:
    """Raises UsageError for sequences longer than the model's context."""
    if context > config.max_positions:
        raise UsageError(
            f"[train] context is {context}; the model has {config.max_positions} positions"
        )


def config_of(raw: Fields, folder: Path | None = None) -> DecoderConfig:
    """Returns the DecoderConfig of a config.json, adapted to the weights in `folder`. Raises
    ModelError for a model that is not a decoder or cannot be trained."""
    kind = raw.text("model_type", "")
    if kind not in DECODERS:
        if kind and folder is not None:
            return base_source(raw, folder)[0]
        raise ModelError(
            f"{raw.where}: {kind[:60] or 'no model_type'} cannot be trained; "
            f"supported: {', '.join(DECODERS)}"
        )
    made = _trainable(raw, DECODERS[kind](raw))
    return made if folder is None else as_stored(folder, raw, made)


def _trainable(raw: Fields, made: DecoderConfig) -> DecoderConfig:
    """Returns the config. Raises ModelError if a model like this cannot be trained."""
    if what := made.underivable:
        kind = raw.text("model_type", "")
        raise ModelError(f"{raw.where}: {kind} cannot be trained: it has {what}")
    return made
