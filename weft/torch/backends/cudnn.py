"""torch.backends.cudnn: switches that change nothing. On one device weft's results are the same
bits in every run."""

deterministic, benchmark, enabled, allow_tf32 = True, False, False, False


def is_available() -> bool:
    """False: weft compiles its own kernels."""
    return False


def version() -> None:
    """None: weft does not use cuDNN."""


def __dir__() -> list[str]:
    return ["allow_tf32", "benchmark", "deterministic", "enabled", "is_available", "version"]
