"""Names of PyTorch's that weft.torch lacks, for `weft port`. tests/pytorch/test_porting.py checks
them."""

from __future__ import annotations

_NAMES = """
    apply_ arccosh_ arcsinh_ arctan2_ arctanh_ as_strided_ as_subclass ccol_indices cdouble cfloat
    chalf coalesce col_indices conj_physical_ const_data_ptr crow_indices data_ptr deg2rad_
    dense_dim dequantize digamma_ dim_order eig erfinv_ fix_ gcd_ geqrf get_device grad_dtype
    greater_ greater_equal_ hardshrink hash_tensor heaviside_ i0_ igamma igamma_ igammac igammac_
    int_repr ipu is_coalesced is_conj is_cpu is_distributed is_inference is_ipu is_maia is_meta
    is_mkldnn is_mps is_mtia is_neg is_nested is_pinned is_quantized is_same_size is_set_to
    is_shared is_signed is_sparse is_sparse_csr is_vulkan is_xla is_xpu istft lcm_ less_ less_equal_
    lgamma_ lstsq lu map2_ module_load mtia mvlgamma_ nextafter_ not_equal_ orgqr ormqr output_nr
    pin_memory polygamma_ prelu q_per_channel_axis q_per_channel_scales q_per_channel_zero_points
    q_scale q_zero_point qscheme rad2deg_ record_stream reinforce resize_as resize_as_sparse_
    row_indices sgn_ share_memory_ sinc_ slice_inverse smm sparse_dim sparse_mask sparse_resize_
    sparse_resize_and_clear_ sspaddmm stft storage_offset storage_type symeig to_dense to_mkldnn
    to_padded_tensor to_sparse to_sparse_bsc to_sparse_bsr to_sparse_coo to_sparse_csc to_sparse_csr
    unsafe_split_with_sizes untyped_storage xlogy_ xpu
"""

MISSING_METHODS = frozenset(_NAMES.split())
"""Methods and attributes of torch.Tensor (PyTorch 2.13) whose names say so: `values` and the like
are left out, since other objects have them too."""
