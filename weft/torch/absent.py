"""Names of PyTorch's that weft.torch lacks, with reasons, for errors and for `weft port`."""

from __future__ import annotations

import fnmatch
import functools
import re
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from weft.core import missing
from weft.torch.lacking import PARTS

# parts of PyTorch beside those of torch/lacking, which do not import
_PARTS: Mapping[str, str] = {
    **PARTS,
    "torch.compiler": "torch.compile has no switches here",
    "torch.nested": "pad the sequences and give lengths or a mask",
    "torch.hub": "weft.load takes names of models",
    "torch.library": "weft.kernel is for kernels of one's own",
    "torch.overrides": "subclasses of Tensor intercept no calls here",
}
# patterns of names, and what to use; the first that fits counts
_REASONS: tuple[tuple[str, str], ...] = (
    (
        "weft has no complex numbers",
        "cfloat cdouble chalf complex* polar imag view_as_complex* view_as_real* stft istft eig "
        "linalg.eig linalg.eigvals is_conj is_neg *Complex*",
    ),
    (
        "weft has no sparse tensors",
        "sparse_* *_indices *_indices_copy indices indices_copy values values_copy spmm hspmm "
        "hsmm smm dsmm saddmm sspaddmm to_sparse* coalesce is_coalesced dense_dim "
        "resize_as_sparse_ SparseAdam sparse jagged to_padded_tensor "
        "functional.sparse_support_notes to_mkldnn cusparselt",
    ),
    (
        "weft has no quantised tensors; weft.quantize packs weights",
        "q_* qint* quint* qscheme quantiz* fake_quantize* fused_moving_avg* int_repr dequantize "
        "*empty_quantized fbgemm_* per_*_affine* per_*_symmetric choose_qparams* qat intrinsic "
        "QInt* QUInt* scaled_mm scaled_grouped_mm ScalingType SwizzleType",
    ),
    (
        "weft has no dtype of this name; float16, bfloat16 and int8 are the narrowest",
        "float8_* float4_* bits* int1 int2 int3 int4 int5 int6 int7 uint1 uint2 uint3 uint4 "
        "uint5 uint6 uint7 bit",
    ),
    (
        "weft has no storages; numpy() gives the memory",
        "*Storage *storage *storage_offset storage_type data_ptr const_data_ptr is_set_to "
        "from_file share_memory_ StorageBase is_storage *StorageContext serialization",
    ),
    (
        "a part of TorchScript; use torch.compile",
        "Script* Lite* *Type CompilationUnit Argument* Graph* Block Code CallStack Capsule "
        "ConcreteModule* DeepCopyMemoTable Execution* FileCheck FunctionSchema Gradient "
        "IODescriptor Logger* LockingLogger NoopLogger Node OperatorInfo PyTorchFile* "
        "StaticModule SymBool SymFloat SymInt Tag TracingState Type Use Value AliasDb "
        "BufferDict ModuleDict ParameterDict ErrorReport FatalError JITException import_ir* "
        "parse_* merge_type_from* unify_type_list Complete* ExcludeDispatch* Dispatch* Future "
        "fork wait AggregationType AVG SUM DisableTorchFunction* *Benchmark* get_file_path "
        "classes cpp functional.boolean_dispatch functional.BroadcastingList* "
        "functional.assert_int_or_pair functional.*torch_function* modules.Container "
        "nn.Container",
    ),
    (
        "sizes are plain integers here",
        "sym_* SymInt*",
    ),
    (
        "a kernel of one vendor; call the function of torch or of nn.functional",
        "cudnn_* miopen_* mkldnn_* batch_norm_* convolution conv_tbc functional.conv_tbc thnn_* "
        "native_* *grid_sampler* affine_grid_generator embedding_renorm_ nuclear_norm "
        "frobenius_norm norm_except_dim max_pool1d_with_indices "
        "binary_cross_entropy_with_logits ctc_loss feature_dropout* "
        "functional.native_channel_shuffle grouped_mm functional.grouped_mm "
        "functional.linear_cross_entropy LinearCrossEntropy* segment_reduce *_enable_gradient",
    ),
    (
        "use the module of torch.nn",
        "lstm lstm_cell gru gru_cell rnn_relu* rnn_tanh*",
    ),
    (
        "use torch.autocast, and is_autocast_enabled",
        "*autocast_* *is_autocast*",
    ),
    (
        "use torch.linalg",
        "lobpcg pca_lowrank svd_lowrank solve symeig lstsq matrix_rank lu geqrf orgqr ormqr "
        "linalg.householder_product linalg.ldl_*",
    ),
    (
        "use torch.histogram for each dimension",
        "histogramdd",
    ),
    (
        "one device runs at a time here, without streams or events",
        "*Stream *stream* Event Stream* *graph* CUDAGraph MemPool *mem_pool* GreenContext "
        "*memory* *_cached ipc_collect caching_allocator* *allocator* *Allocator* *_handle* "
        "*host_memory*",
    ),
    (
        "weft's devices are listed by weft.devices()",
        "*_device* xpu ipu mtia is_ipu is_xla is_maia is_mtia is_mkldnn is_vulkan* cpu "
        "get_arch_list get_gencode_flags device_of device_index",
    ),
    (
        "use a loop over data",
        "*DataPipe* DataChunk functional_datapipe *datapipes* *runtime_validation* "
        "non_deterministic argument_validation",
    ),
    (
        "use LocalResponseNorm, which has the same window at each channel",
        "CrossMapLRN2d",
    ),
    (
        "use arange, which leaves the end out",
        "range",
    ),
    (
        "draw by torch.distributions.Binomial",
        "binomial",
    ),
    (
        "PyTorch dropped it",
        "volatile reinforce resize resize_as NLLLoss2d clip_grad_norm set_default_tensor_type",
    ),
    (
        "torch.where chooses by a tensor; a loop of Python is unrolled",
        "while_loop cond",
    ),
    (
        "internal to PyTorch",
        "*_copy slice_inverse unsafe_* hash_tensor output_nr grad_dtype dim_order map_ map2_ "
        "module_load as_subclass is_distributed is_inference index constrain_range* USE_* "
        "PRIVATE_OPS TYPE_CHECKING compiled_with_cxx11_abi classproperty typename torch_version "
        "types storage prepare_multiprocessing_environment has_* profiler* monitor futures "
        "package windows layout legacy_contiguous_format memory_format *num_interop_threads "
        "init_num_threads *warn_always* set_flush_denormal *deterministic_* "
        "thread_safe_generator default_generator quasirandom to_dlpack AcceleratorError "
        "OutOfMemoryError set_anomaly_enabled is_inference_mode_enabled as_strided_ "
        "vitals* common_types factory_kwargs grad *_notes *_MODES torch invert_permutation "
        "stateless *convert_conv*d_weight_memory_format clip_grads_with_norm_ swap_* "
        "transfer_parametrizations* debug_unwrap functionalize rearrange "
        "replace_all_batch_norm* NestedIOFunction *grad_layout* gradgradcheck *multithreading* "
        "LinAlgError airy_ai *igamma* *gammainc* *masked_tensor* MaskedTensor "
        "custom_?wd fork_rng make_tensor assert_allclose quantizable "
        "backcompat backend_registration cmake_prefix_path collect_env "
        "*cpp_backtrace deterministic hooks *privateuse1_backend set_module "
        "throughput_benchmark weak",
    ),
    (
        "weft's distributions lack those of correlation matrices",
        "CatTransform CorrCholeskyTransform CumulativeDistributionTransform LKJCholesky "
        "LowerCholeskyTransform PositiveDefiniteTransform Wishart",
    ),
)


@functools.cache
def _patterns() -> list[tuple[re.Pattern[str], bool, str]]:
    """The patterns of _REASONS, compiled; whether one also has the module's name; what to use.
    They are more than fnmatch itself keeps compiled."""
    return [
        (re.compile(fnmatch.translate(pattern)), "." in pattern, why)
        for why, text in _REASONS
        for pattern in text.split()
    ]


def reason(path: str) -> str:
    """Returns what to use for a name of PyTorch's that weft.torch lacks, such as
    "torch.Tensor.to_sparse". It is "" for other names, or where nothing is known."""
    steps = path.split(".")
    for n in range(len(steps), 0, -1):
        if (known := ".".join(steps[:n])) in _PARTS:
            return _PARTS[known]
    last = ".".join(steps[-2:])
    for pattern, dotted, why in _patterns():
        if pattern.match(last if dotted else steps[-1]):
            return why
    return ""


def explain() -> None:
    """Makes every module of weft.torch say what to use where it lacks a name."""
    missing.REASONS["weft.torch"] = lambda module, name: reason(f"{module[5:]}.{name}")
    for name, module in list(sys.modules.items()):
        plain = type(module) is ModuleType and "__getattr__" not in vars(module)
        if plain and f"{name}.".startswith("weft.torch."):
            vars(module)["__getattr__"] = _lacking(name)


def _lacking(module: str) -> Any:
    def lookup(name: str) -> Any:
        raise missing.missing(module, name)

    return lookup
