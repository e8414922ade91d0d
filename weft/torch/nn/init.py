"""torch.nn.init over weft.nn.init, with PyTorch's names of parameters."""

from __future__ import annotations

from typing import Any

from weft.importers.aten.table import renamed
from weft.nn import init
from weft.nn.init import calculate_gain as calculate_gain
from weft.torch.tensor import public

_ROWS = {
    "constant_": "tensor val", "zeros_": "tensor", "ones_": "tensor",
    "uniform_": "tensor a>low b>high -generator", "normal_": "tensor mean std -generator",
    "trunc_normal_": "tensor mean std a>low b>high -generator",
    "xavier_uniform_": "tensor gain -generator", "xavier_normal_": "tensor gain -generator",
    "orthogonal_": "tensor gain -generator", "eye_": "tensor", "dirac_": "tensor groups",
    "sparse_": "tensor sparsity std -generator",
    "kaiming_uniform_": "tensor a mode nonlinearity -generator",
    "kaiming_normal_": "tensor a mode nonlinearity -generator",
}  # fmt: skip


def _row(name: str) -> Any:
    of = getattr(init, name)
    made = renamed(__name__, of, _ROWS[name].split())
    made.__name__, made.__doc__ = name, of.__doc__
    return public(made)


globals().update({name: _row(name) for name in _ROWS})
_OLDER = [n for n in _ROWS if n not in ("zeros_", "ones_", "trunc_normal_")]  # without the last _
globals().update({name[:-1]: globals()[name] for name in _OLDER})


def __dir__() -> list[str]:
    return sorted([*_ROWS, *(name[:-1] for name in _OLDER), "calculate_gain"])


def __getattr__(name: str) -> Any:
    from weft.core.missing import missing

    raise missing(__name__, name)
