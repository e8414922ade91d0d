"""Every error that weft raises on purpose (see `weft.core.errors`)."""

from weft.core.errors import (
    AxisError,
    BusyError,
    CallError,
    CompileError,
    DeviceError,
    DTypeError,
    FileFormatError,
    GradientError,
    HubError,
    InternalError,
    KernelError,
    LimitError,
    MissingFileError,
    ModelError,
    OutOfMemoryError,
    RankError,
    ShapeError,
    StorageError,
    TraceError,
    UnknownDeviceError,
    UsageError,
    WeftError,
    WorkerError,
)

__all__ = [
    "AxisError", "BusyError", "CallError", "CompileError", "DTypeError", "DeviceError",
    "FileFormatError", "GradientError", "HubError", "InternalError", "KernelError", "LimitError",
    "MissingFileError", "ModelError", "OutOfMemoryError", "RankError", "ShapeError",
    "StorageError", "TraceError", "UnknownDeviceError", "UsageError", "WeftError", "WorkerError",
]  # fmt: skip
