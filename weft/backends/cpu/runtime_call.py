"""The CPU runtime's function for Python: runs a Program over arrays that fit (direct.py)."""

from __future__ import annotations

from collections.abc import Callable

from weft.backends.cpu.native import NativeFunction, NativeValue

# CPython's PyObject and NumPy's PyArrayObject on 64-bit systems: byte offsets (direct.py makes sure
# that they hold). numpy/_core/include/numpy/ndarraytypes.h: PyArrayObject_fields.
TYPE, DATA, NDIM, SHAPE, DTYPE, FLAGS = 8, 16, 24, 32, 56, 64
FIT = 0x101  # NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED

# The words of a Program that weft_call reads, 8 bytes each; OPERAND words per argument follow.
HEADER = (
    "count", "table", "steps", "scalars", "scratch", "array", "holder", "held_at", "long",
    "pool", "save", "restore",
)  # fmt: skip
OPERAND = ("dtype", "ndim", "shape", "uses", "many")


def call() -> NativeFunction:
    """Builds a C function for Python (METH_FASTCALL) whose `self` is an array of such words.

    Arguments are arrays, or objects of type `holder` with one at byte `held_at`. If each has its
    dtype and shape, the function sets the words that point at it, runs the table and returns 1.
    Otherwise it returns 0. `uses` has pairs of a word's address and an offset to add. With a `pool`
    its
    workers help. If PyEval_SaveThread and PyEval_RestoreThread are known, it releases Python's lock
    meanwhile.
    """
    f = NativeFunction("weft_call", "ptr self, ptr args, i64 many", "ptr", local=False)
    known = f["self"].at("ptr", DATA).get()
    word = {name: known.at("i64", 8 * i) for i, name in enumerate(HEADER)}
    address = {name: known.at("ptr", 8 * i) for i, name in enumerate(HEADER)}
    long = address["long"].get()
    with f.when(f["many"].differs(word["count"].get())):
        _answer(f, long, 0)
    array, holder = address["array"].get(), address["holder"].get()
    with f.count(f["many"]) as i:
        item = f.variable("ptr", f["args"].at("ptr", i, 8).get())
        with f.when(item.get().at("ptr", TYPE).get().same(holder)):
            item.set(item.get().at("i8", word["held_at"].get()).address.at("ptr").get())
            with f.when(item.get().missing()):
                _answer(f, long, 0)
        operand = known.at("i8", 8 * len(HEADER)).address.at("i8", i, 8 * len(OPERAND)).address
        fits = f.call("fits", "i1", item.get(), array, operand)
        with f.when(fits.same(0)):
            _answer(f, long, 0)
        _point(f, operand, item.get().at("i64", DATA).get())
    save, restore, pool = (address[n].get() for n in ("save", "restore", "pool"))
    state = f.variable("ptr", save)
    with f.when(save.missing().same(0)):
        state.set(f.call(save, "ptr"))
    table, scalars, scratch = (address[n].get() for n in ("table", "scalars", "scratch"))
    steps, single = word["steps"].get(), pool.missing()
    with f.when(single):
        f.call("weft_alone", "void", table, steps, scalars, scratch)
    with f.when(single.same(0)):
        f.call("weft_run", "void", pool, table, steps, scalars)
    with f.when(save.missing().same(0)):
        f.call(restore, "void", state.get())
    _answer(f, long, 1)
    return f


def fits() -> NativeFunction:
    """Is `item` an array, exactly, of this operand's dtype and shape, contiguous and aligned?"""
    f = NativeFunction("fits", "ptr item, ptr array, ptr operand", "i1")
    item = f["item"]
    own = {name: f["operand"].at("i64", 8 * i) for i, name in enumerate(OPERAND)}
    checks: tuple[Callable[[], NativeValue], ...] = (
        lambda: item.at("ptr", TYPE).get().differs(f["array"]),
        lambda: item.at("i64", DTYPE).get().differs(own["dtype"].get()),
        lambda: (item.at("i32", FLAGS).get() & FIT).differs(FIT),
        lambda: item.at("i32", NDIM).get().to("i64").differs(own["ndim"].get()),
    )
    for wrong in checks:
        with f.when(wrong()):
            f.give(0)
    sizes = item.at("ptr", SHAPE).get()
    wanted = f["operand"].at("ptr", 8 * OPERAND.index("shape")).get()
    with (
        f.count(own["ndim"].get()) as axis,
        f.when(sizes.at("i64", axis, 8).get().differs(wanted.at("i64", axis, 8).get())),
    ):
        f.give(0)
    f.give(1)
    return f


def _point(f: NativeFunction, operand: NativeValue, data: NativeValue) -> None:
    """Sets the words that use an operand."""
    uses = operand.at("ptr", 8 * OPERAND.index("uses")).get()
    with f.count(operand.at("i64", 8 * OPERAND.index("many")).get()) as use:
        pair = uses.at("i8", use, 16).address
        pair.at("ptr").get().at("i64").set(data + pair.at("i64", 8).get())


def _answer(f: NativeFunction, long: NativeValue, number: int) -> None:
    """Returns a Python int, made by PyLong_FromLong."""
    f.give(f.call(long, "ptr", f.const("i64", number)))
