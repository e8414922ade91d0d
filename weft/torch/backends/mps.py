"""torch.backends.mps: weft names Apple's GPUs "metal"."""


def is_available() -> bool:
    """False: there is no device "mps"; see weft.devices()."""
    return False


def is_built() -> bool:
    """False: there is no device "mps"; see weft.devices()."""
    return False


def __dir__() -> list[str]:
    return ["is_available", "is_built"]
