"""Training in a page: the Programs, the state that they begin with, and how the result is saved.

`train` is a step of weft train (loss, gradients, clipping, AdamW) with the learning rate as an
input, `next` the logits after a window of ids. Both hold what is trained as state of one name, so
a page writes with the weights as they are after each step.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from weft.core import dtypes as dt
from weft.core.caps import Caps
from weft.core.errors import UsageError
from weft.hub.names import parse
from weft.importers.hf_config import Fields, read_config
from weft.models.run.compiled_runner import model_caps
from weft.models.run.model import Decoder
from weft.models.weights import adapters
from weft.models.weights.names import checkpoint_names
from weft.models.weights.writing import write_model
from weft.optim import AdamW
from weft.program.program import Program
from weft.tensor.autograd import no_grad
from weft.tensor.core import Tensor
from weft.tensor.program_cache import program_of
from weft.tensor.tracing import Spec, Traced, trace_call
from weft.training.model import TrainableDecoder, config_of
from weft.training.prepare import new_config
from weft.training.settings import (
    LoraSettings,
    ModelSettings,
    OptimizerSettings,
    TrainingSettings,
    TrainSettings,
)
from weft.training.step import make_optimizer, update
from weft.training.tokens import end_token
from weft.training.weights import Trained

KINDS = ("scratch", "lora")
SCRATCH = TrainingSettings(
    model=ModelSettings(hidden=64, layers=2, heads=4),
    train=TrainSettings(batch=8, context=64),
    optimizer=OptimizerSettings(lr=3e-3, warmup=20),
)
LORA = TrainingSettings(
    lora=LoraSettings(rank=8),
    train=TrainSettings(batch=4, context=64),
    optimizer=OptimizerSettings(lr=2e-3, warmup=10, weight_decay=0.0),
)


class PageTraining:
    """One kind of training in a page. `tensors`, by name, are all that its Programs read or update,
    except those that begin as zeros, as a page's own buffers do. `about` goes into the manifest."""

    def __init__(self, kind: str, settings: TrainingSettings, trained: Trained) -> None:
        t, o = settings.train, settings.optimizer
        self.kind, self.settings, self.trained = kind, settings, trained
        self._traced = trace_steps(trained.model, t, o)
        self.tensors: dict[str, np.ndarray] = {}
        for traced in self._traced.values():
            states = {n.attrs["name"] for n, _ in traced.graph.assigns}
            for name, tensor in traced.captured.items():
                value = np.asarray(tensor.numpy())
                if name not in states or value.any():
                    self.tensors[name] = value
        self.about: dict[str, Any] = {
            "batch": t.batch, "length": t.context, "lr": o.lr, "warmup": o.warmup,
        }  # fmt: skip

    def programs(self, caps: Caps) -> dict[str, Program]:
        """By name, for a target."""
        return {k: program_of(v.graph, model_caps(caps)) for k, v in self._traced.items()}


def training(model: Decoder, kind: str, settings: TrainingSettings | None = None) -> PageTraining:
    """Training of `kind` for a page that runs `model`. Raises UsageError, ModelError for a model
    that cannot be trained."""
    if kind not in KINDS:
        raise UsageError(f"--train {kind}: expected one of {', '.join(KINDS)}")
    settings = settings or (LORA if kind == "lora" else SCRATCH)
    tokenizer = model.need_tokenizer("a page cannot train without one").path.parent
    end = end_token(tokenizer)
    ids = [] if end is None else model.need_tokenizer("").encode(end, special=False)
    if kind == "lora":
        raw = read_config(model.folder)
        settings = replace(settings, model=replace(settings.model, base=str(model.folder)))
    else:
        eos = model.tokens.eos
        made = new_config(
            settings.model, model.config.vocab, settings.train.context, eos[0] if eos else None
        )
        raw = Fields(made, "a new model")
    trained = Trained(settings, config_of(raw), dict(raw.data), tokenizer)
    out = PageTraining(kind, settings, trained)
    out.about |= {"end": ids, "save": _saved(kind, trained, model.folder, tokenizer)}
    return out


def trace_steps(
    model: TrainableDecoder, t: TrainSettings, o: OptimizerSettings
) -> dict[str, Traced]:
    """The graphs `train` (ids, targets [1, B, T], rate [] -> loss, norm, whether the update was
    finite, else nothing changed) and `next` (ids [1, T], last [1] -> logits [vocab])."""
    opt = make_optimizer(model, o, t.steps)

    def train(ids: Tensor, targets: Tensor, rate: Tensor) -> list[Tensor]:
        _rate(opt, rate)
        out = update(model, opt, t, o, None, ids, targets, None)
        return [out["loss"], out["norm"], out["finite"].cast(dt.float32)]

    def next(ids: Tensor, last: Tensor) -> Tensor:
        with no_grad():
            for _, p in model.named_parameters():
                p.assign(p)  # state here too: one buffer for both
            return model.logits(ids)[last].reshape((-1,))

    batch = Spec((1, t.batch, t.context), dt.int32)
    return {
        "train": _trace(train, [batch, batch, Spec((), dt.float32)]),
        "next": _trace(next, [Spec((1, t.context), dt.int32), Spec((1,), dt.int32)]),
    }


def _rate(opt: AdamW, rate: Tensor) -> None:
    """The learning rate of a step that is being traced: an input."""
    for group in opt.groups:
        group.lr = lambda _: rate


def _trace(fn: Callable[..., Any], specs: Sequence[Spec]) -> Traced:
    return trace_call(fn, specs, fn.__name__)


def _saved(kind: str, trained: Trained, base: Path, tokenizer: Path) -> dict[str, Any]:
    """The files that a page offers for download: for the weights the header of a safetensors file
    and the states that follow it; the others whole."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if kind == "lora":
            known = base.name if parse(str(base)) is None else str(base)
            adapters.write(folder, trained.config, replace(trained.adapter(), base=known))
            keys = [role for role, _ in trained.model.named_parameters()]
            names: Mapping[str, str] = adapters.file_names(trained.config, keys)
            weights, config = adapters.WEIGHTS, adapters.CONFIG
        else:
            write_model(folder, trained.config, trained.raw, tokenizer, trained.model.arrays())
            names = checkpoint_names(trained.config)
            weights, config = "model.safetensors", "config.json"
        data = (folder / weights).read_bytes()
        head = data[8 : 8 + int.from_bytes(data[:8], "little")].decode()
        placed = {
            k: v["data_offsets"][0] for k, v in json.loads(head).items() if k in names.values()
        }
        roles = {name: role for role, name in names.items()}
        return {
            "weights": [weights, head, [roles[n] for n in sorted(placed, key=placed.__getitem__)]],
            "config": [config, (folder / config).read_text(encoding="utf-8")],
        }
