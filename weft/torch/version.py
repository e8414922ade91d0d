"""torch.version: the PyTorch whose names these are; weft is built for no CUDA or HIP of its own."""

__version__ = "2.13.0+weft"
cuda: str | None = None
hip: str | None = None
xpu: str | None = None
debug = False


def __dir__() -> list[str]:
    return ["cuda", "debug", "hip", "xpu"]
