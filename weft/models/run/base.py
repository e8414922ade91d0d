"""The common base class of models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.core.arrays import all_finite
from weft.core.dtypes import float32
from weft.core.errors import CallError, ModelError, UsageError
from weft.models.arch import matrices
from weft.models.arch.config import DecoderConfig
from weft.models.arch.encoder_config import EncoderConfig
from weft.models.arch.seq2seq_config import Seq2SeqConfig
from weft.models.arch.weights import Weights
from weft.models.weights.weight_dtypes import main_dtype

if TYPE_CHECKING:
    from weft.graph.ir import Graph
    from weft.models.text.tokenizer import Tokenizer
    from weft.program.device import Device


class Model:
    """The base class of decoders and encoders. `device` is None for the NumPy oracle."""

    _instead = "an encoder: use embed(texts)"  # of a model that writes nothing

    def __init__(
        self,
        folder: Path,  # or a file
        config: DecoderConfig | EncoderConfig | Seq2SeqConfig,
        weights: Weights,
        device: Device | None,
        make_tokenizer: Callable[[], Tokenizer | None],
    ) -> None:
        self.folder = folder
        self.config = config
        self.device = device
        self.weights = weights
        self._files = weights.files
        self._make_tokenizer = make_tokenizer
        self._tokenizer: Tokenizer | None = None
        self._tokenizer_read = False

    @cached_property
    def called(self) -> str:
        """The model in errors: its folder, or the name that a server sets, which clients know."""
        return str(self.folder)

    def __repr__(self) -> str:
        c = self.config
        place = "the NumPy oracle" if self.device is None else self.device.info.id
        size = f"{c.layers} layers of {c.hidden}, vocab {c.vocab}"
        return f"{type(self).__name__}({self.folder.name!r}, {size}, {self.precision}, {place})"

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The model's tokenizer, read on first use; None if it has none."""
        if not self._tokenizer_read:
            self._tokenizer = self._make_tokenizer()
            self._tokenizer_read = True
        return self._tokenizer

    @property
    def precision(self) -> str:
        """A description of the dtypes: "float16", "bfloat16 with bfloat16 inputs", "packed, 4.50
        bits per weight". It names the weights' dtype, the inputs' if linear inputs are rounded too,
        and the cache's if that differs."""
        main = main_dtype(self.weights)
        narrow = main is self.config.act_dtype and main is not float32
        said = f"{main.name} with {main.name} inputs" if narrow else main.name
        if self.config.forms:
            said = f"packed, {matrices.bits(self.config.forms, self.weights):.2f} bits per weight"
            said += ", int8 inputs" if self._takes_integers else ""
        kept = getattr(self.config, "kv_dtype", main)
        return said if kept is main else f"{said}, {kept.name} cache"

    @property
    def _takes_integers(self) -> bool:
        """True if inputs of packed layers are quantised; the output layer alone does not count."""
        c = self.config
        return isinstance(c, DecoderConfig) and any(
            form.values == "int" and c.planes_of(form, role)
            for role, form in c.forms
            if role not in ("head", "embed")
        )

    @property
    def nbytes(self) -> int:
        """Bytes of the weights."""
        return sum(w.nbytes for w in self.weights.outlines.values())

    def _check_files(self) -> None:
        """Raises FileFormatError if a file behind the weights has been truncated."""
        for file in self._files:
            file.check()

    def need_tokenizer(self, why: str) -> Tokenizer:
        """Returns the tokenizer. Raises UsageError (with the reason `why`) without one."""
        if self.tokenizer is None:
            lacks = "tokenizer" if self.folder.is_file() else "tokenizer.json"
            raise UsageError(f"{self.called} has no {lacks}: {why}")
        return self.tokenizer

    def generate(self, prompt: Any, **options: Any) -> Any:
        """Generates text (decoders only). Raises UsageError for an encoder."""
        raise UsageError(f"{self.config.family} is {self._instead}")

    def logits(self, ids: Sequence[int]) -> np.ndarray:
        """Returns logits (decoders only). Raises UsageError for an encoder."""
        raise UsageError(f"{self.config.family} is {self._instead}")

    def chat_ids(self, messages: Sequence[Mapping[str, Any]], **variables: Any) -> list[int]:
        """Returns the ids of a chat prompt (decoders only). Raises UsageError for an encoder."""
        raise UsageError(f"{self.config.family} cannot chat; it is {self._instead}")

    def graphs(self) -> dict[str, Graph]:
        """Returns the model's graphs before compilation, by step ({} on the oracle)."""
        return {}

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Returns vectors of texts (models that give vectors only). Raises UsageError for one that
        generates text."""
        raise UsageError(f"{self.config.family} generates text: use generate(prompt)")

    def classify(self, texts: Any, **options: Any) -> Any:
        """Returns labels of texts (classifiers only). Raises UsageError for other models."""
        raise UsageError(f"{self.called} is not a classifier: it lacks labels")

    def transcribe(self, sound: Any, **options: Any) -> Any:
        """Returns what is said in a sound (models of speech only). Raises UsageError for other
        models."""
        raise UsageError(f"{self.called} does not hear: expected the folder of a model of speech")

    def rerank(self, query: str, documents: Sequence[str], **options: Any) -> Any:
        """Returns documents by how well they match a query (rerankers only). Raises UsageError for
        other models."""
        raise UsageError(f"{self.called} is not a reranker: it scores no pairs of texts")

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise CallError(
            f"{self.folder}: a model holds a device, threads and mapped files, which neither "
            "pickle nor copy carries over; pass the folder's name and call weft.load there"
        )

    def explain_bad(self, what: str) -> ModelError:
        """Returns the error for numbers that are not finite; it names the first weight with NaN or
        infinity."""
        for role, value in self.weights.items():
            if not all_finite(value):
                bad = ~np.isfinite(value.astype(np.float32, copy=False))
                at = [int(i) for i in np.argwhere(bad)[0]]
                name = self._name(matrices.owner(self.config.forms, role))
                return ModelError(
                    f"{self.called}: weight {name!r} holds NaN or infinity "
                    f"(first at {at}), so {what} not finite; the checkpoint is damaged"
                )
        return ModelError(
            f"{self.called}: {what} not finite though every weight is; a value overflowed "
            "its dtype: load with dtype='float32' (and cache='float32')"
        )

    def _name(self, role: str) -> str:
        """Returns the checkpoint's name for the weight with this role."""
        from weft.models.weights import decoder_names, encoder_names, gguf, gguf_encoder

        if self.folder.is_file() and isinstance(self.config, EncoderConfig):
            return gguf_encoder.tensor_name(role, self.config.pre_norms)
        if self.folder.is_file():
            return gguf.tensor_name(role, self.config.family)
        if isinstance(self.config, DecoderConfig):
            return decoder_names.decoder_layout(self.config).weights[role].name
        if isinstance(self.config, Seq2SeqConfig):
            from weft.models.weights.seq2seq_names import seq2seq_layout

            return seq2seq_layout(self.config).weights[role].name
        return encoder_names.encoder_layout(self.config).weights[role].name
