"""torch.distributed, as a build of PyTorch without it: scripts that ask run as one process. weft
starts several ranks from the command line."""

from __future__ import annotations


def is_available() -> bool:
    """False: there is no process group to join."""
    return False


def is_initialized() -> bool:
    """False: there is no process group."""
    return False


def is_torchelastic_launched() -> bool:
    """False: no launcher of PyTorch's started this process."""
    return False


def __dir__() -> list[str]:
    return ["is_available", "is_initialized", "is_torchelastic_launched"]
