"""Models that turn pictures into vectors: CLIP and SigLIP, whose texts have vectors in the same
space, DINOv2 and DINOv3."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.core.errors import ModelError, UsageError
from weft.host.boundary import guard_methods
from weft.importers.hf_config import Fields
from weft.importers.safetensors import Checkpoint, open_checkpoint
from weft.models.arch.pooling import normalized
from weft.models.arch.tower_config import TowerConfig
from weft.models.arch.tower_families import TOWERS, clip_pair, siglip_pair
from weft.models.run.base import Model
from weft.models.run.sight import open_tower, read_steps
from weft.models.run.tower_runner import Tower
from weft.models.text.maker import tokenizer_maker
from weft.models.weights.placement import Placement
from weft.vision.decode import decode
from weft.vision.tiles import prepare

if TYPE_CHECKING:
    from weft.models.text.tokenizer import Tokenizer
    from weft.program.device import Device
    from weft.vision.steps import Steps

TOGETHER = 8  # pictures of a step
TEMPLATE = "a photo of {}."  # how labels are said to CLIP and SigLIP


class PictureEncoder(Model):
    """A model that turns pictures into vectors, and texts if it has a tower for them."""

    _instead = "a model of pictures: use embed_images(pictures)"

    def __init__(
        self, folder: Path, device: Device | None, config: TowerConfig,
        towers: Callable[[], tuple[Tower, TextTower | None]], steps: Steps,
        make_tokenizer: Callable[[], Tokenizer | None], scale: tuple[float, float],
    ) -> None:  # fmt: skip
        self.folder, self.device = folder, device
        self.config = config  # type: ignore[assignment]
        self.steps, self.scale = steps, scale
        self._make_towers, self._files = towers, []
        self._make_tokenizer, self._tokenizer, self._tokenizer_read = make_tokenizer, None, False

    def __repr__(self) -> str:
        c, place = self.config, "the NumPy oracle" if self.device is None else self.device.info.id
        size = f"{c.layers} layers of {c.hidden}"
        return f"PictureEncoder({self.folder.name!r}, {size}, {self.precision}, {place})"

    @cached_property
    def _towers(self) -> tuple[Tower, TextTower | None]:
        return self._make_towers()

    @property
    def nbytes(self) -> int:
        """Bytes of the weights."""
        tower, text = self._towers
        return tower.nbytes + (0 if text is None else text.tower.nbytes + text.table.nbytes)

    @property
    def precision(self) -> str:
        """The dtype of the weights."""
        return self._towers[0].dtype.name

    @property
    def dim(self) -> int:
        """The length of a vector."""
        c: Any = self.config
        return int(c.projector.width or c.hidden)

    @property
    def towers(self) -> tuple[Tower, TextTower | None]:
        """The tower of pictures, and that of texts (None: it reads none)."""
        return self._towers

    @property
    def patches(self) -> int:
        """The patches of a picture, as a measure of work."""
        c: Any = self.config
        return int(c.across) ** 2

    @property
    def longest(self) -> int:
        """The most tokens of a text (0: it reads none)."""
        text = self._towers[1]
        return 0 if text is None else len(text.places)

    def embed_images(self, pictures: Any, normalize: bool = False) -> np.ndarray:
        """Returns vectors of pictures (paths, bytes, arrays uint8 [H, W, 3] or images of Pillow's),
        float32 [N, dim]; with `normalize` of length 1. Raises what `weft.vision.decode` raises."""
        given = [pictures] if _is_one(pictures) else list(pictures)
        tower, out = self._towers[0], np.empty((len(given), self.dim), np.float32)
        full = len(given) - len(given) % TOGETHER  # the rest go one by one: two Programs in all
        for begin in [*range(0, full, TOGETHER), *range(full, len(given))]:
            part = given[begin : begin + (TOGETHER if begin < full else 1)]
            pixels = np.stack([
                prepare(self.steps, decode(one, f"picture {begin + i + 1}")).pixels[0]
                for i, one in enumerate(part)
            ])  # fmt: skip
            vectors = tower.many(pixels)
            out[begin : begin + len(part)] = vectors.reshape(len(part), -1, self.dim)[:, 0]
        if not np.isfinite(out).all():
            raise ModelError(f"{self.called}: the vectors of pictures are not finite")
        return normalized(out) if normalize else out

    def embed(
        self, texts: str | Sequence[str], *_: Any, normalize: bool = False, **more: Any
    ) -> np.ndarray:
        """Returns vectors of texts in the space of the pictures', float32 [N, dim]. Raises
        UsageError for a model without a tower of text."""
        text = self._towers[1]
        if text is None:
            raise UsageError(f"{self.called} reads pictures alone: use embed_images(pictures)")
        given = [texts] if isinstance(texts, str) else list(texts)
        rows = self.need_tokenizer("texts need one").encode_batch(given)
        out = np.concatenate([text.vector(row)[None] for row in rows])
        return normalized(out) if normalize else out

    def classify(  # type: ignore[override]
        self, pictures: Any, labels: Sequence[str] = (), template: str = TEMPLATE
    ) -> np.ndarray:
        """Returns how well each label describes each picture, float32 [N, labels]: with CLIP
        probabilities that add up to 1, with SigLIP one for each label alone. A label is said as
        `template` has it."""
        if isinstance(labels, str) or not labels:
            raise UsageError('labels are texts, such as ["a cat", "a dog"]')
        words = self.embed([template.format(label) for label in labels], normalize=True)
        scores = self.embed_images(pictures, normalize=True) @ words.T
        scale, bias = self.scale
        logits = scores * np.float32(np.exp(scale)) + np.float32(bias)
        if self._towers[1] is not None and self._towers[1].padded:
            found: np.ndarray = 1 / (1 + np.exp(-logits))
            return found
        powers = np.exp(logits - logits.max(1, keepdims=True))
        found = powers / powers.sum(1, keepdims=True)
        return found


class TextTower:
    """A tower of text: embeddings of tokens and positions are looked up on the host. A text's
    vector is that of its end (CLIP), or of the last place of a text that is `padded` to the longest
    with the id `pad` (SigLIP)."""

    def __init__(
        self, tower: Tower, table: np.ndarray, places: np.ndarray, project: np.ndarray,
        bias: np.ndarray | None, end: int, padded: bool, pad: int,
    ) -> None:  # fmt: skip
        self.tower, self.table, self.places = tower, table, places
        self.project, self.bias = project, bias
        self.end, self.padded, self.pad = end, padded, pad

    def vector(self, ids: Sequence[int]) -> np.ndarray:
        """Returns the vector of a text's ids, float32 [dim]; ids beyond the longest are cut, but
        for the last."""
        most = len(self.places)
        ids = [*ids[: most - 1], ids[-1]] if len(ids) > most else list(ids)
        if self.padded:
            ids += [self.pad] * (most - len(ids))
        at = len(ids) - 1
        if not self.padded:
            at = int(np.argmax(ids)) if self.end == 2 else _first(ids, self.end)
        size = min(-(-len(ids) // 16) * 16, most)
        rows = np.zeros((1, size, self.table.shape[1]), np.float32)
        rows[0, : len(ids)] = self.table[ids].astype(np.float32) + self.places[: len(ids)]
        found = self.tower.texts(rows, np.array([len(ids)]))[0, at]
        made: np.ndarray = self.project @ found
        return made if self.bias is None else made + self.bias


def _first(ids: Sequence[int], end: int) -> int:
    return ids.index(end) if end in ids else 0


def _is_one(pictures: Any) -> bool:
    return not isinstance(pictures, list | tuple) or not pictures


def load_picture_encoder(
    folder: Path, raw: Fields, kind: str, device: Device | None, place: Placement
) -> PictureEncoder:
    """Returns the model in a folder. Raises ModelError."""
    if place.quant is not None:
        raise UsageError(f"{raw.where}: weft does not quantise models of pictures")
    if kind in TOWERS:
        vision, text = TOWERS[kind](raw), None
    else:
        vision, text = (clip_pair if kind == "clip" else siglip_pair)(raw)
    checkpoint = open_checkpoint(folder)
    towers = partial(_open, folder, raw, checkpoint, vision, text, device, place)
    scale = _scalar(checkpoint, "logit_scale"), _scalar(checkpoint, "logit_bias")
    vocab = 1 << 30
    if text is not None:
        vocab = checkpoint.info("text_model.embeddings.token_embedding.weight").shape[0]
    make = tokenizer_maker(folder, vocab)
    return PictureEncoder(folder, device, vision, towers, read_steps(folder), make, scale)


def _scalar(checkpoint: Checkpoint, name: str) -> float:
    if name not in checkpoint:
        return 0.0
    return float(np.asarray(checkpoint[name], np.float32).reshape(()))


def _open(
    folder: Path, raw: Fields, checkpoint: Checkpoint, vision: TowerConfig,
    text: TowerConfig | None, device: Device | None, place: Placement,
) -> tuple[Tower, TextTower | None]:  # fmt: skip
    tower = open_tower(folder, vision, device, place)
    if text is None:
        return tower, None
    said = raw.section("text_config") or raw.having({})
    at, padded = "text_model.embeddings.", text.causal is False
    name = "text_model.head" if padded else "text_projection"

    def wide(tensor: str) -> np.ndarray:
        return np.asarray(checkpoint[tensor], np.float32)

    bias = wide(f"{name}.bias") if f"{name}.bias" in checkpoint else None
    return tower, TextTower(
        open_tower(folder, text, device, place),
        checkpoint[f"{at}token_embedding.weight"], wide(f"{at}position_embedding.weight"),
        wide(f"{name}.weight"), bias, said.integer("eos_token_id", 0, 1 << 31, 49407), padded,
        said.integer("pad_token_id", 0, 1 << 31, 1),
    )  # fmt: skip


guard_methods(PictureEncoder)
KINDS: Mapping[str, str] = {
    "clip": "CLIP", "siglip": "SigLIP", "dinov2": "DINOv2", "dinov3_vit": "DINOv3",
}  # fmt: skip
