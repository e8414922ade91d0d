"""weft.nn: each module forward and in a step of training, nets, optimisers, training of models."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import weft
from fingerprints.sources import Built, table, traced
from weft import nn
from weft.bench import image_nets as nets
from weft.conform.gpt import GptSizes, Trainer
from weft.conform.models import CONFIGS
from weft.core.errors import ModelError
from weft.importers.hf_config import Fields
from weft.models.weights import adapters
from weft.optim import SGD, Adam, AdamW
from weft.tensor import functional as F
from weft.training.model import TrainableDecoder, config_of, fresh_weights

OPTIMISERS: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda named: SGD(named, lr=0.1),
    "momentum": lambda named: SGD(named, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda named: Adam(named, lr=1e-2),
    "adamw": lambda named: AdamW(named, lr=1e-2, weight_decay=0.1),
}
# Modules that no table of the tests holds: what makes one, and what it takes.
OTHERS: dict[str, tuple[Callable[[Any], Any], tuple[int, ...]]] = {
    "dropout": (lambda m: m.Dropout(0.3), (4, 6)),
    "dropout1d": (lambda m: m.Dropout1d(0.3), (4, 6, 2)),
    "dropout2d": (lambda m: m.Dropout2d(0.3), (4, 6, 2, 2)),
    "dropout3d": (lambda m: m.Dropout3d(0.3), (4, 6, 2, 2, 2)),
    "alpha-dropout": (lambda m: m.AlphaDropout(0.3), (4, 6)),
    "feature-alpha-dropout": (lambda m: m.FeatureAlphaDropout(0.3), (4, 6, 2)),
    "identity": (lambda m: m.Sequential(m.Linear(6, 4), m.Identity()), (3, 6)),
    "glu": (lambda m: m.GLU(), (3, 6)),
    "prelu": (lambda m: m.PReLU(), (3, 6)),
    "adaptive_avg_pool1d": (lambda m: m.AdaptiveAvgPool1d(3), (2, 4, 9)),
    "adaptive_max_pool3d": (lambda m: m.AdaptiveMaxPool3d(2), (2, 4, 5, 6, 7)),
    "rrelu": (lambda m: m.RReLU(), (3, 6)),
    "softmin": (lambda m: m.Softmin(), (3, 6)),
    "softmax2d": (lambda m: m.Softmax2d(), (2, 3, 4, 5)),
    "local_response_norm": (lambda m: m.LocalResponseNorm(3), (2, 4, 5)),
    "cosine": (lambda m: Beside(m.CosineSimilarity()), (3, 6)),
    "distance": (lambda m: Beside(m.PairwiseDistance()), (3, 6)),
    "ctc": (lambda m: Aligned(m.CTCLoss()), (5, 2, 4)),
    "lstm_cell": (lambda m: First(m.LSTMCell(6, 5)), (3, 6)),
    "gru_cell": (lambda m: m.GRUCell(6, 5), (3, 6)),
    "rnn_cell": (lambda m: m.RNNCell(6, 5), (3, 6)),
    "max_unpool1d": (lambda m: Unpooled(m.MaxUnpool1d(2), F.max_pool1d), (2, 4, 9)),
    "max_unpool2d": (lambda m: Unpooled(m.MaxUnpool2d(2), F.max_pool2d), (2, 4, 7, 5)),
    "max_unpool3d": (lambda m: Unpooled(m.MaxUnpool3d(2), F.max_pool3d), (1, 2, 5, 4, 3)),
    "fractional_max_pool2d": (lambda m: m.FractionalMaxPool2d(2, 3), (2, 4, 7, 5)),
    "fractional_max_pool3d": (lambda m: m.FractionalMaxPool3d(2, 2), (1, 2, 5, 4, 3)),
    "sync_batch_norm": (lambda m: m.SyncBatchNorm(4), (2, 4, 5)),
    "adaptive_softmax": (lambda m: Sorted(m.AdaptiveLogSoftmaxWithLoss(6, 9, [3, 5])), (3, 6)),
    "bilinear": (lambda m: Beside(m.Bilinear(6, 6, 3)), (3, 6)),
    "bag": (lambda m: Bags(m.EmbeddingBag(7, 5)), (3, 6)),
    "bag-max": (lambda m: Bags(m.EmbeddingBag(7, 5, mode="max")), (3, 6)),
    "encoder": (
        lambda m: m.TransformerEncoder(m.TransformerEncoderLayer(12, 3, 10), 2), (5, 2, 12)
    ),
    "decoder": (
        lambda m: Beside(m.TransformerDecoder(m.TransformerDecoderLayer(12, 3, 10), 1)), (5, 2, 12)
    ),
    "transformer": (lambda m: Beside(m.Transformer(12, 3, 1, 1, 10)), (5, 2, 12)),
    "parameters": (lambda m: Scaled(m), (4, 6)),
    "attention": (lambda m: Attention(m.MultiheadAttention(12, 3, batch_first=True)), (2, 5, 12)),
    "attention-keys": (
        lambda m: Attention(m.MultiheadAttention(12, 3, add_bias_kv=True, add_zero_attn=True)),
        (5, 2, 12),
    ),
    "dict": (
        lambda m: Named(m.ModuleDict({"a": m.Linear(6, 6)}), m.ModuleList([m.Tanh()])), (2, 6)
    ),
}  # fmt: skip


class Aligned(nn.Module):
    """A loss of alignments with two targets."""

    def __init__(self, inner: Any):
        self.inner = inner

    def forward(self, x: Any) -> Any:
        return self.inner(x.log_softmax(-1), weft.tensor([[1, 2], [3, 1]]), [5, 4], [2, 1])


class Attention(nn.Module):
    """A module of attention on one operand."""

    def __init__(self, inner: Any):
        self.inner = inner

    def forward(self, x: Any) -> Any:
        return self.inner(x, x, x)[0]


class Bags(nn.Module):
    """Rows of a table in three bags, added to what comes in."""

    def __init__(self, inner: Any):
        self.inner = inner

    def forward(self, x: Any) -> Any:
        ids, starts = weft.tensor([3, 1, 1, 6, 0]), weft.tensor([0, 2, 2])
        return self.inner(ids, starts) + x.sum(-1, keepdims=True)


class Sorted(nn.Module):
    """What a softmax of classes by frequency gives for three of them."""

    def __init__(self, inner: Any):
        self.inner = inner

    def forward(self, x: Any) -> Any:
        return self.inner(x, weft.tensor([0, 4, 8]))[0]


class Beside(nn.Module):
    """A module of two operands on one, and on its halves."""

    def __init__(self, inner: Any):
        self.inner = inner

    def forward(self, x: Any) -> Any:
        return self.inner(x, x * 0.5 + 1.0)


class First(nn.Module):
    """The first result of a module that gives several."""

    def __init__(self, inner: Any):
        self.inner = inner

    def forward(self, x: Any) -> Any:
        return self.inner(x)[0]


class Named(nn.Module):
    """Containers whose members are called by name and in turn."""

    def __init__(self, named: Any, listed: Any):
        self.named, self.listed = named, listed

    def forward(self, x: Any) -> Any:
        for module in self.listed:
            x = module(self.named["a"](x))
        return x


class Scaled(nn.Module):
    """Parameters in a list and a dict."""

    def __init__(self, m: Any):
        self.listed = m.ParameterList([weft.ones(6)])
        self.named = m.ParameterDict({"bias": weft.zeros(6)})

    def forward(self, x: Any) -> Any:
        return x * self.listed[0] + self.named["bias"]


class Unpooled(nn.Module):
    """What a pool chose, back in its place."""

    def __init__(self, inner: Any, pool: Callable[..., Any]):
        self.inner, self.pool = inner, pool

    def forward(self, x: Any) -> Any:
        return self.inner(*self.pool(x, 2, return_indices=True))


def modules() -> dict[str, tuple[Callable[[Any], Any], tuple[np.ndarray, ...]]]:
    """Every module: what makes it from a namespace of modules, and its operands."""
    from test_activations import CASES
    from test_loss_functions import CASES as ELEMENTS, ROWS, grid
    from test_modules import LOSSES, MODULES
    from test_more_modules import MODULES as MORE
    from test_recurrent import KINDS

    made: dict[str, Any] = {name: (make, (x,)) for name, (make, x) in (MODULES | MORE).items()}
    plain = np.linspace(-4, 4, 24, dtype=np.float32).reshape(4, 6)
    made |= {
        f"activation-{name}": (lambda m, make=case.module: make(), (plain,))
        for name, case in CASES.items()
        if case.module is not None
    }
    made |= {name: (make, given) for name, (make, *given) in LOSSES.items()}
    made |= {
        f"elements-{name}": (lambda m, make=case.module: make(), grid(case.operands))
        for name, case in ELEMENTS.items()
    }
    made |= {
        f"rows-{name}": (lambda m, k=kind, o=options: getattr(m, k)(**o), list(map(_narrow, given)))
        for name, (kind, options, given) in ROWS.items()
    }
    made |= {
        name: (lambda m, k=kind, o=options: First(getattr(m, k)(4, 5, **o)), [_steps()])
        for name, (kind, options) in KINDS.items()
    }
    return made | {n: (make, (np.ones(s, np.float32),)) for n, (make, s) in OTHERS.items()}


def _narrow(x: np.ndarray) -> np.ndarray:
    return x.astype(np.int32) if x.dtype == np.int64 else x


def _steps() -> np.ndarray:
    return np.ones((3, 3, 4), np.float32)


def _module(name: str, folder: Path) -> Built:
    make, operands = modules()[name]
    given = [weft.tensor(x) for x in operands]
    module = make(nn).eval()
    yield "forward", traced(lambda: weft.compile(lambda *ts: module(*ts), device="cpu")(*given))
    module, step = make(nn).train(), OPTIMISERS["sgd"]
    yield "train", traced(lambda: _step(module, given, step))


def _step(module: Any, given: list[Any], optimiser: Callable[[Any], Any]) -> None:
    """A step of training on half the sum of the squares of what the module gives."""
    named = [(n, p) for n, p in module.named_parameters() if p.requires_grad]
    opt = optimiser(named) if named else None

    def run(*ts: Any) -> Any:
        floats = [t.detach().requires_grad_() for t in ts[:1] if t.dtype.is_float]
        out = module(*floats, *ts[len(floats) :])
        loss = (out * out).sum() * 0.5
        loss.backward()
        if opt is not None:
            opt.step()
            opt.zero_grad()
        return loss, [t.grad for t in floats]

    weft.compile(run, device="cpu")(*given)


def _net(name: str, folder: Path) -> Built:
    made = nets.build(name, nn, weft.concat, F)
    given = weft.tensor(nets.example(name, 1))
    yield "forward", traced(lambda: weft.compile(lambda x: made(x), device="cpu")(given))


def _optimiser(name: str, folder: Path) -> Built:
    from weft.bench.image_nets import _normed

    layers = [_normed(nn, 3, 8, 3, act=nn.ReLU), nn.Flatten(), nn.Linear(8 * 36, 5)]
    x = np.ones((2, 3, 6, 6), np.float32)
    net = nn.Sequential(*layers).train()
    yield "step", traced(lambda: _step(net, [weft.tensor(x)], OPTIMISERS[name]))


# -- models ---------------------------------------------------------------------------------------

_SMALL = GptSizes(layers=2, width=64, heads=4, context=32, batch=2, vocab=96)


def _gpt(name: str, folder: Path) -> Built:
    dtype = weft.bfloat16 if name == "bfloat16" else weft.float32
    trainer = Trainer(_SMALL, "cpu", dtype, checkpoint=name == "checkpointing")
    yield "step", traced(trainer.step)


def trained(name: str) -> Any:
    """The graph of a step that trains a decoder: "llama.adamw", "llama.bfloat16", "lora", or
    "family.NAME"."""
    kind, _, what = name.partition(".")
    config = config_of(Fields(CONFIGS[what if kind == "family" else "llama"], "config"))
    weights, choose = fresh_weights(config, 5), None
    if kind == "lora":
        roles = adapters.target_roles(config, ["q_proj", "down_proj"])
        weights |= adapters.fresh(config, roles, 4, 1)
        choose = adapters.is_adapter
    options: dict[str, Any] = {"checkpointing": what == "checkpointing"}
    options |= {"compute": "bfloat16"} if what == "bfloat16" else {}
    model = TrainableDecoder(config, weights, 12, choose, **options)
    opt = OPTIMISERS.get(what, OPTIMISERS["adamw"])(list(model.named_parameters()))
    ids = weft.tensor(np.zeros((2, 12), np.int32))

    def step(ids: Any, targets: Any) -> Any:
        loss = model.loss(ids, targets)
        loss.backward()
        opt.step()
        opt.zero_grad()
        return loss

    return traced(lambda: weft.compile(step, device="cpu")(ids, ids))


def _trained(name: str, folder: Path) -> Built:
    with contextlib.suppress(ModelError):  # weft does not train all families
        yield "step", trained(name)


def _training() -> list[str]:
    names = [f"llama.{name}" for name in (*OPTIMISERS, "bfloat16", "checkpointing")]
    return [*names, "lora", *(f"family.{name}" for name in CONFIGS)]


GROUPS = {
    "modules": lambda: table("modules", modules(), _module, alone=True),
    "nets": lambda: table("nets", nets.IMAGES, _net, alone=True),
    "optimisers": lambda: table("optimisers", OPTIMISERS, _optimiser),
    "gpt": lambda: table("gpt", ("float32", "bfloat16", "checkpointing"), _gpt, alone=True),
    "train": lambda: table("train", _training(), _trained, alone=True),
}
