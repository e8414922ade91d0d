"""Matrix products done by a vendor's library on a device's stream.

The libraries think in columns, weft in rows; the same memory read by columns is the transposed
matrix, so c = a b is asked for as c^T = b^T a^T and nothing is moved.

`WEFT_BLAS` chooses: "off" (own kernels only), "on", "tf32" (on, and float32 operands may be rounded
to 10 bits of fraction). Without it a library is used where it sums in a fixed order.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from weft.backends.gpu import blas_api
from weft.backends.gpu.blas_api import TYPES, Vendor
from weft.core.errors import DeviceError, UsageError
from weft.program.gemm import Gemm, Matrix

WORKSPACE = 32 << 20  # bytes, for one product at a time
ALIGN = 256  # bytes: alignment beyond this brings nothing
_BIAS_ALIGN = 16  # bytes: some algorithms assume it for a bias, and have no preference to say so
_REDUCTION = 0  # no sum is split between groups, as these might be added in any order
_RESULT = 512  # bytes: room for one heuristic result of either library, whatever its version

Call = Callable[..., Any]


class DriverMemory(Protocol):
    """A driver's memory."""

    def alloc(self, nbytes: int) -> int: ...
    def free(self, address: int) -> None: ...


class LibraryError(DeviceError):
    """A status that a library gave."""


@dataclass(frozen=True, slots=True, eq=False)
class Product:
    """A Gemm that a library has agreed to do."""

    blas: Blas
    gemm: Gemm
    desc: ctypes.c_void_p
    layouts: tuple[ctypes.c_void_p, ...]  # left, right, added, result
    algorithm: Any

    @property
    def library(self) -> str:
        """Its name."""
        return self.blas.name

    def run(self, args: Sequence[int]) -> None:
        """Asks for the product, given the addresses of its kernel's arguments. Raises
        DeviceError."""
        self.blas.run(self, args)


class Blas:
    """A vendor's library on one device. `call(function, ...)` calls with the device made current.
    Raises DeviceError where the library does not start.

    Everything is asked for on `stream`, in order, so one workspace serves all products.
    """

    def __init__(
        self,
        vendor: Vendor,
        library: Any,
        call: Call,
        stream: int,
        memory: DriverMemory,
        tf32: bool = False,
        workspace: int = WORKSPACE,
    ) -> None:
        self.vendor, self.tf32 = vendor, tf32
        self.name = f"{vendor.name} (tf32)" if tf32 else vendor.name
        self._functions = blas_api.functions(vendor, library)
        self._call, self._stream, self._memory = call, stream, memory
        self._workspace, self._nbytes = 0, workspace  # its address: 0 before the first product
        self._products: dict[tuple[Gemm, tuple[int, ...]], Product | str] = {}
        # pairs of a destructor's name and a handle, in order
        self._made: list[tuple[str, ctypes.c_void_p]] = []
        kinds = ctypes.c_float, ctypes.c_int32
        self._scalars = {
            kind: (kind(0), kind(1)) for kind in kinds
        }  # memory that alpha and beta point to
        self._handle = self._make("", "Create")

    def _do(self, name: str, *args: Any) -> None:
        status = self._call(self._functions[name], *args)
        if status:
            text = self.vendor.statuses.get(status, "unknown")
            raise LibraryError(f"{self.vendor.prefix}{name} failed: {text} ({status})")

    def _make(self, kind: str, create: str, *args: Any) -> ctypes.c_void_p:
        """A new object of the library's, destroyed by `close`."""
        made = ctypes.c_void_p()
        self._do(create, ctypes.byref(made), *args)
        self._made.append((f"{kind}Destroy", made))
        return made

    def _set(self, kind: str, what: ctypes.c_void_p, attribute: Any, value: int) -> None:
        number, ctype = attribute
        held = ctype(value)
        self._do(f"{kind}SetAttribute", what, number, ctypes.byref(held), ctypes.sizeof(held))

    def _drop(self, made: int = 0) -> None:
        """Destroys what was made after the first `made`, the last first."""
        while len(self._made) > made:
            name, what = self._made.pop()
            self._do(name, what)

    def close(self) -> None:
        """Destroys everything made, the handle last. No product of it may run then."""
        self._products.clear()
        self._drop()
        if self._workspace:
            self._memory.free(self._workspace)
            self._workspace = 0

    # -- products

    def product(self, gemm: Gemm, starts: tuple[int, ...]) -> Product | str:
        """The product, ready to run, or why the library does not do it. `starts` are the bytes at
        which its kernel's arguments start, in memory that is aligned to ALIGN. The library is asked
        once per product and alignment; this may not be called in a recording."""

        def place(x: Matrix) -> int:
            return starts[x.arg] + x.offset * x.dtype.itemsize

        if gemm.bias is not None and place(gemm.bias) % _BIAS_ALIGN:
            return f"{self.name} may fault at a bias that starts at no multiple of {_BIAS_ALIGN}"
        every = gemm.b, gemm.a, gemm.residual or gemm.c, gemm.c
        aligned = tuple(_alignment(place(x)) for x in every)
        key = gemm, aligned
        if key not in self._products:
            made = len(self._made)
            try:
                found = self._ask(gemm, aligned)
            except LibraryError as error:
                found = str(error)
            if isinstance(found, str):
                self._drop(made)
            self._products[key] = found
        return self._products[key]

    def _ask(self, g: Gemm, aligned: tuple[int, ...]) -> Product | str:
        if not self._workspace:
            self._workspace = self._memory.alloc(self._nbytes)
        desc = self._desc(g)
        layouts = tuple(
            self._layout(g, x, *sides)
            for x, sides in (
                (g.b, (g.k, g.n)), (g.a, (g.m, g.k)), (g.residual or g.c, (g.m, g.n)),
                (g.c, (g.m, g.n)),
            )
        )  # fmt: skip
        made = len(self._made)
        preference = self._preference(aligned)
        result = ctypes.create_string_buffer(_RESULT)
        count = ctypes.c_int(0)
        self._do(
            "MatmulAlgoGetHeuristic", self._handle, desc, *layouts, preference, 1, result,
            ctypes.byref(count),
        )  # fmt: skip
        self._drop(made)
        at = self.vendor.state
        status = 0 if at is None else ctypes.c_int.from_buffer(result, at).value
        if not count.value or status:
            return f"{self.name} has no algorithm for it"
        return Product(self, g, desc, layouts, result)

    def _desc(self, g: Gemm) -> ctypes.c_void_p:
        kind, numbers = "MatmulDesc", self.vendor.desc
        compute, scale = blas_api.compute_type(self.vendor, g.a.dtype, self.tf32)
        desc = self._make(kind, "MatmulDescCreate", compute, scale)
        for name, x in (("left", g.b), ("right", g.a)):
            self._set(kind, desc, numbers[name], self.vendor.operations[not x.row_major])
        epilogue = (blas_api.BIAS if g.bias else 0) | (blas_api.GELU if g.gelu else 0)
        self._set(kind, desc, numbers["epilogue"], epilogue or blas_api.DEFAULT)
        if g.bias is not None:
            # hipBLASLt finds no algorithm while there is no bias; `run` says where it is
            self._set(kind, desc, numbers["bias"], self._workspace)
            if "bias_type" in numbers:
                self._set(kind, desc, numbers["bias_type"], TYPES[g.bias.dtype])
        return desc

    def _layout(self, g: Gemm, x: Matrix, rows: int, columns: int) -> ctypes.c_void_p:
        """`x` by columns: what lies next to each other comes first."""
        kind, numbers = "MatrixLayout", self.vendor.layout
        sides = (columns, rows) if x.row_major else (rows, columns)
        layout = self._make(kind, "MatrixLayoutCreate", TYPES[x.dtype], *sides, x.ld)
        if g.batch > 1:
            self._set(kind, layout, numbers["batch"], g.batch)
            self._set(kind, layout, numbers["stride"], x.strides[0])
        return layout

    def _preference(self, aligned: tuple[int, ...]) -> ctypes.c_void_p:
        kind, numbers = "MatmulPreference", self.vendor.preference
        made = self._make(kind, "MatmulPreferenceCreate")
        self._set(kind, made, numbers["workspace"], self._nbytes)
        if "reduction" in numbers:
            self._set(kind, made, numbers["reduction"], _REDUCTION)
        for name, nbytes in zip(("left", "right", "added", "result"), aligned):
            if f"align_{name}" in numbers:
                self._set(kind, made, numbers[f"align_{name}"], nbytes)
        return made

    def run(self, product: Product, args: Sequence[int]) -> None:
        """Asks for the product on the stream; `args` are the addresses of its kernel's arguments.
        Raises DeviceError."""
        g = product.gemm

        def at(x: Matrix) -> int:
            return args[x.arg] + x.offset * x.dtype.itemsize

        if g.bias is not None:
            self._set("MatmulDesc", product.desc, self.vendor.desc["bias"], at(g.bias))
        kind = ctypes.c_float if g.a.dtype.is_float else ctypes.c_int32
        zero, one = self._scalars[kind]
        beta = zero if g.residual is None else one
        left, right, added, result = product.layouts
        self._do(
            "Matmul", self._handle, product.desc, ctypes.byref(one), at(g.b), left, at(g.a), right,
            ctypes.byref(beta), at(g.residual or g.c), added, at(g.c), result, product.algorithm,
            self._workspace, self._nbytes, self._stream,
        )  # fmt: skip


def _alignment(place: int) -> int:
    """The largest power of two, up to ALIGN, that divides a place in bytes."""
    return min(place & -place, ALIGN) if place else ALIGN


def open_blas(vendor: Vendor, call: Call, stream: int, memory: DriverMemory) -> Blas:
    """The vendor's library on a device, as the environment wishes. Raises DeviceError saying why
    there is none, UsageError for a wish that is none."""
    wish = os.environ.get("WEFT_BLAS", "").strip().lower()
    if wish not in ("", "on", "off", "tf32"):
        raise UsageError(f'WEFT_BLAS={wish[:40]!r}; use "on", "off" or "tf32"')
    if wish == "off":
        raise DeviceError("turned off by WEFT_BLAS=off")
    if not wish and not vendor.ordered:
        raise DeviceError(
            f"{vendor.name} may sum in another order in each run; WEFT_BLAS=on uses it anyway"
        )
    return Blas(vendor, blas_api.find(vendor), call, stream, memory, wish == "tf32")
