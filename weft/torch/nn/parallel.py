"""torch.nn.parallel: a module's pass, on the device where the module is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weft.core.errors import UsageError
from weft.core.notices import say
from weft.torch import accelerator
from weft.torch.nn.modules import Module


class DataParallel(Module):
    """The pass of `module`, on one device. PyTorch cuts a batch between several GPUs where it finds
    them; weft says that it does not, and raises UsageError where several are named."""

    def __init__(
        self, module: Module, device_ids: Sequence[Any] | None = None, output_device: Any = None,
        dim: int = 0,
    ) -> None:  # fmt: skip
        _one("DataParallel", device_ids)
        self.module = module

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        return self.module(*inputs, **kwargs)


def data_parallel(
    module: Module, inputs: Any, device_ids: Sequence[Any] | None = None, output_device: Any = None,
    dim: int = 0, module_kwargs: Mapping[str, Any] | None = None,
) -> Any:  # fmt: skip
    """The pass of a module as in DataParallel; `inputs` is a tensor, or a tuple of all of them."""
    _one("data_parallel", device_ids)
    given = inputs if isinstance(inputs, tuple) else (inputs,)
    return module(*given, **(module_kwargs or {}))


def _one(name: str, device_ids: Sequence[Any] | None) -> None:
    count = accelerator.device_count() if device_ids is None else len(device_ids)
    if device_ids is not None and count > 1:
        raise UsageError(f"{name}: {count} devices are named; a module of weft runs on one: leave "
                         "device_ids out")  # fmt: skip
    if count > 1:
        say(f"{name}: the module runs on its own device alone, of {count} that are here")


def __dir__() -> list[str]:
    return ["DataParallel", "data_parallel"]
