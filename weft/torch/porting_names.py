"""Names of PyTorch's that weft.torch lacks, for `weft port`. tests/pytorch/test_porting.py checks
them."""

from __future__ import annotations

_NAMES = """
    as_strided_ as_subclass ccol_indices cdouble cfloat chalf coalesce col_indices
    const_data_ptr crow_indices data_ptr dense_dim dequantize dim_order eig geqrf grad_dtype
    hash_tensor igamma igamma_ igammac igammac_ int_repr ipu is_coalesced is_conj
    is_distributed is_inference is_ipu is_maia is_mkldnn is_mtia is_neg is_set_to is_vulkan
    is_xla istft lstsq lu map2_ module_load mtia orgqr ormqr output_nr q_per_channel_axis
    q_per_channel_scales q_per_channel_zero_points q_scale q_zero_point qscheme reinforce
    resize_as resize_as_sparse_ row_indices share_memory_ slice_inverse smm sparse_dim
    sparse_mask sparse_resize_ sparse_resize_and_clear_ sspaddmm stft storage_offset
    storage_type symeig to_mkldnn to_padded_tensor to_sparse to_sparse_bsc to_sparse_bsr
    to_sparse_coo to_sparse_csc to_sparse_csr unsafe_split_with_sizes untyped_storage xpu
"""

MISSING_METHODS = frozenset(_NAMES.split())
"""Methods and attributes of torch.Tensor (PyTorch 2.13) whose names say so: `values` and the like
are left out, since other objects have them too."""
