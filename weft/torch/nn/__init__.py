"""torch.nn over weft.nn: modules, functional, init, utils."""

from typing import Any

from weft.host.boundary import guard_calls as _guard_calls
from weft.nn.recurrent import _Cell as RNNCellBase, _Layers as RNNBase  # noqa: F401
from weft.torch.nn import (
    attention as attention,
    functional as functional,
    init as init,
    modules as modules,
    parallel as parallel,
    utils as utils,
)
from weft.torch.nn.lazy import (
    LAZY as _LAZY,
    UninitializedBuffer as UninitializedBuffer,
    UninitializedParameter as UninitializedParameter,
)
from weft.torch.nn.modules import (
    KINDS as _KINDS,
    Buffer as Buffer,
    Module as Module,
    Parameter as Parameter,
)
from weft.torch.nn.parallel import DataParallel as DataParallel

globals().update({kind.__name__: kind for kind in _KINDS.values()} | _LAZY)

_guard_calls(globals(), [*(kind.__name__ for kind in _KINDS.values()), *_LAZY], deep=True)


def __getattr__(name: str) -> Any:
    from weft.core.missing import missing

    raise missing(__name__, name)


def __dir__() -> list[str]:
    kinds = [n for n, v in globals().items() if isinstance(v, type) and n[0] != "_"]
    own = [n for n in kinds if getattr(globals()[n], "__module__", "").startswith("weft.")]
    return sorted([*own, "attention", "functional", "init", "modules", "parallel", "utils"])
