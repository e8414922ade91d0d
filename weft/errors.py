"""Every error that weft raises on purpose (see `weft.core.errors`)."""

from weft.core.errors import (
    CallError,
    CompileError,
    DeviceError,
    DTypeError,
    FileFormatError,
    GradientError,
    HubError,
    KernelError,
    LimitError,
    ModelError,
    OutOfMemoryError,
    RankError,
    ShapeError,
    StorageError,
    TraceError,
    UsageError,
    WeftError,
)

__all__ = [
    "CallError", "CompileError", "DTypeError", "DeviceError", "FileFormatError", "GradientError",
    "HubError", "KernelError", "LimitError", "ModelError", "OutOfMemoryError", "RankError",
    "ShapeError", "StorageError", "TraceError", "UsageError", "WeftError",
]  # fmt: skip
