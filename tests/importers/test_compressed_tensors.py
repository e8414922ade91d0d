"""What the compressed-tensors package writes is read as it reads it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from weft.core.packed import dequantized
from weft.importers.hf_config import Fields
from weft.importers.packed.checkpoint import Method, method_of
from weft.importers.packed.layer import LayerTensors

pytest.importorskip("compressed_tensors", reason="compressed-tensors, of the test extra")

SCHEMES: dict[str, tuple[str, dict[str, Any]]] = {  # format, weights
    "w4a16": ("pack-quantized", {"num_bits": 4, "strategy": "group", "group_size": 32}),
    "w4a16 asym": (
        "pack-quantized",
        {"num_bits": 4, "strategy": "group", "group_size": 32, "symmetric": False},
    ),
    "w4 channel": ("pack-quantized", {"num_bits": 4, "strategy": "channel"}),
    "w8a16": ("pack-quantized", {"num_bits": 8, "strategy": "group", "group_size": 64}),
    "w3": ("pack-quantized", {"num_bits": 3, "strategy": "group", "group_size": 32}),
    "w6 asym": (
        "pack-quantized",
        {"num_bits": 6, "strategy": "group", "group_size": 32, "symmetric": False},
    ),
    "w8a8": ("int-quantized", {"num_bits": 8, "strategy": "channel"}),
    "w8a8 asym": ("int-quantized", {"num_bits": 8, "strategy": "channel", "symmetric": False}),
    "w8 tensor": ("int-quantized", {"num_bits": 8, "strategy": "tensor"}),
    "fp8": ("float-quantized", {"num_bits": 8, "type": "float", "strategy": "channel"}),
    "fp8 tensor": ("float-quantized", {"num_bits": 8, "type": "float", "strategy": "tensor"}),
    "fp8 block": (
        "float-quantized",
        {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [32, 64]},
    ),
    "mxfp4": (
        "mxfp4-pack-quantized",
        {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32,
         "scale_dtype": "torch.uint8"},
    ),
    "nvfp4": (
        "nvfp4-pack-quantized",
        {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16,
         "scale_dtype": "torch.float8_e4m3fn"},
    ),
}  # fmt: skip


def numpy_of(value: torch.Tensor) -> np.ndarray:
    import ml_dtypes

    narrow = {torch.bfloat16: (torch.int16, ml_dtypes.bfloat16),
              torch.float8_e4m3fn: (torch.int8, ml_dtypes.float8_e4m3fn)}  # fmt: skip
    if value.dtype in narrow:
        like, dtype = narrow[value.dtype]
        return value.view(like).numpy().view(dtype)
    return value.numpy()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", SCHEMES)
def test_layers_of_the_package(name: str, dtype: torch.dtype, tmp_path: Any) -> None:
    """The package multiplies in the dtype of the scales: the same bits where that is float32."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    format, given = SCHEMES[name]
    args = QuantizationArgs(**given)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    torch.manual_seed(0)
    n, k = 64, 128
    weight = (torch.randn(n, k) / 8).to(dtype)
    height, width = {
        "group": (1, args.group_size), "tensor_group": (1, args.group_size), "channel": (1, k),
        "tensor": (n, k), "block": tuple(args.block_structure or (1, 1)),
    }[given["strategy"]]  # fmt: skip
    blocks = weight.reshape(n // height, height, k // width, width)
    least, most = blocks.amin(dim=(1, 3)), blocks.amax(dim=(1, 3))
    state = {"weight": weight}
    top = None
    if given["strategy"] == "tensor_group":
        top = generate_gparam(weight.min(), weight.max()).reshape(1)
        state["weight_global_scale"] = top
    scale, zero = calculate_qparams(least, most, args, global_scale=top)
    state["weight_scale"] = scale.to(dtype) if scale.dtype.itemsize > 1 else scale
    if given["strategy"] == "tensor":
        state["weight_scale"], zero = state["weight_scale"].reshape(1), zero.reshape(1)
    if not given.get("symmetric", True):
        state["weight_zero_point"] = zero
    compressor = BaseCompressor.get_value_from_registry(format)
    packed = compressor.compress(state, scheme)
    wanted = numpy_of(compressor.decompress(packed, scheme)["weight"].float())
    groups = {"group_0": {"targets": ["Linear"], "weights": args.model_dump(mode="json")}}
    config = {"quant_method": "compressed-tensors", "format": format, "config_groups": groups}
    method: Method = method_of(Fields({"quantization_config": config}, "c"), tmp_path)
    found = method.read(LayerTensors("l", {p: numpy_of(v) for p, v in packed.items()}), "l")
    assert found.packed is not None and found.order is None
    got = dequantized(*found.packed)
    if dtype == torch.float32 and name != "nvfp4":  # of which the package makes bfloat16
        np.testing.assert_array_equal(got, wanted)
    np.testing.assert_allclose(got, wanted, rtol=2**-7)
    assert np.abs(got - weight.float().numpy()).max() < 0.2
