"""A checkpoint with packed weights under the names that its plain twin has.

A layer's own tensors determine its packing: which there are, their dtypes and shapes. The config
(quantization_config, in old GPTQ folders quantize_config.json, MLX's quantization) names the method
and must describe the layers that are there; its regular expressions are not run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from weft.core.errors import ModelError
from weft.host.mapped import mapped_files, release
from weft.importers.hf_config import MAX_CONFIG, Fields, read_object
from weft.importers.packed import compressed, gptq, others
from weft.importers.packed.layer import LayerTensors, Read
from weft.importers.packed.said import check_keys
from weft.importers.safetensors import Checkpoint, TensorInfo

Reader = Callable[[LayerTensors, str], Read]  # (its tensors, its name)
_OLD = "quantize_config.json"


@dataclass(frozen=True)
class Method:
    """The rules for recognising and reading packed layers. A layer has one of the tensors `marks`
    and may have `others`; `joint` joins its own name and theirs; its matrix has its name and
    `suffix`."""

    name: str
    marks: tuple[str, ...]
    others: tuple[str, ...]
    read: Reader
    joint: str = "."
    suffix: str = ".weight"


def method_of(config: Fields, folder: Path) -> Method:
    """The packing method of the model in `folder`, whose config names it. Raises ModelError for a
    method that weft does not read, naming those that it does."""
    sections = map(config.section, ("quantization_config", "quantization", "compression_config"))
    found = next((section for section in sections if section is not None), None)
    if found is None:
        path = folder / _OLD
        found = Fields({"quant_method": "gptq", **read_object(path, MAX_CONFIG)}, str(path))
    default = "mlx" if config.data.get("quantization") else ""
    name = found.text("quant_method", default)
    if name not in _METHODS:
        raise refused(found, f"quant_method {name[:40]!r}")
    check_keys(found, name)
    return _METHODS[name](found)


def refused(config: Fields, what: str) -> ModelError:
    return ModelError(f"{config.where}: {what} is not supported; read are {READ}")


READ = (
    "gptq (2, 3, 4 and 8 bits), awq (gemm), compressed-tensors (pack-quantized, int-quantized, "
    "float-quantized, naive-quantized, mxfp4-pack-quantized, nvfp4-pack-quantized), fp8, "
    "mxfp4, bitsandbytes (nf4, fp4, int8), MLX (affine, mxfp4), GGUF"
)


def _gptq(c: Fields) -> Method:
    version = c.text("checkpoint_format", None) or c.text("format", "gptq")
    if version not in ("gptq", "gptq_v2"):
        raise refused(c, f"GPTQ's checkpoint_format {version[:40]!r}")
    if c.text("pack_dtype", "int32") not in ("int32", "torch.int32"):
        raise refused(c, f"GPTQ's pack_dtype {c.data['pack_dtype']!r:.40}")
    bits, group = c.integer("bits", 2, 8), c.integer("group_size", -1, 1 << 20, 128)
    free = bool(c.data.get("dynamic"))  # some layers differ
    ordered = c.flag("desc_act", False) and group > 0

    def read(layer: LayerTensors, name: str) -> Read:
        if ordered and not free and "g_idx" not in layer:
            layer.fail("the config says desc_act, but there is no g_idx, which says the order")
        found = gptq.gptq(layer, version == "gptq")
        return found if free else _as_said(layer, found, bits, group)

    return Method("gptq", ("qweight",), ("qzeros", "scales", "g_idx"), read)


def _awq(c: Fields) -> Method:
    version = c.text("version", "gemm").lower()
    if version != "gemm" or c.integer("bits", 1, 64, 4) != 4:
        raise refused(c, f"AWQ's version {version[:40]!r} of {c.data.get('bits', 4)!r:.20} bits")
    group = c.integer("group_size", -1, 1 << 20, 128)
    names = ("qzeros", "scales")
    return Method(
        "awq", ("qweight",), names, lambda layer, _: _as_said(layer, gptq.awq(layer), 4, group)
    )


def _as_said(layer: LayerTensors, read: Read, bits: int, group: int) -> Read:
    """Bits and group, -1 for a whole row, must be those of the config."""
    if read.packed is not None:
        form, k = read.packed.form, read.packed.shape[1]
        if form.bits != bits or form.group != (group if group > 0 else k):
            layer.fail(
                f"the tensors are {form.bits} bits in groups of {form.group}; the config says "
                f"bits {bits}, group_size {group}"
            )
    return read


_ORDERS = ("group", "dynamic", "weight", "static")
_FORMATS = (
    "pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "mixed-precision",
    "mxfp4-pack-quantized", "nvfp4-pack-quantized", "dense",
)  # fmt: skip


def _compressed(c: Fields) -> Method:
    groups = c.section("config_groups")
    data = groups.data if groups else {}
    sections = [
        s for n in data if isinstance(data[n], dict) and groups and (s := groups.section(n))
    ]
    for part in (c, *sections):
        name = part.text("format", "dense")
        if name not in _FORMATS:
            raise refused(part, f"compressed-tensors' format {name[:40]!r}")
    schemes = [w for s in sections if (w := s.section("weights"))]
    for section in sections:
        check_keys(section, "scheme")
    for weights in schemes:
        check_keys(weights, "weights")
    preset = any(isinstance(v, list) for v in data.values())  # {"W4A16": [targets]}
    known = set() if preset else {_scheme(w) for w in schemes}
    blocks = {b for w in schemes if (b := _block(w, "block_structure"))}
    if len(blocks) > 1:
        raise refused(c, f"compressed-tensors with blocks of {len(blocks)} sizes")
    block = next(iter(blocks), None)

    def read(layer: LayerTensors, name: str) -> Read:
        if "weight_packed" not in layer:
            found = compressed.eight_bits(layer, block, "weight_scale")
        elif layer.tensors["weight_packed"].dtype == np.uint8:
            found = compressed.fp4(layer)
        else:
            found = compressed.pack_quantized(layer)
        if known and found.packed is not None:
            form, k = found.packed.form, found.packed.shape[1]
            kind = "int" if form.values == "int" else "float"
            group = 0 if block is not None or form.group == k else form.group
            if not known & {(form.bits, kind, group), (form.bits, kind, form.group)}:
                said = "; ".join(f"{b} bits, {t}, group_size {g}" for b, t, g in sorted(known))
                layer.fail(
                    f"the tensors are {form.bits} bits, {kind}, group_size {form.group}; the "
                    f"config says {said}"
                )
            like = [w for w in schemes if _scheme(w) in ((form.bits, kind, group),
                    (form.bits, kind, form.group))]  # fmt: skip
            _check_zeros(layer, like)
        return found

    names = (
        "weight", "weight_scale", "weight_zero_point", "weight_shape", "weight_g_idx",
        "weight_global_scale", "input_scale", "input_zero_point", "input_global_scale",
        "output_scale", "output_zero_point",
    )  # fmt: skip
    return Method("compressed-tensors", ("weight_packed", "weight_scale"), names, read)


def _scheme(weights: Fields) -> tuple[int, str, int]:
    """(bits, type, group) of layers; group 0 where a scale is a row's, a matrix's or a block's."""
    bits, kind = weights.integer("num_bits", 1, 64), weights.text("type", "int")
    return bits, kind, max(0, weights.integer("group_size", -1, 1 << 20, 0))


def _check_zeros(layer: LayerTensors, schemes: list[Fields]) -> None:
    """Raises ModelError if all possible schemes of a layer require tensors that it lacks, or
    exclude one that it has."""
    kept = {w.flag("symmetric", None) for w in schemes}
    zeros = layer.tensors.get("weight_zero_point")
    if kept == {False} and zeros is None:
        layer.fail("the config says symmetric: false, but there are no zero points")
    if kept == {True} and zeros is not None and zeros.astype(bool).any():
        layer.fail("the config says symmetric: true, but there are zero points")
    index = layer.tensors.get("weight_g_idx")
    if {_ordered(w) for w in schemes} == {True} and (index is None or (index == -1).all()):
        layer.fail('the config says actorder: "group", but there is no weight_g_idx')


def _ordered(weights: Fields) -> bool:
    """True if columns are in groups by another order than their own, which a tensor must say."""
    value = weights.data.get("actorder")
    if value is None or isinstance(value, bool):
        return bool(value)
    return bool(weights.text("actorder", choices=_ORDERS) in ("group", "dynamic"))


def _block(config: Fields, name: str) -> tuple[int, int] | None:
    """Rows and columns of a block, a list of two."""
    sizes = config.integers(name, 1, 1 << 20)
    if len(sizes) not in (0, 2):
        raise ModelError(f"{config.where}: {name} is {list(sizes)}; expected rows and columns")
    return (sizes[0], sizes[1]) if sizes else None


def _fp8(c: Fields) -> Method:
    block = _block(c, "weight_block_size")

    def read(layer: LayerTensors, name: str) -> Read:
        scale = "weight_scale_inv" if "weight_scale_inv" in layer else "weight_scale"
        return compressed.eight_bits(layer, block, scale)

    names = ("weight", "activation_scale", "input_scale")
    return Method("fp8", ("weight_scale_inv", "weight_scale"), names, read)


def _mxfp4(c: Fields) -> Method:
    return Method(
        "mxfp4", ("blocks",), ("scales",), lambda layer, _: compressed.mxfp4_experts(layer), "_", ""
    )


def _bitsandbytes(c: Fields) -> Method:
    state = "weight.quant_state.bitsandbytes__"
    names = (
        "weight", "weight.quant_map", "weight.nested_absmax", "weight.nested_quant_map",
        state + "nf4", state + "fp4", "weight_format",
    )  # fmt: skip

    def read(layer: LayerTensors, name: str) -> Read:
        return others.int8(layer) if "SCB" in layer else others.four_bits(layer)

    return Method("bitsandbytes", ("weight.absmax", "SCB"), names, read)


def _mlx(c: Fields) -> Method:
    """MLX's method; the settings of one layer are under its name."""

    def read(layer: LayerTensors, name: str) -> Read:
        own = c.data.get(name)
        at = c
        if isinstance(own, dict):
            check_keys(Fields(own, f"{c.where}: {name}"), "mlx")
            at = Fields({**c.data, **own}, f"{c.where}: {name}")
        mode = at.text("mode", "affine")
        if mode not in ("affine", "mxfp4") or (mode == "affine") != ("biases" in layer):
            raise refused(at, f"MLX's mode {mode[:40]!r} of layer {name}")
        bits, group = at.integer("bits", 2, 8, 4), at.integer("group_size", 16, 1 << 12, 64)
        return _as_said(layer, others.mlx(layer, group), bits, group)

    return Method("mlx", ("scales",), ("weight", "biases"), read)


_METHODS: dict[str, Callable[[Fields], Method]] = {
    "gptq": _gptq,
    "awq": _awq,
    "compressed-tensors": _compressed,
    "fp8": _fp8,
    "mxfp4": _mxfp4,
    "bitsandbytes": _bitsandbytes,
    "mlx": _mlx,
}


class PackedCheckpoint:
    """The weights of a checkpoint by the names of its plain twin. Raises ModelError where layers
    are both packed and plain, and where none is packed."""

    def __init__(self, checkpoint: Checkpoint, method: Method) -> None:
        self.where = checkpoint.where
        self._checkpoint, self._method = checkpoint, method
        self._layers = _layers(checkpoint, method)
        taken = {t for tensors in self._layers.values() for t in tensors.values()}
        self._plain = [n for n in checkpoint if n not in taken]
        self.packed = frozenset(name + method.suffix for name in self._layers)
        both = sorted(self.packed & set(self._plain))
        if both:
            raise ModelError(f"{self.where}: {both[0][:200]!r} is there packed and plain")
        if not self._layers:
            raise ModelError(
                f"{self.where}: the config says the weights are {method.name}, but no layer has "
                f"a tensor {' or '.join(repr(m) for m in method.marks)}"
            )

    def __iter__(self) -> Iterator[str]:
        yield from self._plain
        yield from sorted(self.packed)

    def __len__(self) -> int:
        return len(self._plain) + len(self.packed)

    def __contains__(self, name: str) -> bool:
        return name in self.packed or name in self._checkpoint

    def info(self, name: str) -> TensorInfo:
        """The info of a plain tensor."""
        return self._checkpoint.info(name)

    def plain(self, name: str) -> np.ndarray:
        return self._checkpoint[name]

    def read(self, name: str) -> Read:
        """The weights of a layer, by the name of its matrix. Raises ModelError if its tensors do
        not make one, or not the one that the config describes."""
        tensors = {rest: self._checkpoint[t] for rest, t in self._tensors(name).items()}
        for file in mapped_files(tensors.values()):
            file.check()  # The file may have changed since it was mapped.
        layer = name.removesuffix(self._method.suffix)
        return self._method.read(
            LayerTensors(f"{self.where}: layer {layer[:200]!r}", tensors), layer
        )

    def release(self, name: str) -> None:
        """Gives the memory of a packed layer's part of the file back."""
        for tensor in self._tensors(name).values():
            release(self._checkpoint[tensor])

    def _tensors(self, name: str) -> dict[str, str]:
        return self._layers[name.removesuffix(self._method.suffix)]


def _layers(checkpoint: Checkpoint, method: Method) -> dict[str, dict[str, str]]:
    """Layer -> rest of the name -> name, for the tensors of every layer that has a mark."""
    found: dict[str, dict[str, str]] = {}
    for mark in method.marks:
        for name in checkpoint:
            if name.endswith(method.joint + mark):
                found[name[: -len(method.joint + mark)]] = {}
    for layer, tensors in found.items():
        for rest in (*method.marks, *method.others):
            if (name := layer + method.joint + rest) in checkpoint:
                tensors[rest] = name
    return found
