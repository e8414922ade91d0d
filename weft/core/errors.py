"""One small hierarchy. Each message says what was given, what was expected and what to do."""

from __future__ import annotations


class WeftError(Exception):
    """Base of every error that weft raises on purpose. `str(error)` is one or two lines."""


class ShapeError(WeftError, ValueError, RuntimeError):
    """Shapes, axes or indices that do not fit. Also a ValueError and, as in PyTorch, a
    RuntimeError."""


class AxisError(ShapeError, IndexError):
    """An axis or an index out of range. Also a ValueError and an IndexError."""


class DTypeError(WeftError, TypeError, RuntimeError):
    """A dtype that an op or a device does not take. Also a TypeError and a RuntimeError."""


class DeviceError(WeftError, RuntimeError):
    """A device that is missing, mixed with another, lost, or failing."""


class LimitError(WeftError, RuntimeError):
    """A size beyond what a device, a model or weft itself can hold."""


class OutOfMemoryError(LimitError, MemoryError):
    """An allocation that the device refused: use fewer or smaller tensors. Also a MemoryError."""


class BusyError(LimitError):
    """The error for more concurrent requests than may wait: try again later."""


class TraceError(WeftError, RuntimeError):
    """A traced function that needs a value while only shapes are known."""


class GradientError(WeftError, RuntimeError):
    """A derivative that does not exist, or a backward pass that cannot be run."""


class CompileError(WeftError, RuntimeError):
    """A graph or kernel that could not be compiled: a bug in weft or a limit of the target."""


class KernelError(CompileError):
    """A kernel that breaks the rules of the Kernel IR, found by the verifier or interpreter; `stmt`
    is the statement that does, if it is one."""

    stmt: object = None


class FileFormatError(WeftError, ValueError):
    """A file from outside whose content is truncated, inconsistent or hostile."""


class MissingFileError(FileFormatError, FileNotFoundError):
    """A file that does not exist. Also a FileNotFoundError."""


def unreadable(path: object, error: OSError, more: str = "") -> FileFormatError:
    """The error for a file that the system does not give."""
    kind = MissingFileError if isinstance(error, FileNotFoundError) else FileFormatError
    return kind(f"{path}: cannot be read: {error.strerror or error}{more}")


class ModelError(WeftError, ValueError, RuntimeError):
    """A model folder that cannot be loaded: architecture, config, tokenizer or weights; a state
    dict of another module. Also a ValueError and a RuntimeError."""


class HubError(WeftError, RuntimeError):
    """A model that a hub does not have, does not give, or that did not arrive whole."""


class UsageError(WeftError, ValueError):
    """A call or a command line whose arguments do not make sense. Also a ValueError."""


class StorageError(WeftError, OSError):
    """A file that could not be written: the disk is full, failing or read-only. `errno` has the
    system's number. Also an OSError."""


class CallError(UsageError, TypeError):
    """A call with arguments of the wrong kind or number. Also a TypeError."""


class InternalError(WeftError, RuntimeError):
    """A fault of weft's own, on arguments that look right: please report it, with the message. Its
    cause is the error itself. Also a RuntimeError."""


class UnknownDeviceError(UsageError, DeviceError):
    """The error for the name of a device that cannot exist: an unknown kind or index."""


class RankError(WeftError, RuntimeError):
    """The error for another process of the same work that is lost, silent, or of the wrong kind."""


class WorkerError(WeftError, RuntimeError):
    """The error for a process that loads data and failed, was killed, or took too long."""
