"""The CPU runtime's main functions (see runtime.py): a shared step, a run, a worker's loop."""

from __future__ import annotations

from weft.backends.cpu.layout import entry_field, pool_field
from weft.backends.cpu.native import NativeFunction, NativeValue
from weft.backends.cpu.runtime_parts import pause_here, ticket, work_of

_ENTRY_BYTES = 64
_CHUNKS = 4  # 2**4 chunks per thread at most


def functions(clock: str, pause: str) -> list[NativeFunction]:
    """All of them, for a machine with this clock and spin hint ("" for none)."""
    return [_cut(), _publish(), _parallel(clock), _busy(), _alone(), _run(), _worker(pause)]


def _cut() -> NativeFunction:
    """Cuts a step of `work` ticks (0: unknown) into chunks of groups; returns how many."""
    f = NativeFunction("cut", "ptr pool, ptr entry, i64 work, i64 threads", "i64")
    groups = entry_field(f["entry"], "groups").get()
    most = f["threads"] << _CHUNKS
    cut = f["work"] // pool_field(f["pool"], "chunk_ticks").get()
    wish = f.choose(f["work"].same(0), most, cut)
    wanted = f.least(f.most(wish, f["threads"]), most)
    size = (groups + wanted - 1) // wanted
    chunks = (groups + size - 1) // size
    entry_field(f["entry"], "chunk").set(size)
    entry_field(f["entry"], "chunks").set(chunks.to("i32"))
    f.give(chunks)
    return f


def _publish() -> NativeFunction:
    """Gives each thread the ticket of its slice of `chunks` chunks, and wakes the sleepers."""
    f = NativeFunction("publish", "ptr pool, i64 threads, i64 chunks")
    pool, first = f["pool"], f.const("i64", 0)
    step = ticket(pool, first).get("monotonic") >> 32
    high = (step + 1) << 32
    with f.count(f["threads"]) as slice_:
        start, end = (
            f.call("first", "i64", at, f["threads"], f["chunks"]) for at in (slice_, slice_ + 1)
        )
        ticket(pool, slice_).set(high | (end - start), "release")
    wake = pool_field(pool, "wake")
    wake.add(1, "seq_cst")
    with f.when(pool_field(pool, "sleepers").get("seq_cst") > 0):
        f.call("futex_wake", "void", pool, wake.address, f["chunks"] - 1)
    return f


def _parallel(clock: str) -> NativeFunction:
    """Plays a step with the workers' help and learns what it costs."""
    f = NativeFunction("parallel", "ptr pool, ptr entry, i64 work, ptr scalars, ptr scratch")
    pool, entry = f["pool"], f["entry"]
    threads = pool_field(pool, "threads").get().to("i64")
    chunks = f.call("cut", "i64", pool, entry, f["work"], threads)
    pool_field(pool, "entry").set(entry)
    done = pool_field(pool, "done")
    done.set(0, "monotonic")
    f.call("publish", "void", pool, threads, chunks)
    groups, ticks, taken = f.variable("i64"), f.variable("i64"), f.variable("i32")
    with f.loop() as loop:
        got = f.call("grab", "i64", pool, f.const("i64", 0), threads)
        loop.leave(got.same(0))
        start = f.call(clock, "i64")
        count = f.call("chunk", "i64", entry, got, threads, f["scalars"], f["scratch"])
        ticks.set(ticks.get() + (f.call(clock, "i64") - start))
        groups.set(groups.get() + count)
        taken.set(taken.get() + 1)
    done.add(taken.get(), "acq_rel")
    f.call("wait_done", "void", pool, chunks.to("i32"))
    f.call("learn", "void", entry, ticks.get(), groups.get())
    return f


def _step(table: NativeValue, number: NativeValue) -> NativeValue:
    return table.at("i64", number, _ENTRY_BYTES).address


def _busy() -> NativeFunction:
    """Does this run hold steps worth sharing (each `least` ticks) that come to `enough` ticks?"""
    f = NativeFunction("busy", "ptr table, i64 steps, i64 least, i64 enough", "i1")
    sum_ = f.variable("i64")
    with f.count(f["steps"]) as i:
        work, groups = work_of(_step(f["table"], i))
        with f.when((work >= f["least"]) & (groups > 1)):
            sum_.set(sum_.get() + work)
        with f.when(sum_.get() >= f["enough"]):
            f.give(1)
    f.give(0)
    return f


def _alone() -> NativeFunction:
    """Plays all steps on this thread."""
    f = NativeFunction("weft_alone", "ptr table, i64 steps, ptr scalars, ptr scratch", local=False)
    with f.count(f["steps"]) as i:
        f.call("alone_step", "void", _step(f["table"], i), f["scalars"], f["scratch"])
    return f


def _run() -> NativeFunction:
    """Plays all steps, each on as many threads as it is worth."""
    f = NativeFunction("weft_run", "ptr pool, ptr table, i64 steps, ptr scalars", local=False)
    pool, table, steps = f["pool"], f["table"], f["steps"]
    pool_field(pool, "scalars").set(f["scalars"])
    scratch = pool_field(pool, "scratch").get()
    little, wake = (pool_field(pool, name).get() for name in ("serial_ticks", "wake_ticks"))
    sleepers = pool_field(pool, "sleepers")
    asleep = sleepers.get("monotonic")
    with (
        f.when(asleep > 0),
        f.when(f.call("busy", "i1", table, steps, little, wake << 2)),
    ):
        word = pool_field(pool, "wake")
        word.add(1, "seq_cst")
        f.call("futex_wake", "void", pool, word.address, asleep.to("i64"))
    with f.count(steps) as i:
        entry = _step(table, i)
        work, groups = work_of(entry)
        limit = f.choose(sleepers.get("monotonic") > 0, wake, little)
        tiny = entry_field(entry, "cost").get().differs(0) & (work < limit)
        short = tiny | (groups <= 1)
        with f.when(short):
            f.call("alone_step", "void", entry, f["scalars"], scratch)
        with f.when(short.same(0)):
            f.call("parallel", "void", pool, entry, work, f["scalars"], scratch)
    return f


def _worker(pause: str) -> NativeFunction:
    """Takes chunks until a stop order (returns 0) or, without a futex, until none arrives for long
    (returns 1)."""
    f = NativeFunction("weft_worker", "ptr pool, ptr scratch, i64 me", "i32", local=False)
    pool = f["pool"]
    wake, done = pool_field(pool, "wake"), pool_field(pool, "done")
    waits, sleepers = pool_field(pool, "caller_waits"), pool_field(pool, "sleepers")
    limit = pool_field(pool, "spins").get().to("i64")
    threads = pool_field(pool, "threads").get().to("i64")
    with f.loop() as look:
        # Read before the tickets: while it stays the same, no ticket has been added since.
        seen = wake.get("seq_cst")
        got = f.call("grab", "i64", pool, f["me"], threads)
        with f.when(got.differs(0)):
            entry, scalars = (pool_field(pool, name).get() for name in ("entry", "scalars"))
            chunks = entry_field(entry, "chunks").get()
            f.call("chunk", "i64", entry, got, threads, scalars, f["scratch"])
            last = (done.add(1, "seq_cst") + 1).same(chunks)
            with f.when(last & waits.get("seq_cst").differs(0)):
                f.call("futex_wake", "void", pool, done.address, f.const("i64", 1))
            look.again()
        with f.count(limit):
            look.again(wake.get("acquire").differs(seen))
            pause_here(f, pause)
        with f.when(pool_field(pool, "stop").get("seq_cst").differs(0)):
            f.give(0)
        with f.when(pool_field(pool, "syscall").get().missing()):
            f.give(1)
        sleepers.add(1, "seq_cst")
        with f.when(wake.get("seq_cst").same(seen)):
            f.call("futex_wait", "void", pool, wake.address, seen)
        sleepers.add(-1, "seq_cst")
    return f
