"""PyTorch's first names of dtypes: `torch.FloatTensor(2, 3)`, `x.type(torch.LongTensor)`."""

from __future__ import annotations

from typing import Any

from weft.core.dtypes import (
    DType,
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
)
from weft.core.errors import DTypeError
from weft.tensor.core import Tensor as Base
from weft.torch.creation import tensor, zeros

_KINDS = {
    "Float": float32, "Double": float64, "Half": float16, "BFloat16": bfloat16, "Long": int64,
    "Int": int32, "Short": int16, "Char": int8, "Byte": uint8, "Bool": bool_,
}  # fmt: skip


class TensorKind(type):
    """A dtype and a device: a call makes a tensor of data or of sizes; tensors are instances."""

    dtype: DType
    place: str | None

    def __call__(cls, *data: Any, device: Any = None) -> Any:
        place = cls.place if device is None else device
        sizes = bool(data) and all(isinstance(n, int) for n in data)
        if sizes:
            return zeros(*data, dtype=cls.dtype, device=place)
        return tensor(*data or ([],), dtype=cls.dtype, device=place)

    def __instancecheck__(cls, x: Any) -> bool:
        if not isinstance(x, Base):
            return False
        kind = x.device.partition(":")[0]
        return x.dtype == cls.dtype and (kind == "cuda") == (cls.place == "cuda")


def _made(name: str, place: str | None) -> TensorKind:
    dtype = _KINDS[name]
    where = " on a CUDA device" if place else ""
    text = {"__doc__": f"A tensor of {dtype.name}{where}, of data or of sizes."}
    made = TensorKind(f"{name}Tensor", (), text)
    made.dtype, made.place = dtype, place
    return made


TYPED = {f"{name}Tensor": _made(name, None) for name in _KINDS}
ON_CUDA = {f"{name}Tensor": _made(name, "cuda") for name in _KINDS}


def name_of(x: Base) -> str:
    """The result of `x.type()`, such as "torch.FloatTensor"."""
    place = "cuda." if x.device.partition(":")[0] == "cuda" else ""
    name = next((n for n, d in _KINDS.items() if d == x.dtype), None)
    return f"torch.{x.dtype.name}" if name is None else f"torch.{place}{name}Tensor"


def wanted(kind: Any) -> tuple[Any, str | None]:
    """The dtype and the device of `x.type(kind)`, where kind is a dtype, such a type or
    its name. Raises DTypeError for another name."""
    if isinstance(kind, str) and kind.endswith("Tensor"):
        *_, home, name = ("", *kind.removeprefix("torch.").split("."))
        found = (ON_CUDA if home == "cuda" else TYPED).get(name)
        if found is None:
            raise DTypeError(f"type: {kind!r}; expected a dtype or one of {', '.join(TYPED)}")
        kind = found
    return (kind.dtype, kind.place) if isinstance(kind, TensorKind) else (kind, None)
