"""PyTorch's names, signatures, defaults and dtypes over weft's one implementation.

`import weft.torch as torch` runs scripts that use PyTorch's everyday API. Numbers that a generator
draws are weft's. Integers are int64 on the host and int32 on devices and in compiled functions.
"""

from __future__ import annotations

import math
from typing import Any

from weft.core.dtypes import (
    DType,
    bfloat16 as bfloat16,
    bool_,
    float16 as float16,
    float32 as float32,
    float64 as float64,
    int8 as int8,
    int16 as int16,
    int32 as int32,
    int64 as int64,
    uint8 as uint8,
    uint16 as uint16,
    uint32 as uint32,
    uint64 as uint64,
)
from weft.host.boundary import guard_calls as _guard_calls
from weft.tensor.autograd import (
    enable_grad as enable_grad,
    is_grad_enabled as is_grad_enabled,
    no_grad as no_grad,
)
from weft.tensor.namespace import finfo as finfo, iinfo as iinfo
from weft.torch import (
    accelerator as accelerator,
    amp as amp,
    arithmetic as _arithmetic,
    autograd as autograd,
    backends as backends,
    copies as _copies,
    counting as _counting,
    creation as _creation,
    cuda as cuda,
    diagonals as _diagonals,
    distributions as distributions,
    elementwise as _elementwise,
    func as func,
    held as _held,
    joining as _joining,
    lacking as _lacking,
    linalg as linalg,
    masked as masked,
    matrices as _matrices,
    methods as _methods,
    nn as nn,
    ops as ops,
    optim as optim,
    ordering as _ordering,
    paths as _paths,
    picking as _picking,
    products as _products,
    promotion as _promotion,
    randomness as _randomness,
    reductions as _reductions,
    scattering as _scattering,
    shaping as _shaping,
    signal as signal,
    special as special,
    statistics as _statistics,
    testing as testing,
    utils as utils,
    version as version,
)
from weft.torch.absent import explain as _explain
from weft.torch.amp import GradScaler as GradScaler, autocast as autocast
from weft.torch.autograd.anomaly import (
    is_anomaly_check_nan_enabled as is_anomaly_check_nan_enabled,
    is_anomaly_enabled as is_anomaly_enabled,
)
from weft.torch.backends import mps as mps
from weft.torch.creation import (
    device as device,
    get_default_dtype as get_default_dtype,
    set_default_dtype as set_default_dtype,
    tensor as tensor,
)
from weft.torch.diagonals import numel as numel
from weft.torch.files import load as load, save as save
from weft.torch.func import vmap as vmap
from weft.torch.nn import functional as _functional
from weft.torch.placing import (
    get_default_device as get_default_device,
    set_default_device as set_default_device,
)
from weft.torch.printing import set_printoptions as set_printoptions
from weft.torch.randomness import (
    Generator as Generator,
    get_rng_state as get_rng_state,
    initial_seed as initial_seed,
    manual_seed as manual_seed,
    seed as seed,
    set_rng_state as set_rng_state,
)
from weft.torch.runtime import (
    Size as Size,
    are_deterministic_algorithms_enabled as are_deterministic_algorithms_enabled,
    channels_last as channels_last,
    channels_last_3d as channels_last_3d,
    compile as compile,
    contiguous_format as contiguous_format,
    get_float32_matmul_precision as get_float32_matmul_precision,
    get_num_threads as get_num_threads,
    inference_mode as inference_mode,
    preserve_format as preserve_format,
    set_float32_matmul_precision as set_float32_matmul_precision,
    set_grad_enabled as set_grad_enabled,
    set_num_threads as set_num_threads,
    strided as strided,
    use_deterministic_algorithms as use_deterministic_algorithms,
)
from weft.torch.shaping import broadcast_shapes as broadcast_shapes
from weft.torch.signal.periodic import (
    bartlett_window as bartlett_window,
    blackman_window as blackman_window,
    hamming_window as hamming_window,
    hann_window as hann_window,
    kaiser_window as kaiser_window,
)
from weft.torch.tensor import Tensor as Tensor
from weft.torch.triangular import lu_solve as lu_solve, lu_unpack as lu_unpack, whole as lu  # noqa: F401
from weft.torch.typed import TYPED as _TYPED

dtype, bool = DType, bool_
float, double, half = float32, float64, float16
short, int, long = int16, int32, int64
__version__ = version.__version__
pi, e, inf, nan, newaxis = math.pi, math.e, math.inf, math.nan, None

_FILES = (
    _elementwise, _arithmetic, _reductions, _ordering, _shaping, _joining, _diagonals, _picking,
    _scattering, _counting, _creation, _products, _matrices, _randomness,
    _copies, _statistics, _promotion, _held,
)  # fmt: skip
for _home in _FILES:
    globals().update(_methods.functions(_home, "both", "function"))
_SPECIAL = "digamma erfinv i0 lgamma logaddexp2 mvlgamma polygamma sinc xlogy"
_special = {_name: getattr(special, _name) for _name in _SPECIAL.split()}
globals().update(_special)
_activations = {"prelu": _functional.prelu, "hardshrink": _functional.hardshrink}
_methods.attach(_FILES, {**_special, **_activations})
_methods.add("lu_solve", lu_solve)
globals().update(_methods.in_place_functions())
globals().update({f"{_name}_": getattr(_functional, f"{_name}_") for _name in _functional.IN_PLACE})
for _name in _functional.SHARED:
    globals()[_name] = getattr(_functional, _name)


globals().update(_TYPED)
_guard_calls(globals(), [n for n in globals() if n[0] != "_" and n != "compile"], deep=True)
_paths.find()
_lacking.offer()
_explain()


_LISTED = """accelerator amp autograd backends cuda distributions func linalg masked mps nn ops
optim signal special testing utils version
Generator GradScaler Size Tensor autocast broadcast_shapes compile device dtype e enable_grad finfo
get_default_dtype get_num_threads get_rng_state iinfo inf inference_mode initial_seed
is_grad_enabled load lu manual_seed nan no_grad numel pi save seed set_default_dtype
set_float32_matmul_precision set_grad_enabled set_num_threads set_printoptions set_rng_state
tensor use_deterministic_algorithms vmap"""


def __getattr__(name: str) -> Any:
    from weft.core.missing import missing

    raise missing(__name__, name)


def __dir__() -> list[str]:
    found = {n for n, v in globals().items() if getattr(v, "kind", None) or type(v) is DType}
    return sorted(n for n in {*found, *_LISTED.split(), *_TYPED} if n not in ("DType", "bool_"))
