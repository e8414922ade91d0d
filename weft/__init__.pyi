"""The public names of weft, each listed here alone: type checkers read this file, and so does weft
itself when a name is first used (weft/__init__.py)."""

from weft import (
    errors as errors,
)
from weft import (
    functional as functional,
)
from weft import (
    nn as nn,
)
from weft import (
    optim as optim,
)
from weft.backends.registry import devices as devices
from weft.core.dtypes import (
    DType as DType,
)
from weft.core.dtypes import (
    bfloat16 as bfloat16,
)
from weft.core.dtypes import bool_
from weft.core.dtypes import (
    float16 as float16,
)
from weft.core.dtypes import (
    float32 as float32,
)
from weft.core.dtypes import (
    float64 as float64,
)
from weft.core.dtypes import (
    int8 as int8,
)
from weft.core.dtypes import (
    int32 as int32,
)
from weft.core.dtypes import (
    int64 as int64,
)
from weft.core.dtypes import (
    uint8 as uint8,
)
from weft.core.dtypes import (
    uint32 as uint32,
)
from weft.models import load as load
from weft.program.program import Program as Program
from weft.tensor.angles import (
    acos as acos,
)
from weft.tensor.angles import (
    acosh as acosh,
)
from weft.tensor.angles import (
    asin as asin,
)
from weft.tensor.angles import (
    asinh as asinh,
)
from weft.tensor.angles import (
    atan as atan,
)
from weft.tensor.angles import (
    atan2 as atan2,
)
from weft.tensor.angles import (
    atanh as atanh,
)
from weft.tensor.angles import (
    cosh as cosh,
)
from weft.tensor.angles import (
    sinh as sinh,
)
from weft.tensor.angles import (
    tan as tan,
)
from weft.tensor.arrays import (
    asarray as asarray,
)
from weft.tensor.arrays import (
    astype as astype,
)
from weft.tensor.arrays import (
    broadcast_arrays as broadcast_arrays,
)
from weft.tensor.arrays import (
    broadcast_to as broadcast_to,
)
from weft.tensor.arrays import (
    concat as concat,
)
from weft.tensor.arrays import (
    e as e,
)
from weft.tensor.arrays import (
    expand_dims as expand_dims,
)
from weft.tensor.arrays import (
    finfo as finfo,
)
from weft.tensor.arrays import (
    flip as flip,
)
from weft.tensor.arrays import (
    iinfo as iinfo,
)
from weft.tensor.arrays import (
    inf as inf,
)
from weft.tensor.arrays import (
    matrix_transpose as matrix_transpose,
)
from weft.tensor.arrays import (
    meshgrid as meshgrid,
)
from weft.tensor.arrays import (
    moveaxis as moveaxis,
)
from weft.tensor.arrays import (
    nan as nan,
)
from weft.tensor.arrays import (
    newaxis as newaxis,
)
from weft.tensor.arrays import (
    permute_dims as permute_dims,
)
from weft.tensor.arrays import (
    pi as pi,
)
from weft.tensor.arrays import (
    repeat as repeat,
)
from weft.tensor.arrays import (
    reshape as reshape,
)
from weft.tensor.arrays import (
    result_type as result_type,
)
from weft.tensor.arrays import (
    roll as roll,
)
from weft.tensor.arrays import (
    squeeze as squeeze,
)
from weft.tensor.arrays import (
    tile as tile,
)
from weft.tensor.arrays import (
    unstack as unstack,
)
from weft.tensor.autocast import autocast as autocast
from weft.tensor.autograd import (
    checkpoint as checkpoint,
)
from weft.tensor.autograd import (
    enable_grad as enable_grad,
)
from weft.tensor.autograd import (
    grad as grad,
)
from weft.tensor.autograd import (
    is_grad_enabled as is_grad_enabled,
)
from weft.tensor.autograd import (
    no_grad as no_grad,
)
from weft.tensor.autograd import (
    value_and_grad as value_and_grad,
)
from weft.tensor.compiled import compile as compile
from weft.tensor.core import (
    Tensor as Tensor,
)
from weft.tensor.core import (
    from_dlpack as from_dlpack,
)
from weft.tensor.core import (
    tensor as tensor,
)
from weft.tensor.create import (
    arange as arange,
)
from weft.tensor.create import (
    empty as empty,
)
from weft.tensor.create import (
    empty_like as empty_like,
)
from weft.tensor.create import (
    eye as eye,
)
from weft.tensor.create import (
    full as full,
)
from weft.tensor.create import (
    full_like as full_like,
)
from weft.tensor.create import (
    linspace as linspace,
)
from weft.tensor.create import (
    ones as ones,
)
from weft.tensor.create import (
    ones_like as ones_like,
)
from weft.tensor.create import (
    tril as tril,
)
from weft.tensor.create import (
    triu as triu,
)
from weft.tensor.create import (
    zeros as zeros,
)
from weft.tensor.create import (
    zeros_like as zeros_like,
)
from weft.tensor.einsum import einsum as einsum
from weft.tensor.elementwise import (
    abs as abs,
)
from weft.tensor.elementwise import (
    add as add,
)
from weft.tensor.elementwise import (
    bitwise_and as bitwise_and,
)
from weft.tensor.elementwise import (
    bitwise_invert as bitwise_invert,
)
from weft.tensor.elementwise import (
    bitwise_left_shift as bitwise_left_shift,
)
from weft.tensor.elementwise import (
    bitwise_or as bitwise_or,
)
from weft.tensor.elementwise import (
    bitwise_right_shift as bitwise_right_shift,
)
from weft.tensor.elementwise import (
    bitwise_xor as bitwise_xor,
)
from weft.tensor.elementwise import (
    ceil as ceil,
)
from weft.tensor.elementwise import (
    clip as clip,
)
from weft.tensor.elementwise import (
    copysign as copysign,
)
from weft.tensor.elementwise import (
    cos as cos,
)
from weft.tensor.elementwise import (
    divide as divide,
)
from weft.tensor.elementwise import (
    equal as equal,
)
from weft.tensor.elementwise import (
    erf as erf,
)
from weft.tensor.elementwise import (
    exp as exp,
)
from weft.tensor.elementwise import (
    expm1 as expm1,
)
from weft.tensor.elementwise import (
    floor as floor,
)
from weft.tensor.elementwise import (
    floor_divide as floor_divide,
)
from weft.tensor.elementwise import (
    greater as greater,
)
from weft.tensor.elementwise import (
    greater_equal as greater_equal,
)
from weft.tensor.elementwise import (
    hypot as hypot,
)
from weft.tensor.elementwise import (
    isfinite as isfinite,
)
from weft.tensor.elementwise import (
    isinf as isinf,
)
from weft.tensor.elementwise import (
    isnan as isnan,
)
from weft.tensor.elementwise import (
    less as less,
)
from weft.tensor.elementwise import (
    less_equal as less_equal,
)
from weft.tensor.elementwise import (
    log as log,
)
from weft.tensor.elementwise import (
    log1p as log1p,
)
from weft.tensor.elementwise import (
    log2 as log2,
)
from weft.tensor.elementwise import (
    log10 as log10,
)
from weft.tensor.elementwise import (
    logaddexp as logaddexp,
)
from weft.tensor.elementwise import (
    logical_and as logical_and,
)
from weft.tensor.elementwise import (
    logical_not as logical_not,
)
from weft.tensor.elementwise import (
    logical_or as logical_or,
)
from weft.tensor.elementwise import (
    logical_xor as logical_xor,
)
from weft.tensor.elementwise import (
    maximum as maximum,
)
from weft.tensor.elementwise import (
    minimum as minimum,
)
from weft.tensor.elementwise import (
    multiply as multiply,
)
from weft.tensor.elementwise import (
    negative as negative,
)
from weft.tensor.elementwise import (
    not_equal as not_equal,
)
from weft.tensor.elementwise import (
    positive as positive,
)
from weft.tensor.elementwise import (
    pow as pow,
)
from weft.tensor.elementwise import (
    reciprocal as reciprocal,
)
from weft.tensor.elementwise import (
    remainder as remainder,
)
from weft.tensor.elementwise import (
    round as round,
)
from weft.tensor.elementwise import (
    rsqrt as rsqrt,
)
from weft.tensor.elementwise import (
    sigmoid as sigmoid,
)
from weft.tensor.elementwise import (
    sign as sign,
)
from weft.tensor.elementwise import (
    signbit as signbit,
)
from weft.tensor.elementwise import (
    sin as sin,
)
from weft.tensor.elementwise import (
    sqrt as sqrt,
)
from weft.tensor.elementwise import (
    square as square,
)
from weft.tensor.elementwise import (
    subtract as subtract,
)
from weft.tensor.elementwise import (
    tanh as tanh,
)
from weft.tensor.elementwise import (
    trunc as trunc,
)
from weft.tensor.folding import (
    all as all,
)
from weft.tensor.folding import (
    any as any,
)
from weft.tensor.folding import (
    argmax as argmax,
)
from weft.tensor.folding import (
    argmin as argmin,
)
from weft.tensor.folding import (
    argsort as argsort,
)
from weft.tensor.folding import (
    count_nonzero as count_nonzero,
)
from weft.tensor.folding import (
    cumulative_prod as cumulative_prod,
)
from weft.tensor.folding import (
    cumulative_sum as cumulative_sum,
)
from weft.tensor.folding import (
    diff as diff,
)
from weft.tensor.folding import (
    matmul as matmul,
)
from weft.tensor.folding import (
    max as max,
)
from weft.tensor.folding import (
    mean as mean,
)
from weft.tensor.folding import (
    min as min,
)
from weft.tensor.folding import (
    nonzero as nonzero,
)
from weft.tensor.folding import (
    prod as prod,
)
from weft.tensor.folding import (
    sort as sort,
)
from weft.tensor.folding import (
    std as std,
)
from weft.tensor.folding import (
    sum as sum,
)
from weft.tensor.folding import (
    take as take,
)
from weft.tensor.folding import (
    take_along_axis as take_along_axis,
)
from weft.tensor.folding import (
    tensordot as tensordot,
)
from weft.tensor.folding import (
    topk as topk,
)
from weft.tensor.folding import (
    unique_values as unique_values,
)
from weft.tensor.folding import (
    var as var,
)
from weft.tensor.folding import (
    vecdot as vecdot,
)
from weft.tensor.functional import (
    one_hot as one_hot,
)
from weft.tensor.functional import (
    where as where,
)
from weft.tensor.random import (
    manual_seed as manual_seed,
)
from weft.tensor.random import (
    rand as rand,
)
from weft.tensor.random import (
    randint as randint,
)
from weft.tensor.random import (
    randn as randn,
)
from weft.tensor.shapes import (
    broadcast_tensors as broadcast_tensors,
)
from weft.tensor.shapes import (
    cat as cat,
)
from weft.tensor.shapes import (
    stack as stack,
)
from weft.tensor.trace import (
    Spec as Spec,
)
from weft.tensor.trace import (
    trace as trace,
)

bool = bool_
__version__: str
