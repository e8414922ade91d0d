"""Reads a GGUF file as a model: its tensors become the weights of a family; packed ones stay
packed.

It undoes two changes of llama.cpp's converter: the reordered rows of queries and keys for an
interleaved rope, and the 1 added to Gemma's norms. If a dtype is requested, packed weights are
widened while loading, some rows at a time, so that memory holds little more than the result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from weft.core.arrays import all_finite
from weft.core.dtypes import DType, bfloat16, float16, float32
from weft.core.errors import ModelError
from weft.core.packed import Packed
from weft.core.versions import stamp
from weft.host import cache as disk
from weft.host.mapped import release
from weft.host.pages import fresh
from weft.importers.gguf import Gguf, GgufTensor, open_gguf
from weft.importers.gguf_blocks import bad_block, dequantize
from weft.importers.packed.gguf import FORMS, outline_of, packed_of
from weft.models.arch.config import DecoderConfig, WeightSpec
from weft.models.arch.family_gguf import GGUF, MORE_TOKENS
from weft.models.arch.weights import Known, Value, Weight, held
from weft.models.text.gguf_tokenizer import read_tokenizer, token_ids
from weft.models.weights.content import FileIdentity
from weft.models.weights.decoder_names import decoder_layout
from weft.models.weights.gguf_config import read_config
from weft.models.weights.gguf_metadata import ROPE_DIVISORS, ROPE_FACTORS, repeated
from weft.models.weights.gguf_sampling import gguf_defaults
from weft.models.weights.source import Source

_TOP = {
    "embed": "token_embd.weight",
    "pos": "position_embd.weight",
    "head": "output.weight",
    "norm.w": "output_norm.weight",
    "norm.b": "output_norm.bias",
    "head.b": "output.bias",
    "layer_embed": "per_layer_token_embd.weight",
    "layer_proj.w": "per_layer_model_proj.weight",
    "layer_proj_norm.w": "per_layer_proj_norm.weight",
}
_LAYER = {
    "attn_norm": "attn_norm", "attn_post": "post_attention_norm",
    "mlp_norm": "ffn_norm", "mlp_post": "post_ffw_norm",
    "q": "attn_q", "k": "attn_k", "v": "attn_v", "qkv": "attn_qkv", "o": "attn_output",
    "q_norm": "attn_q_norm", "k_norm": "attn_k_norm",
    "gate": "ffn_gate", "up": "ffn_up", "down": "ffn_down", "gate_up": "ffn_up",
    "q_a": "attn_q_a", "q_a_norm": "attn_q_a_norm", "q_b": "attn_q_b", "kv_a": "attn_kv_a_mqa",
    "kv_a_norm": "attn_kv_a_norm", "kv_b": "attn_kv_b", "k_b": "attn_k_b", "v_b": "attn_v_b",
    "router": "ffn_gate_inp", "gate_exps": "ffn_gate_exps", "up_exps": "ffn_up_exps",
    "down_exps": "ffn_down_exps", "sinks": "attn_sinks",
    "exps_in": "ffn_latent_down", "exps_out": "ffn_latent_up",
    "gate_up_exps": "ffn_gate_up_exps", "exps_norm": "pre_ffw_norm_2",
    "dense_post": "post_ffw_norm_1", "exps_post": "post_ffw_norm_2",
    "input_gate": "inp_gate", "input_proj": "proj", "input_post": "post_norm",
    "conv_in": "shortconv.in_proj", "conv": "shortconv.conv", "conv_out": "shortconv.out_proj",
    "delta_qkvz": "ssm_in", "delta_qkv": "attn_qkv", "delta_z": "attn_gate",
    "delta_ba": "ssm_ba", "delta_b": "ssm_beta", "delta_a": "ssm_alpha",
    "delta_norm": "ssm_norm", "delta_out": "ssm_out",
    "ssm_in": "ssm_in", "ssm_x": "ssm_x", "ssm_dt": "ssm_dt", "ssm_out": "ssm_out",
    "ssm_norm": "ssm_norm", "ssm_dt_norm": "ssm_dt_norm", "ssm_b_norm": "ssm_b_norm",
    "ssm_c_norm": "ssm_c_norm",
    "alt_router": "altup_router", "alt_norm": "altup_router_norm",
    "alt_predict": "altup_predict_coef", "alt_correct": "altup_correct_coef",
    "laurel_left": "laurel_l", "laurel_right": "laurel_r", "laurel_norm": "laurel_post_norm",
    "shared_by": "ffn_gate_inp_shexp", "shared_gate": "ffn_gate_shexp",
    "shared_up": "ffn_up_shexp", "shared_down": "ffn_down_shexp",
}  # fmt: skip
_STACKED = {"alt_in": "altup_proj.weight", "alt_out": "altup_unembd_proj.weight"}
_WHOLE = {  # names that end in neither weight nor bias
    "scalar": "layer_output_scale.weight", "router_norm": "ffn_gate_inp.scale",
    "decay": "ssm_a", "decay_bias": "ssm_dt.bias", "ssm_skip": "ssm_d",
    "alt_scale": "altup_correct_scale.weight",
    "exps_scale": "ffn_down_exps.scale", "router_bias": "exp_probs_b.bias",
}  # fmt: skip
_XIELU = ".xielu_"  # in roles of weights that the metadata hold
_PLAIN = {"F32": float32, "F16": float16, "BF16": bfloat16}
_NO_WEIGHTS = ("F64", "I8", "I16", "I32", "I64", "Q8_K")
_STEP = 1 << 22  # elements widened at a time
_THREADS = 4  # that check scales


def read(path: Path, dtype: DType | None = None, gguf: Gguf | None = None) -> Source:
    """Opens the model in a GGUF file, whose header may be `gguf`, read before. Floats are unchanged
    (views of the file, if possible). Packed weights stay packed, or are widened to `dtype` if it is
    given. Types without a packed form become float16. Opening and reading raise FileFormatError,
    and ModelError for what is not supported, inconsistent or damaged."""
    gguf = gguf or open_gguf(path)
    config = read_config(gguf)
    layout, tensors = decoder_layout(config).weights, _bound(gguf, config)
    if dtype is None:
        check_packed([t for t in tensors.values() if stays_packed(t)], str(path))
    weights = {r: _weight(r, layout[r], t, config, dtype, str(path)) for r, t in tensors.items()}
    weights |= {r: held(x, "scale") for r, x in _numbers(gguf, config).items()}
    return Source(
        path, config, token_ids(gguf), weights, partial(read_tokenizer, gguf),
        partial(gguf_defaults, gguf, config.vocab),
    )  # fmt: skip


def tensor_name(role: str, family: str) -> str:
    """Returns the name of a weight in files of a family."""
    if role in _TOP:
        name = _TOP[role]
    elif stack := _stack(role):
        name = _STACKED[stack[0]]
    else:
        layer, _, part = role.partition(".")
        part, _, which = part.partition(".")
        name = _WHOLE.get(part) or f"{_LAYER[part]}.{'bias' if which == 'b' else 'weight'}"
        name = f"blk.{layer}.{name}"
    for usual, own in GGUF[family].names.items():
        name = name.replace(usual, own)
    return name


def _stack(role: str) -> tuple[str, int] | None:
    """Returns the stack of matrices that a role is one of, and its number; None outside of one."""
    name, _, number = role.removesuffix(".w").rpartition("_")
    return (name, int(number)) if name in _STACKED else None


def _bound(gguf: Gguf, config: DecoderConfig) -> dict[str, GgufTensor]:
    """Returns role -> tensor, checked for the shapes that the metadata require. Raises ModelError
    for a missing or unknown tensor."""
    arch = gguf.metadata["general.architecture"]
    layout = decoder_layout(config)
    roles = (role for role in (*layout.weights, *layout.spare) if _XIELU not in role)
    known = {tensor_name(role, config.family) for role in roles} | repeated(gguf)
    more = gguf.metadata.get(f"{arch}.{MORE_TOKENS}")
    beyond = tuple(f"blk.{config.layers + i}." for i in range(more or 0))
    for name in gguf.tensors:
        if name.startswith(beyond) and beyond:
            continue
        ropes = (ROPE_DIVISORS, *(ROPE_FACTORS if arch == "phi3" else ())) if config.ropes else ()
        if name not in known and name not in ropes:
            raise ModelError(
                f"{gguf.path}: tensor {name[:80]!r} is not part of a model of this architecture, "
                f"{arch}, with {config.layers} layers"
            )
    out = {}
    for role, spec in layout.weights.items():
        if _XIELU in role:
            continue
        out[role] = told(gguf, tensor_name(role, config.family))
        if stack := _stack(role):
            out[role] = _one_of(gguf, out[role], stack[1])
        usable(gguf, out[role], spec, _fits(out[role].shape, role, spec))
    return out


def _one_of(gguf: Gguf, tensor: GgufTensor, number: int) -> GgufTensor:
    """Returns one matrix of a stack, a view."""
    if len(tensor.shape) != 3 or number >= tensor.shape[0]:
        raise ModelError(f"{gguf.path}: tensor {tensor.name!r} has shape {list(tensor.shape)}; "
                         f"expected a stack of more than {number} matrices")  # fmt: skip
    start = tensor.start + tensor.nbytes // tensor.shape[0] * number
    return replace(tensor, shape=tensor.shape[1:], start=start)


def told(gguf: Gguf, name: str) -> GgufTensor:
    """Returns the tensor called `name`. Raises ModelError if the file lacks it."""
    if name not in gguf.tensors:
        held = ", ".join(list(gguf.tensors)[:3])
        raise ModelError(
            f"{gguf.path}: tensor {name!r} is missing; the file holds {len(gguf.tensors)} "
            f"tensors ({held}, ...)"
        )
    return gguf.tensors[name]


def usable(gguf: Gguf, tensor: GgufTensor, spec: WeightSpec, fits: bool | None = None) -> None:
    """Raises ModelError for a tensor that is not a weight, or does not fit (None: is of another
    shape)."""
    if tensor.kind.name in _NO_WEIGHTS:
        raise ModelError(
            f"{gguf.path}: tensor {tensor.name!r} is {tensor.kind}; expected F32, F16, BF16 or "
            "packed weights"
        )
    if not (_long(tensor.shape) == _long(spec.shape) if fits is None else fits):
        raise ModelError(
            f"{gguf.path}: tensor {tensor.name!r} has shape {list(tensor.shape)}; "
            f"the metadata ask for {list(spec.shape)}"
        )


def _numbers(gguf: Gguf, c: DecoderConfig) -> dict[str, np.ndarray]:
    """Returns the weights that the metadata hold: xIELU's numbers, one for each layer."""
    out: dict[str, np.ndarray] = {}
    for name in ("alpha_p", "alpha_n", "beta", "eps") if c.act == "xielu" else ():
        key = f"xielu.{name}"
        values = np.asarray(gguf.metadata.get(key, ()), np.float32)
        if values.shape != (c.layers,) or not all_finite(values):
            raise ModelError(f"{gguf.path}: {key} holds no number for each of {c.layers} layers")
        out |= {f"{i}{_XIELU}{name}": value.reshape(()) for i, value in enumerate(values)}
    return out


def _fits(shape: tuple[int, ...], role: str, spec: WeightSpec) -> bool:
    """True if a tensor has the shape of a weight. Mamba's decays are turned; norms of Mamba 2 have
    an axis of groups, and the parts of latent attention's matrix one of heads."""
    if role.endswith(".ssm_norm.w"):
        return math.prod(shape) == math.prod(spec.shape)
    if role.endswith((".k_b.w", ".v_b.w")) and len(shape) == 3:
        shape = shape[0] * shape[1], shape[2]
    return _long(shape) == _long(spec.shape[::-1] if spec.kind == "decay" else spec.shape)


def _long(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the shape without axes of 1, which files may leave out."""
    return tuple(d for d in shape if d != 1)


def _weight(
    role: str, spec: WeightSpec, tensor: GgufTensor, c: DecoderConfig, dtype: DType | None,
    where: str,
) -> Weight:  # fmt: skip
    """Returns a weight with the changes that undo the converter's."""
    made = file_weight(spec, tensor, dtype, where)
    if spec.kind == "decay":
        return made.then(partial(_speed, f"{where}: tensor {tensor.name!r}", spec.shape))
    if c.norm_offset and spec.kind == "norm" and ".delta_norm." not in role:
        made = made.then(partial(_less, c.norm_offset))
    heads = {"q": c.heads, "k": c.kv_heads}.get("".join(role.split(".")[1:2]), 0)
    if not heads or not GGUF[c.family].turned:
        return made
    made = made.copied(tensor.file) if tensor.kind.name in _PLAIN else made
    return made.then(partial(_turned_back, heads), alike=True)


def file_weight(spec: WeightSpec, tensor: GgufTensor, dtype: DType | None, where: str) -> Weight:
    """Returns a weight as the file holds it, or widened to `dtype`."""
    known = None
    if dtype is None and stays_packed(tensor):
        known = Known(outline_of(tensor.kind, _matrix(tensor)), tensor.file)
    return Weight(spec, partial(_read, tensor, spec.shape, dtype, where), known=known)


def stays_packed(tensor: GgufTensor) -> bool:
    """Returns True for a tensor that has a packed form here."""
    return len(tensor.shape) > 1 and tensor.kind.name in FORMS


def _matrix(tensor: GgufTensor) -> tuple[int, int]:
    """Returns the shape of a packed matrix, of experts stacked."""
    return math.prod(tensor.shape[:-1]), tensor.shape[-1]


def _read(tensor: GgufTensor, shape: tuple[int, ...], dtype: DType | None, where: str) -> Value:
    """Returns a tensor as the file holds it, or widened."""
    tensor.file.check()  # the file may have changed since it was mapped
    if tensor.kind.name in _PLAIN:
        value = tensor.data.view(_PLAIN[tensor.kind.name].numpy).reshape(tensor.shape)
    elif dtype is None and stays_packed(tensor):
        return packed_of(tensor.kind, tensor.data, _matrix(tensor))
    else:
        value = _widened(tensor, dtype or float16, where)
    return value if len(value.shape) == len(shape) else value.reshape(shape)


def _speed(where: str, shape: tuple[int, ...], value: Value) -> Value:
    """Returns the logarithm of the forgetting rates, in this shape; the file holds the negative
    rates, turned if they have two axes."""
    assert isinstance(value, np.ndarray)
    value = np.ascontiguousarray(value.reshape(shape[::-1]).T)
    with np.errstate(all="ignore"):
        out = np.log(-value.astype(np.float64)).astype(np.float32)
    if not all_finite(out):
        raise ModelError(f"{where} holds what is not below 0")
    return out


def _less(offset: float, value: Value) -> Value:
    """Subtracts a norm's offset; this is exact, because it was added."""
    assert isinstance(value, np.ndarray)
    with np.errstate(invalid="ignore"):  # NaN that signals
        less: np.ndarray = value.astype(np.float32) - np.float32(offset)
    return less


def _turned_back(heads: int, value: Value) -> Value:
    """Reorders the rows of each head from adjacent pairs (first, its partner, second, ...) to
    halves."""
    if isinstance(value, Packed):
        return value._replace(parts={p: halves(v, heads) for p, v in value.parts.items()})
    return halves(value, heads)


def halves(value: np.ndarray, heads: int) -> np.ndarray:
    """Returns a matrix whose rows of each head are in halves, not in adjacent pairs."""
    pairs = value.reshape(heads, -1, 2, *value.shape[1:]).swapaxes(1, 2)
    out = fresh(pairs.shape, value.dtype)
    out[...] = pairs
    release(value)
    return out.reshape(value.shape)


def check_packed(tensors: Sequence[GgufTensor], where: str) -> None:
    """Raises ModelError if a packed tensor is damaged. Files that were checked before, and are
    unchanged, are not read again."""
    files = {id(t.file): FileIdentity.of(t.file.status) for t in tensors}
    identities = sorted(map(tuple, files.values()))
    cache, key = disk.kernels(), f"sound scales {stamp('packed order')} {identities}"
    settled = all(known.settled for known in files.values())
    if settled and cache.get(key) is not None:
        return
    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(partial(_check_scales, where=where), tensors))
    if settled:
        cache.put(key, b"")


def _check_scales(tensor: GgufTensor, where: str) -> None:
    block = bad_block(tensor.kind, tensor.data)
    if block is not None:
        raise ModelError(
            f"{where}: tensor {tensor.name!r}: block {block} has a scale that is NaN or infinite: "
            "damaged"
        )


def _widened(tensor: GgufTensor, dtype: DType, where: str) -> np.ndarray:
    """Returns a packed weight in a float dtype. Raises ModelError if it is damaged or overflows."""
    from weft.tensor.casting import cast_array

    out = fresh(tensor.shape, dtype.numpy)
    data, rows = tensor.data, out.reshape(-1, tensor.shape[-1])
    step = max(1, _STEP // tensor.shape[-1])
    for start in range(0, len(rows), step):
        part = data[start : start + step]
        value = dequantize(tensor.kind, part, (len(part), tensor.shape[-1]))
        rows[start : start + step] = cast_array(value, dtype)
        release(part)
    if not all_finite(out):
        _check_scales(tensor, where)
        raise ModelError(
            f"{where}: tensor {tensor.name!r} overflows {dtype.name}; use bfloat16 or float32"
        )
    return out
