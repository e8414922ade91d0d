"""torch.backends.cuda: switches that change nothing; float32 products are computed in float32."""

from types import SimpleNamespace

matmul = SimpleNamespace(allow_tf32=False, allow_fp16_reduced_precision_reduction=False)


def is_built() -> bool:
    """True: weft compiles for CUDA on every machine."""
    return True


def __dir__() -> list[str]:
    return ["is_built", "matmul"]
