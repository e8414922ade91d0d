"""Program files changed in their structure, with honest digests; what is accepted is run.

    python program_fuzz.py FIRST COUNT

plays cases FIRST .. FIRST + COUNT - 1 in this process, prints a line before and after each, and a
crash ends it. `play` starts such processes and goes on behind a crash. Each case changes one to
three things of one of some Programs: numbers, operators, types, masks, loops, statements, places,
sizes, grids, threads, roles, steps. Found are: a crash, a write outside what the Program may write,
an index outside that the interpreter meets, an error that is not weft's, and no end.
"""

from __future__ import annotations

import collections
import functools
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "program")]

from fenced import FencedCpu, Interp  # noqa: E402
from program_changes import Rng, changed  # noqa: E402
from programs import small_graph  # noqa: E402

import weft  # noqa: E402
from weft.compile import compile_graph  # noqa: E402
from weft.core import dtypes as dt  # noqa: E402
from weft.core.caps import PRESETS, Caps  # noqa: E402
from weft.core.errors import WeftError  # noqa: E402
from weft.kernel import interp  # noqa: E402
from weft.program import foreign, serial  # noqa: E402
from weft.program.program import BufferSpec, Program  # noqa: E402
from weft.program.session import Session  # noqa: E402
from weft.tensor.tracing import Spec, trace  # noqa: E402

F32 = dt.float32
MAX_STEP = 1 << 19  # statements: what an interpreter can play in the time of a test
MAX_GIVEN = 1 << 26  # bytes of inputs and weights that a case is fed
GPU = ("webgpu", "cuda")  # Caps whose Programs only the interpreter plays


# -- the Programs ---------------------------------------------------------------------------------


def traced(
    fn: Callable[..., Any], *shapes: tuple[int, ...], **dtypes: Any
) -> Callable[[Caps], Any]:
    kinds = [Spec(shape, dtypes.get(f"d{n}", F32)) for n, shape in enumerate(shapes)]
    return lambda caps: compile_graph(trace(fn, kinds), caps, "fuzzed")


SOURCES: list[Callable[[Caps], Program]] = [
    lambda caps: compile_graph(small_graph(), caps, "small"),
    traced(lambda x, w, b: weft.functional.layer_norm(weft.functional.gelu(x @ w), b, b),
           (33, 20), (20, 24), (24,)),
    traced(lambda x: weft.functional.softmax(x[:, ::2], -1), (7, 90)),
    traced(lambda x, i: weft.functional.embedding(i, x), (11, 12), (9,), d1=dt.int32),
    traced(lambda q, k, v: weft.functional.attention(q, k, v, causal=True),
           (1, 2, 9, 16), (1, 1, 20, 16), (1, 1, 20, 16)),
    traced(lambda x: weft.sort(x, axis=1), (3, 21)),
    traced(lambda x, y: weft.concat([x.sum(axis=0), y.max(axis=1)]), (17, 9), (5, 40)),
    traced(lambda x, w: x @ w.T, (1, 64), (48, 64), d0=dt.bfloat16, d1=dt.bfloat16),
]  # fmt: skip


@functools.cache
def documents(caps_name: str) -> list[dict[str, Any]]:
    """Each Program as JSON values: program.json, and the bodies of kernels.json."""
    caps = FencedCpu().caps if caps_name == "cpu" else PRESETS[caps_name]
    found = []
    for source in SOURCES:
        members = serial._members(source(caps), report=False)
        head = json.loads(members["program.json"])
        bodies = [json.loads(body) for body in json.loads(members["kernels.json"])]
        consts = members["consts.safetensors"]
        found.append({"head": head, "bodies": bodies, "consts": consts})
    return found


# -- changing them --------------------------------------------------------------------------------


def load(doc: dict[str, Any]) -> Program:
    members = {
        "program.json": json.dumps(doc["head"]).encode(),
        "kernels.json": json.dumps([json.dumps(body) for body in doc["bodies"]]).encode(),
        "consts.safetensors": doc["consts"],
    }
    return serial._program(members, trusted=False)


# -- running them ---------------------------------------------------------------------------------


def values(spec: BufferSpec, rng: Rng) -> np.ndarray:
    """Content of a buffer; indices also far outside."""
    if spec.dtype.kind == "bool":
        return rng.random(spec.shape) < 0.5
    if spec.dtype.is_float:
        return rng.standard_normal(spec.shape).astype(np.float32).astype(spec.dtype.numpy)
    info = np.iinfo(spec.dtype.numpy)
    wild = rng.choice([info.min, info.max, 0, 1, 5, 8, 20, 100], spec.shape)
    return np.clip(wild, info.min, info.max).astype(spec.dtype.numpy)


def play_on(device: Any, program: Program, rng: Rng) -> None:
    """Runs the Program; raises AssertionError where more changed than may."""
    made = {b.name: values(b, rng) for b in program.buffers if b.role in ("input", "weight")}
    weights = {b.name: made[b.name] for b in program.buffers if b.role == "weight"}
    inputs = {program.buffers[i].name: made[program.buffers[i].name] for i in program.inputs}
    session = Session(program, device, weights)
    ranges = program.scalar_ranges
    scalars = {}
    for name in program.scalars:
        low, high = ranges.get(name, (-(1 << 31), (1 << 31) - 1))
        scalars[name] = int(rng.choice([low, high, min(max(3, low), high)]))
    numbers = session.prepare(inputs, scalars)
    kept = [n for n, b in enumerate(program.buffers) if b.role in ("input", "weight", "const")]
    before = [device.read(session.buffers[n], (program.buffers[n].nbytes,), dt.uint8) for n in kept]
    device.submit(device.bind(program, session.buffers), numbers)
    for n, old in zip(kept, before):
        now = device.read(session.buffers[n], (program.buffers[n].nbytes,), dt.uint8)
        assert (now == old).all(), f"buffer {program.buffers[n].name} was written"


def case(seed: int) -> str:
    """What becomes of one case: "refused", "ran", or what is wrong."""
    rng = np.random.Generator(np.random.Philox(seed))
    name = "cpu" if seed % 4 else GPU[seed // 4 % len(GPU)]
    docs = documents(name)
    doc = changed(docs[rng.integers(len(docs))], rng)
    try:
        program = load(doc)
    except WeftError as error:
        assert len(str(error).splitlines()) <= 2, error
        return "refused"
    if sum(b.nbytes for b in program.buffers if b.role in ("input", "weight")) > MAX_GIVEN:
        return "wants much"
    cpu = FencedCpu()
    cpu.at_end = bool(seed % 2)
    devices: list[Any] = [Interp(cpu.caps if name == "cpu" else PRESETS[name])]
    if name == "cpu":
        devices.append(cpu)
    said = set()
    for device in devices:
        try:
            play_on(device, program, np.random.Generator(np.random.Philox(seed + 1)))
        except WeftError as error:
            assert "is outside" not in str(error), error
            said.add(type(error).__name__)
    assert cpu.intact(), "bytes around a buffer were written"
    return "ran" if not said else f"ran to {', '.join(sorted(said))}"


def main(first: int, count: int, unguarded: bool = False) -> None:
    """`unguarded` leaves the kernels as they are in the file: what the cases find then."""
    foreign.MAX_STEP = MAX_STEP
    if unguarded:
        foreign.harmless = lambda program: program
    interp._PRIVATE = 1 << 20
    for seed in range(first, first + count):
        print(f"case {seed}", flush=True)
        try:
            result = case(seed)
        except Exception as error:
            result = f"WRONG {type(error).__name__}: {str(error)[:300]}"
        print(f"  {result}", flush=True)


def play(
    first: int, count: int, seconds: float = 60.0, unguarded: bool = False
) -> tuple[collections.Counter[str], list[str]]:
    """Plays cases in processes of their own: how often what came of one, and what is wrong. No case
    may take longer than `seconds`."""
    counted: collections.Counter[str] = collections.Counter()
    wrong: list[str] = []
    at, end = first, first + count
    while at < end:
        with tempfile.TemporaryFile("w+") as err:
            child = subprocess.Popen(
                [sys.executable, "-X", "faulthandler", __file__, str(at), str(end - at)]
                + ["unguarded"] * unguarded,
                stdout=subprocess.PIPE, stderr=err, text=True,
            )  # fmt: skip
            at, result = _watch(child, at, counted, wrong, seconds)
            if result:
                err.seek(0)
                wrong.append(f"case {at - 1}: {result} {err.read()[-1500:]}")
    return counted, wrong


def _watch(
    child: subprocess.Popen[str],
    at: int,
    counted: collections.Counter[str],
    wrong: list[str],
    seconds: float,
) -> tuple[int, str]:
    """(the next case, what ended the process if that was not its end)."""
    import threading

    assert child.stdout is not None
    timer = threading.Timer(seconds, child.kill)
    running = False
    for line in child.stdout:
        timer.cancel()
        if line.startswith("case "):
            at, running = int(line.split()[1]) + 1, True
            timer = threading.Timer(seconds, child.kill)
            timer.start()
        elif line.startswith("  "):
            running = False
            result = line.strip()
            counted[result.split(":")[0]] += 1
            if result.startswith("WRONG"):
                wrong.append(f"case {at - 1}: {result}")
    timer.cancel()
    status = child.wait()
    if running or status:
        counted["ended"] += 1
        return at, f"ended with {status}"
    return at, ""


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), "unguarded" in sys.argv)
