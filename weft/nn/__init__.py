"""Modules with PyTorch's names, defaults and state dicts."""

from weft.nn import init
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
from weft.nn.module import Module, Parameter
from weft.nn.norm import LayerNorm, RMSNorm

__all__ = [
    "GELU", "Embedding", "Flatten", "Identity", "LayerNorm", "Linear", "LogSoftmax", "Module",
    "Parameter", "RMSNorm", "ReLU", "SiLU", "Sigmoid", "Softmax", "Tanh", "init",
]  # fmt: skip
