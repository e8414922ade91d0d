"""Modules with PyTorch's names, defaults and state dicts."""

from weft.host.boundary import guard_functions, guard_methods, guarded
from weft.nn import init
from weft.nn.activations import (
    CELU,
    ELU,
    GLU,
    SELU,
    Hardshrink,
    Hardtanh,
    LeakyReLU,
    LogSigmoid,
    Mish,
    PReLU,
    ReLU6,
    Softplus,
    Softshrink,
    Softsign,
    Tanhshrink,
    Threshold,
)
from weft.nn.attention import MultiheadAttention
from weft.nn.containers import ModuleDict, ModuleList, Sequential
from weft.nn.conv import (
    AdaptiveAvgPool1d,
    AdaptiveAvgPool2d,
    AdaptiveAvgPool3d,
    AdaptiveMaxPool1d,
    AdaptiveMaxPool2d,
    AdaptiveMaxPool3d,
    AvgPool1d,
    AvgPool2d,
    AvgPool3d,
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
    MaxPool1d,
    MaxPool2d,
    MaxPool3d,
    PixelShuffle,
    PixelUnshuffle,
    Upsample,
)
from weft.nn.dropout import Dropout
from weft.nn.layers import (
    GELU,
    Embedding,
    Flatten,
    Hardsigmoid,
    Hardswish,
    Identity,
    Linear,
    LogSoftmax,
    ReLU,
    Sigmoid,
    SiLU,
    Softmax,
    Tanh,
)
from weft.nn.losses import BCEWithLogitsLoss, CrossEntropyLoss, L1Loss, MSELoss, NLLLoss
from weft.nn.module import Mismatch, Module, Parameter
from weft.nn.norm import (
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    GroupNorm,
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
    LayerNorm,
    RMSNorm,
)

__all__ = [
    "AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AdaptiveAvgPool3d", "AdaptiveMaxPool1d",
    "AdaptiveMaxPool2d", "AdaptiveMaxPool3d", "AvgPool1d", "AvgPool2d", "AvgPool3d",
    "BCEWithLogitsLoss", "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "CELU", "Conv1d", "Conv2d",
    "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d", "CrossEntropyLoss",
    "Dropout", "ELU", "Embedding", "Flatten", "GELU", "GLU", "GroupNorm", "Hardshrink",
    "Hardsigmoid", "Hardswish", "Hardtanh", "Identity", "InstanceNorm1d", "InstanceNorm2d",
    "InstanceNorm3d", "L1Loss", "LayerNorm", "LeakyReLU", "Linear", "LogSigmoid", "LogSoftmax",
    "MSELoss", "MaxPool1d", "MaxPool2d", "MaxPool3d", "Mish", "Mismatch", "Module", "ModuleDict",
    "ModuleList", "MultiheadAttention", "NLLLoss", "PReLU", "Parameter", "PixelShuffle",
    "PixelUnshuffle", "RMSNorm", "ReLU", "ReLU6", "SELU", "Sequential", "SiLU", "Sigmoid",
    "Softmax", "Softplus", "Softshrink", "Softsign", "Tanh", "Tanhshrink", "Threshold", "Upsample",
    "init",
]  # fmt: skip

# Users' errors come from users' modules: what calls those is left as it is.
for _kind in [v for v in list(globals().values()) if isinstance(v, type) and issubclass(v, Module)]:
    _calls_back = _kind in (Module, ModuleDict, ModuleList, Sequential)
    guard_methods(_kind, but=("apply", "forward") if _calls_back else ("apply",))
Parameter.__init__ = guarded(Parameter.__init__, "Parameter")  # type: ignore[method-assign]
guard_functions(vars(init), [name for name in vars(init) if not name.startswith("_")])
