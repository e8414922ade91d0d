"""Modules with PyTorch's names, defaults and state dicts."""

from weft.core.boundary import guard_functions, guard_methods, guarded
from weft.nn import init
from weft.nn.attention import MultiheadAttention
from weft.nn.containers import ModuleDict, ModuleList, Sequential
from weft.nn.conv import AdaptiveAvgPool2d, AvgPool2d, Conv1d, Conv2d, MaxPool2d
from weft.nn.dropout import Dropout
from weft.nn.layers import (
    GELU,
    Embedding,
    Flatten,
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
from weft.nn.norm import BatchNorm1d, BatchNorm2d, LayerNorm, RMSNorm

__all__ = [
    "AdaptiveAvgPool2d", "AvgPool2d", "BCEWithLogitsLoss", "BatchNorm1d", "BatchNorm2d", "Conv1d",
    "Conv2d", "CrossEntropyLoss", "Dropout", "Embedding", "Flatten", "GELU", "Identity", "L1Loss",
    "LayerNorm", "Linear", "LogSoftmax", "MSELoss", "MaxPool2d", "Mismatch", "Module", "ModuleDict",
    "ModuleList", "MultiheadAttention", "NLLLoss", "Parameter", "RMSNorm", "ReLU", "Sequential",
    "SiLU", "Sigmoid", "Softmax", "Tanh", "init",
]  # fmt: skip

# Users' errors come from users' modules: what calls those is left as it is.
for _kind in [v for v in list(globals().values()) if isinstance(v, type) and issubclass(v, Module)]:
    _calls_back = _kind in (Module, ModuleDict, ModuleList, Sequential)
    guard_methods(_kind, but=("apply", "forward") if _calls_back else ("apply",))
Parameter.__init__ = guarded(Parameter.__init__, "Parameter")  # type: ignore[method-assign]
guard_functions(vars(init), [name for name in vars(init) if not name.startswith("_")])
