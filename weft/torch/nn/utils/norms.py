"""PyTorch's older weight_norm and spectral_norm, whose tensors are the module's own: weight_g and
weight_v, or weight_orig, weight_u and weight_v."""

from __future__ import annotations

from typing import Any

from weft.core.errors import UsageError
from weft.host.boundary import guard_calls
from weft.tensor.autograd import no_grad
from weft.torch.nn.modules import Module, Parameter
from weft.torch.nn.utils.parametrizations import _SpectralNorm, norm_except_dim
from weft.torch.nn.utils.parametrize import computed, restored, taken


def weight_norm(module: Any, name: str = "weight", dim: int | None = 0) -> Any:
    """Splits a weight into its length along `dim` (NAME_g) and its direction (NAME_v); returns the
    module. torch.nn.utils.parametrizations has the newer form."""
    original = taken(module, name)
    with no_grad():
        setattr(module, f"{name}_g", Parameter(norm_except_dim(original, dim)))
    original.name = ""
    setattr(module, f"{name}_v", original)

    def value(self: Any) -> Any:
        g, v = getattr(self, f"{name}_g"), getattr(self, f"{name}_v")
        return v * (g / norm_except_dim(v, dim))

    computed(module, name, value)
    return module


def remove_weight_norm(module: Any, name: str = "weight") -> Any:
    """Makes the weight one parameter again; returns the module."""
    return _joined(module, name, f"{name}_v", [f"{name}_g"])


def spectral_norm(
    module: Any, name: str = "weight", n_power_iterations: int = 1, eps: float = 1e-12,
    dim: int | None = None,
) -> Any:  # fmt: skip
    """Divides a weight (NAME_orig) by its largest singular value, which power iterations in
    training follow (NAME_u, NAME_v); returns the module. torch.nn.utils.parametrizations has the
    newer form."""
    original = taken(module, name)
    if dim is None:
        dim = 1 if "ConvTranspose" in type(module).__name__ else 0
    norm = _SpectralNorm(original, n_power_iterations, dim, eps)
    original.name = ""
    setattr(module, f"{name}_orig", original)
    if original.ndim > 1:
        module.register_buffer(f"{name}_u", norm._u)
        module.register_buffer(f"{name}_v", norm._v)

    def value(self: Any) -> Any:
        norm._u, norm._v = getattr(self, f"{name}_u", None), getattr(self, f"{name}_v", None)
        norm._training = self.training
        return norm(getattr(self, f"{name}_orig"))

    computed(module, name, value)
    return module


def remove_spectral_norm(module: Any, name: str = "weight") -> Any:
    """Makes the weight one parameter again; returns the module."""
    return _joined(module, name, f"{name}_orig", [f"{name}_u", f"{name}_v"])


def _joined(module: Any, name: str, kept: str, others: list[str]) -> Any:
    original = vars(module).get(kept) if isinstance(module, Module) else None
    if name not in getattr(type(module), "_computed", ()) or original is None:
        raise UsageError(f"{type(module).__name__}: {name!r} has no such norm to remove")
    with no_grad():
        original.copy_(getattr(module, name))
    for other in (kept, *others):
        if other in vars(module):
            taken(module, other)
    restored(module, name)
    setattr(module, name, original)
    return module


NAMES = ["remove_spectral_norm", "remove_weight_norm", "spectral_norm", "weight_norm"]
guard_calls(globals(), NAMES)
