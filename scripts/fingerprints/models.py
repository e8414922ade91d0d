"""Decoders and encoders: every family and variant, their steps by slot and by page, numbers, quant
modes, adapters, and the parts that several machines compute."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
from adapter_kit import adapter

import weft
from fingerprints.sources import DEVICE, Built, Source, table
from weft.conform.models import _BERT, CONFIGS
from weft.conform.packed import random_weight
from weft.core.packed import Packed
from weft.machines import columns
from weft.machines.load import _run
from weft.models.arch import stages
from weft.models.arch.config import DecoderConfig
from weft.models.arch.encoders import ENCODERS
from weft.models.arch.families import DECODERS
from weft.models.arch.family_fields import WRAPPER_FIELDS
from weft.models.arch.inputs import PAGE
from weft.models.run.compiled_runner import CompiledRunner
from weft.models.run.loader import load_uncompiled
from weft.models.run.placed import weight_avals
from weft.models.weights.placement import Placement
from weft.models.weights.random_weights import random_folder
from weft.quantize.packing import Packing

CONTEXT = 64
# families compiled in both narrow dtypes
NARROW = ("llama", "gemma2", "qwen3_moe", "gpt_oss", "qwen3_5", "lfm2")
EVERY = "llama"  # the family compiled in every step, for every target
SCHEMES = (
    "int4", "int4-g64", "int4-channel", "int4-zero", "int5", "int8", "int8-channel", "nf4", "fp8",
    "q4_k", "q5_k", "q6_k",
)  # fmt: skip
CACHES = ("f16", "bf16", "int8")
DIVIDED = ("llama", "qwen3_moe", "gpt2", "qwen3")  # by layers
COLUMNS = ("llama", "qwen3")
# The text_config's model type in families that also see images.
INNER = {
    "mistral3": "ministral3", "gemma3": "gemma3", "gemma4": "gemma4", "gemma4_unified": "gemma4",
    "qwen3_5": "qwen3_5", "qwen3_5_moe": "qwen3_5_moe", "llama4": "llama4",
    "gemma3n": "gemma3n", "llava": "llama", "llava_next": "llama", "idefics3": "llama",
    "smolvlm": "llama",
    "qwen2_vl": "qwen2_vl", "qwen2_5_vl": "qwen2_5_vl", "qwen3_vl": "qwen3_vl",
    "internvl": "qwen2", "llava_onevision": "qwen2", "llava_next_video": "llama",
    "video_llava": "llama", "vipllava": "llama",
}  # fmt: skip


def config(family: str, **more: Any) -> dict[str, Any]:
    """The family's row of CONFIGS, wide enough for vectors that do not divide it."""
    made = {**CONFIGS[family], "dtype": "float32", "hidden_size": 96}
    return made | ({"n_embd": 96} if family == "gpt2" else {}) | more


def loaded(folder: Path, given: Mapping[str, Any], **options: Any) -> Any:
    """The model of random weights, for no machine's device."""
    made = random_folder(folder / "model", given, 3, 0.2)
    return weft.load(made, device=DEVICE, context=CONTEXT, **options)


def steps(model: Any, *kinds: str) -> Built:
    """Graphs of some steps."""
    runner = model.new_runner(5, 5 * CONTEXT // PAGE)
    for kind in kinds:
        yield kind, runner.graph(kind)


ALL = ("prefill", "score", "decode", "rows16", "rows64")
SOME = ("prefill", "decode", "rows16")


def families() -> Iterator[Source]:
    """Every row of CONFIGS; wrappers; narrow dtypes."""
    for name in CONFIGS:
        build = partial(_family, name)
        yield Source("families", name, build, every=name == EVERY)
    for name in NARROW:
        for dtype in ("float16", "bfloat16"):
            build = partial(_narrow, name, dtype)
            yield Source("families", f"{name}.{dtype}", build, alone=True)
    for name in WRAPPER_FIELDS:
        yield Source("families", f"wrapped-{name}", partial(_wrapped, name), alone=True)


def _family(name: str, folder: Path) -> Built:
    return steps(loaded(folder, config(name)), *(ALL if name == EVERY else SOME))


def _narrow(name: str, dtype: str, folder: Path) -> Built:
    return steps(loaded(folder, config(name, dtype=dtype)), *SOME)


def _wrapped(kind: str, folder: Path) -> Built:
    inner = {**CONFIGS[INNER[kind]], "dtype": "float32"}
    types = [f"{kind}_text", inner["model_type"]]
    inner["model_type"] = next(t for t in types if t in DECODERS)
    outer = {"model_type": kind, "text_config": inner, "dtype": "float32"}
    return steps(loaded(folder, outer), "decode")


def zoo() -> Iterator[Source]:
    """The variants that transformers writes for the tests: biases, tied heads, windows, ropes."""
    from model_zoo import DECODERS as FIRST, FAMILIES

    yield from table("zoo", FIRST | FAMILIES, _zoo, alone=True)


def _zoo(name: str, folder: Path) -> Built:
    from model_zoo import write_model

    write_model(name, folder / "model")
    model = weft.load(folder / "model", device=DEVICE, context=CONTEXT)
    return steps(model, "prefill", "rows16")


def _quant(scheme: str, folder: Path) -> Built:
    given = config("llama", hidden_size=256, intermediate_size=256, num_hidden_layers=1)
    for inputs, kind in (("float32", "prefill"), ("int8", "rows16")):
        with patch.object(Packing, "packed", unsearched):
            model = loaded(folder / inputs, given, quant=scheme, act_dtype=inputs)
        yield from steps(model, kind)


def unsearched(self: Packing, role: str, weight: np.ndarray, h: Any = None) -> Packed:
    """Weights of the form that `Packing.packed` gives, without the search for their scales, which
    says nothing of a graph."""
    target = self.target(role, weight)
    assert target is not None
    form, (n, k) = target[0], self.matrix(role, weight).shape
    return random_weight(form, n, k, np.random.default_rng(0))


def _cache(dtype: str, folder: Path) -> Built:
    for family in ("llama", "gemma2"):
        model = loaded(folder / family, config(family), cache=dtype)
        for kind, graph in steps(model, *SOME):
            yield f"{family}.{kind}", graph


TARGETS: dict[str, tuple[tuple[str, ...], ...]] = {
    "llama": (("q_proj", "v_proj"), ("o_proj", "gate_proj", "down_proj")),
    "gpt2": (("c_attn",), ("c_proj", "c_fc")),
    "qwen3_moe": (("q_proj",), ("o_proj", "gate")),
}


def _adapters(family: str, folder: Path) -> Built:
    base = random_folder(folder / "base", config(family), 3, 0.2)
    first, second = TARGETS[family]
    named = {
        "a": adapter(folder / "a", base, first, 3, 1),
        "b": adapter(folder / "b", base, second, 20, 2, stabilized=True),
    }
    for count, label in ((1, "one"), (2, "two")):
        given = dict(list(named.items())[:count])
        model = weft.load(base, device=DEVICE, context=CONTEXT, adapters=given)
        for kind, graph in steps(model, *SOME):
            yield f"{label}.{kind}", graph
    yield from steps(weft.load(named["a"], device=DEVICE, context=CONTEXT), "decode")


# -- encoders -------------------------------------------------------------------------------------


def encoder_config(kind: str) -> dict[str, Any]:
    if kind == "distilbert":
        renamed = {"hidden_size": "dim", "intermediate_size": "hidden_dim",
                   "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads"}  # fmt: skip
        return {**{renamed.get(k, k): v for k, v in _BERT.items()}, "model_type": kind}
    if kind.endswith("t5"):
        renamed = {
            "hidden_size": "d_model", "intermediate_size": "d_ff",
            "num_hidden_layers": "num_layers", "num_attention_heads": "num_heads",
        }  # fmt: skip
        sizes = {renamed[k]: v for k, v in _BERT.items() if k in renamed}
        return {**sizes, "vocab_size": _BERT["vocab_size"], "d_kv": 8, "model_type": kind}
    more: dict[str, Any] = {} if kind == "bert" else {"type_vocab_size": 1, "pad_token_id": 1}
    if kind.startswith("deberta"):
        more |= {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}
    if kind == "deberta-v2":
        more["position_buckets"] = 8
    if kind == "jina_v2":
        more = {"position_embedding_type": "alibi", "feed_forward_type": "geglu"}
        kind = "bert"
    return {**_BERT, **more, "model_type": kind}


def _encoder(name: str, folder: Path) -> Built:
    from weft.models.arch.encoder import encoder_graph

    kind, _, dtype = name.partition(".")
    made = loaded(folder, {**encoder_config(kind), "dtype": dtype or "float32"})
    for batch, length in ((1, 24), (5, 32)):
        avals = weight_avals(made.weights)
        yield f"{batch}x{length}", encoder_graph(made.config, avals, batch, length)


# -- several machines -----------------------------------------------------------------------------


def _divided(family: str, folder: Path) -> Built:
    made = random_folder(folder / "model", config(family), 3, 0.2)

    def part(rank: int, split: list[int] | None) -> Any:
        def cut(c: DecoderConfig) -> DecoderConfig:
            return _run(c, rank, 2, split)

        return load_uncompiled(made, Placement(DEVICE, context=CONTEXT, part=cut))

    for rank in (0, 1):
        model = part(rank, [1, 1])
        whole = model.config
        parts = [stages.entry(whole), stages.output(whole)] if rank == 0 else [whole]
        for i, each in enumerate(parts):
            runner = CompiledRunner(each, model.placed, CONTEXT, 5, 5)
            for kind in ("prefill", "decode"):
                yield f"layers{rank}.{i}.{kind}", runner.graph(kind)
    if family in COLUMNS:
        model = part(0, None)
        own: Any = SimpleNamespace(size=2, rank=0)
        runner = columns.own_runner(own, model, 5, 5)
        for k, segment in enumerate(runner._graphs("decode")):
            yield f"columns.{k}", segment.graph


GROUPS = {
    "families": families,
    "zoo": zoo,
    "quant": lambda: table("quant", SCHEMES, _quant, alone=True),
    "cache": lambda: table("cache", CACHES, _cache, alone=True),
    "adapters": lambda: table("adapters", TARGETS, _adapters, alone=True),
    "encoders": lambda: table("encoders", [*ENCODERS, "jina_v2", "bert.bfloat16"], _encoder),
    "ranks": lambda: table("ranks", DIVIDED, _divided, alone=True),
}
