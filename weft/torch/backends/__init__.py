"""torch.backends: switches of PyTorch's libraries, which change nothing here."""

from weft.torch.backends import cuda as cuda, cudnn as cudnn, mps as mps


def __dir__() -> list[str]:
    return ["cuda", "cudnn", "mps"]
