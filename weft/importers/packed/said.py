"""The keys of a quantization_config: those that weft reads, those that change nothing, those it
rejects.

A layer's tensors say if it is packed, and how. Keys that only repeat this are inert. So are keys
about activations, which weft computes in floats, and about kernels and calibration. weft names a
key that is in no list on stderr.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.core.errors import ModelError
from weft.core.notices import say_unknown
from weft.core.text import shown
from weft.importers.hf_config import Fields

_READ: Mapping[str, str] = {
    "gptq": "bits group_size checkpoint_format format pack_dtype dynamic desc_act",
    "awq": "bits group_size version",
    "compressed-tensors": "config_groups format",
    "scheme": "weights format",
    "weights": "num_bits type group_size block_structure symmetric actorder",
    "fp8": "weight_block_size",
    "mxfp4": "",
    "bitsandbytes": "",
    "mlx": "group_size bits mode",
}
_INERT: Mapping[str, str] = {
    "gptq": """
        sym damp_percent damp_auto_increment static_groups true_sequential lm_head meta tokenizer
        model_name_or_path model_file_base_name dataset backend model_seqlen version
        block_name_to_quantize module_name_preceding_first_block modules_in_block_to_quantize
        batch_size pad_token_id max_input_length cache_block_outputs exllama_config use_exllama
        disable_exllama use_cuda_fp16 act_group_aware mse device parallel_packing quantizer
        modules_to_not_convert""",
    "awq": """
        zero_point backend do_fuse fuse_max_seq_len modules_to_fuse modules_to_not_convert
        exllama_config""",
    "compressed-tensors": """
        ignore quantization_status global_compression_ratio version kv_cache_scheme run_compressed
        dequantize use_optimized_inference""",
    "scheme": "targets input_activations output_activations",
    "weights": "strategy scale_dtype zp_dtype observer observer_kwargs",
    "fp8": """
        activation_scheme modules_to_not_convert modules_to_convert ignored_layers kv_cache_scheme
        scale_fmt dequantize""",
    "mxfp4": "modules_to_not_convert dequantize",
    "bitsandbytes": """
        load_in_4bit load_in_8bit _load_in_4bit _load_in_8bit bnb_4bit_compute_dtype
        bnb_4bit_quant_type bnb_4bit_use_double_quant bnb_4bit_quant_storage llm_int8_threshold
        llm_int8_skip_modules llm_int8_enable_fp32_cpu_offload llm_int8_has_fp16_weight""",
    "mlx": "",
}
_NOTHING: tuple[Any, ...] = (False, {}, [], "")
# Keys that change results in a way weft does not compute, and their values without effect.
_REFUSED: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "gptq": {"is_marlin_format": _NOTHING, "rotation": _NOTHING, "adapter": _NOTHING},
    "awq": {},
    "compressed-tensors": {
        "transform_config": (*_NOTHING, {"config_groups": {}}),
        "sparsity_config": _NOTHING,
        "moe_sparsity_config": _NOTHING,
    },
    "weights": {"dynamic": _NOTHING},
    "fp8": {"fmt": ("e4m3", "float8_e4m3fn"), "expert_dtype": (*_NOTHING, "fp8")},
}


def check_keys(config: Fields, method: str) -> None:
    """Raises ModelError for a key that asks for what weft does not compute; names unknown ones."""
    refused = _REFUSED.get(method, {})
    for name, plain in refused.items():
        value = config.data.get(name)
        dense = isinstance(value, dict) and value.get("format") == "dense"
        if value is None or value in plain or (name == "sparsity_config" and dense):
            continue
        raise ModelError(
            f"{config.where}: {name} = {shown(value)} is not supported: without it the weights "
            "give other numbers"
        )
    data = config.data
    if method == "mlx":  # a layer's settings are under its name; false: it is not packed
        data = {k: v for k, v in data.items() if not isinstance(v, dict | bool)}
    known = (_READ[method].split(), _INERT[method].split(), refused, ("quant_method",))
    say_unknown(config.where, data, *known)
