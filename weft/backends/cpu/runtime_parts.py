"""The parts of the CPU runtime (see runtime.py): tickets, chunks, costs, sleeping, Copy, Fill."""

from __future__ import annotations

from weft.backends.cpu.layout import entry_field, pool_field
from weft.backends.cpu.native import NativeFunction, NativeSlot, NativeValue

_PRIVATE_WAIT, _PRIVATE_WAKE = 128, 129  # FUTEX_WAIT and FUTEX_WAKE among one process's threads
_KERNEL = "ptr args, ptr s, i32 x, i32 y, i32 z, i64 begin, i64 end, ptr w"


def functions(clock: str, pause: str) -> list[NativeFunction]:
    """All of them, for a machine with this clock and spin hint ("" for none)."""
    return [
        _clock(clock), _take(), _grab(), _play(), _first(), _chunk(), _learn(), _alone_step(clock),
        _futex_wake(), _futex_wait(), _wait_done(pause), _copy(), _fill(),
    ]  # fmt: skip


def ticket(pool: NativeValue, slice_: NativeValue) -> NativeSlot:
    """The ticket of a thread's slice."""
    return pool_field(pool, "tickets").address.at("i64", slice_, 64)


def work_of(entry: NativeValue) -> tuple[NativeValue, NativeValue]:
    """The ticks that a step takes on one thread as far as is known (else 0), and its groups."""
    groups = entry_field(entry, "groups").get()
    return (entry_field(entry, "cost").get() * groups) >> 8, groups


def _clock(clock: str) -> NativeFunction:
    f = NativeFunction("weft_clock", "", "i64", local=False)
    f.give(f.call(clock, "i64"))
    return f


def _take() -> NativeFunction:
    """Takes a chunk from the ticket at `word`: how many were left, 0 for none."""
    f = NativeFunction("take", "ptr word", "i32")
    word = f["word"].at("i64")
    now = f.variable("i64", word.get("acquire"))
    with f.loop():
        held = now.get()
        left = held.to("i32")
        with f.when(left.same(0)):
            f.give(0)
        seen, won = word.exchange(held, held - 1, "acq_rel acquire")
        with f.when(won):
            f.give(left)
        now.set(seen)
    return f


def _grab() -> NativeFunction:
    """A chunk of thread `me`'s own slice, else of the others' in turn: slice << 32 | left, or 0."""
    f = NativeFunction("grab", "ptr pool, i64 me, i64 threads", "i64")
    with f.count(f["threads"]) as k:
        straight = f["me"] + k
        wrapped = straight - f["threads"]
        slice_ = f.choose(straight >= f["threads"], wrapped, straight)
        left = f.call("take", "i32", ticket(f["pool"], slice_).address)
        with f.when(left.differs(0)):
            f.give((slice_ << 32) | left.to("i64"))
    f.give(0)
    return f


def _play() -> NativeFunction:
    """Runs the groups from `begin` to `end` of a step's part."""
    f = NativeFunction("play", "ptr entry, ptr scalars, i64 begin, i64 end, ptr scratch")
    fn, args, *grid = (entry_field(f["entry"], n).get() for n in ("fn", "args", "gx", "gy", "gz"))
    first = entry_field(f["entry"], "first").get().to("i64")
    begin, end = f["begin"] + first, f["end"] + first
    f.call(fn, "void", args, f["scalars"], *grid, begin, end, f["scratch"])
    return f


def _first() -> NativeFunction:
    """The first chunk of slice `slice` when `threads` slices share `chunks` chunks."""
    f = NativeFunction("first", "i64 slice, i64 threads, i64 chunks", "i64")
    f.give(f["slice"] * f["chunks"] // f["threads"])
    return f


def _chunk() -> NativeFunction:
    """Plays the chunk that `grab` returned as `ticket`; returns its number of groups."""
    f = NativeFunction(
        "chunk", "ptr entry, i64 ticket, i64 threads, ptr scalars, ptr scratch", "i64"
    )
    groups, size, chunks = (entry_field(f["entry"], n).get() for n in ("groups", "chunk", "chunks"))
    left = f["ticket"] & 0xFFFFFFFF
    beyond = (f["ticket"] >> 32) + 1
    number = f.call("first", "i64", beyond, f["threads"], chunks.to("i64")) - left
    begin = number * size
    end = f.least(begin + size, groups)
    f.call("play", "void", f["entry"], f["scalars"], begin, end, f["scratch"])
    f.give(end - begin)
    return f


def _learn() -> NativeFunction:
    """Falls at once to a lower cost per group and rises slowly, so that an interruption counts
    little."""
    f = NativeFunction("learn", "ptr entry, i64 ticks, i64 groups")
    with f.when(f["groups"] > 0):
        now = f.most((f["ticks"] << 8) // f["groups"], 1)
        cost = entry_field(f["entry"], "cost")
        old = cost.get()
        slow = old + (now - old).half(3)
        cost.set(f.choose((now < old) | old.same(0), now, slow))
    return f


def _alone_step(clock: str) -> NativeFunction:
    """Plays a whole step on this thread and learns what it costs."""
    f = NativeFunction("alone_step", "ptr entry, ptr scalars, ptr scratch")
    groups = entry_field(f["entry"], "groups").get()
    with f.when(groups > 0):
        start = f.call(clock, "i64")
        f.call("play", "void", f["entry"], f["scalars"], f.const("i64", 0), groups, f["scratch"])
        f.call("learn", "void", f["entry"], f.call(clock, "i64") - start, groups)
    return f


def _futex(f: NativeFunction, word: NativeValue, operation: int, value: NativeValue) -> None:
    """The system call futex(word, operation, value)."""
    number, zero = pool_field(f["pool"], "futex").get(), f.const("i64", 0)
    what = f.const("i64", operation)
    call = pool_field(f["pool"], "syscall").get()
    f.call(call, "i64", number, word, what, value, zero, zero, zero, form="i64 (i64, ...)")


def _futex_wake() -> NativeFunction:
    """Wakes up to `count` threads that sleep on `word`."""
    f = NativeFunction("futex_wake", "ptr pool, ptr word, i64 count")
    with f.when(pool_field(f["pool"], "syscall").get().missing()):
        f.give()
    _futex(f, f["word"], _PRIVATE_WAKE, f["count"])
    return f


def _futex_wait() -> NativeFunction:
    """Sleeps while *word is `seen`; without a futex, yields the time slice."""
    f = NativeFunction("futex_wait", "ptr pool, ptr word, i32 seen")
    with f.when(pool_field(f["pool"], "syscall").get().missing()):
        f.call(pool_field(f["pool"], "yield").get(), "i32")
        f.give()
    _futex(f, f["word"], _PRIVATE_WAIT, f["seen"].to("i64"))
    return f


def _wait_done(pause: str) -> NativeFunction:
    """Returns when `chunks` chunks are done: spins first, then sleeps."""
    f = NativeFunction("wait_done", "ptr pool, i32 chunks")
    done, waits = pool_field(f["pool"], "done"), pool_field(f["pool"], "caller_waits")
    with f.count(pool_field(f["pool"], "spins").get().to("i64")):
        with f.when(done.get("acquire").same(f["chunks"])):
            f.give()
        pause_here(f, pause)
    with f.loop() as loop:
        waits.set(1, "seq_cst")
        seen = done.get("seq_cst")
        loop.leave(seen.same(f["chunks"]))
        f.call("futex_wait", "void", f["pool"], done.address, seen)
    waits.set(0, "seq_cst")
    return f


def pause_here(f: NativeFunction, pause: str) -> None:
    """The processor's spin hint."""
    if pause:
        f.line(f"call void @{pause}")


def _bytes(f: NativeFunction) -> tuple[NativeValue, NativeValue, NativeValue]:
    """Returns destination, first byte and number of bytes of the given groups, for Copy and Fill.
    `args` are destination, source or byte, bytes, bytes per group."""
    to = f["args"].at("ptr").get()
    nbytes, size = f["args"].at("i64", 16).get(), f["args"].at("i64", 24).get()
    first = f["begin"] * size
    return to, first, f.least(f["end"] * size, nbytes) - first


def _copy() -> NativeFunction:
    f = NativeFunction("weft_copy", _KERNEL, local=False)
    to, first, count = _bytes(f)
    source = f["args"].at("ptr", 8).get().at("i8", first).address
    target = to.at("i8", first).address
    f.call("llvm.memmove.p0.p0.i64", "void", target, source, count, f.const("i1", 0))
    return f


def _fill() -> NativeFunction:
    f = NativeFunction("weft_fill", _KERNEL, local=False)
    to, first, count = _bytes(f)
    byte = f["args"].at("i64", 8).get().to("i8")
    f.call("llvm.memset.p0.i64", "void", to.at("i8", first).address, byte, count, f.const("i1", 0))
    return f
