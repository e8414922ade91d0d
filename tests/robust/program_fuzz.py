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
import copy
import functools
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "program")]

from fenced import FencedCpu, Interp  # noqa: E402
from programs import small_graph  # noqa: E402

import weft  # noqa: E402
from weft.compile import compile_graph  # noqa: E402
from weft.core import dtypes as dt  # noqa: E402
from weft.core.caps import PRESETS, Caps  # noqa: E402
from weft.core.errors import WeftError  # noqa: E402
from weft.kernel import interp, ir  # noqa: E402
from weft.kernel.ir import Kernel  # noqa: E402
from weft.kernel.printer import kernel_hash  # noqa: E402
from weft.program import foreign, kernel_json, serial  # noqa: E402
from weft.program.program import BufferSpec, Program  # noqa: E402
from weft.program.session import Session  # noqa: E402
from weft.tensor.tracing import Spec, trace  # noqa: E402

Rng = np.random.Generator
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

Spot = tuple[Any, Any]  # a list or dict, and where in it
NUMBERS = [0, 1, -1, 2, 3, 7, 16, 64, 255, 4096, 1 << 16, 1 << 30, (1 << 31) - 1, -(1 << 31)]


def nodes(value: Any, name: str = "") -> Iterator[tuple[Spot, list[Any]]]:
    """Every node in a body, and where it stands."""
    if isinstance(value, list):
        for n, inner in enumerate(value):
            if isinstance(inner, list):
                if inner and isinstance(inner[0], str) and inner[0]:
                    yield (value, n), inner
                yield from nodes(inner)


def number(old: int, rng: Rng) -> int:
    """Another number, often one nearby."""
    near = [old + 1, old - 1, old * 2, old // 2, -old, old + 16, old - 16, old + 100]
    return int(rng.choice(near if rng.random() < 0.7 else NUMBERS))


def places(kind: str, names: tuple[str, ...]) -> list[int]:
    """Where in the list of a node these fields stand."""
    every = [f.name for f in fields(kernel_json._NODES[kind])]
    return [every.index(name) + 1 for name in names]


def change_number(body: Any, rng: Rng) -> None:
    spots = []
    for _, node in nodes(body):
        for names in (("value",), ("size",), ("step",), ("stride",), ("rows",), ("cols",), ("dim",),
                      ("slot",), ("attr",), ("barriers",)):  # fmt: skip
            for name in names:
                if name in kernel_json._FIELDS[node[0]]:
                    at = places(node[0], (name,))[0]
                    if type(node[at]) is int:
                        spots.append((node, at))
    if spots:
        node, at = spots[rng.integers(len(spots))]
        node[at] = number(node[at], rng)


def change_operator(body: Any, rng: Rng) -> None:
    found = [node for _, node in nodes(body) if node[0] == "Binary"]
    if found:
        node = found[rng.integers(len(found))]
        arith = ir.COMPARE if node[1] in ir.COMPARE else ir.ARITH
        node[1] = str(rng.choice(arith))


def change_expression(body: Any, rng: Rng) -> None:
    """One expression in the place of another of its type."""
    typed: dict[str, list[tuple[Spot, list[Any]]]] = {}
    for spot, node in nodes(body):
        names = kernel_json._FIELDS[node[0]]
        if "type" in names:
            typed.setdefault(node[names.index("type") + 1], []).append((spot, node))
    kinds = [kind for kind, found in typed.items() if len(found) > 1]
    if kinds:
        kind = "int32" if "int32" in kinds and rng.random() < 0.7 else str(rng.choice(kinds))
        found = typed[kind]
        (owner, at), _ = found[rng.integers(len(found))]
        owner[at] = copy.deepcopy(found[rng.integers(len(found))][1])


def change_lanes(body: Any, rng: Rng) -> None:
    found = [n for _, n in nodes(body) if n[0] in ("Load", "Vec", "Const", "Cast", "Binary")]
    if found:
        node = found[rng.integers(len(found))]
        at = kernel_json._FIELDS[node[0]].index("type") + 1
        dtype = node[at].partition("x")[0]
        node[at] = str(
            rng.choice([dtype, f"{dtype}x2", f"{dtype}x8", f"{dtype}x16", f"{dtype}x32"])
        )


def drop_mask(body: Any, rng: Rng) -> None:
    found = [n for _, n in nodes(body) if n[0] in ("Load", "Store") and n[4] is not None]
    if found:
        found[rng.integers(len(found))][4] = None


def change_source(body: Any, rng: Rng) -> None:
    """Another buffer or array in an access."""
    found = [n for _, n in nodes(body) if n[0] in ("Load", "Store", "TileOp", "Prefetch")]
    names = [n[1] for n in found if n[0] != "TileOp"]
    if found and names:
        node = found[rng.integers(len(found))]
        node[3 if node[0] == "TileOp" else 1] = str(rng.choice(names))


def change_statements(body: Any, rng: Rng) -> None:
    """One statement less, twice, or two in the other order."""
    blocks = [node[1] for _, node in nodes([body]) if node[0] == "Block" and len(node[1]) > 2]
    if not blocks:
        return
    block = blocks[rng.integers(len(blocks))]
    at, kind = int(rng.integers(1, len(block))), rng.integers(3)
    if kind == 0:
        del block[at]
    elif kind == 1:
        block.insert(at, copy.deepcopy(block[at]))
    else:
        other = int(rng.integers(1, len(block)))
        block[at], block[other] = block[other], block[at]


def change_loop(body: Any, rng: Rng) -> None:
    found = [n for _, n in nodes(body) if n[0] == "For"]
    if found:
        node = found[rng.integers(len(found))]
        kind = rng.integers(3)
        if kind == 0:
            node[6] = not node[6]
        else:
            node[1 + int(kind)] = ["Const", number(16, rng), "int32"]


def open_condition(body: Any, rng: Rng) -> None:
    found = [n for _, n in nodes(body) if n[0] == "If"]
    if found:
        found[rng.integers(len(found))][1] = ["Const", bool(rng.integers(2)), "bool"]


BODY = [
    change_number, change_number, change_number, change_number, change_operator, change_operator,
    change_expression, change_expression, change_lanes, drop_mask, change_source,
    change_statements, change_loop, open_condition,
]  # fmt: skip


def change_head(doc: dict[str, Any], rng: Rng) -> None:
    """Sizes, accesses, grids and threads of a kernel; places of steps; buffers; order."""
    head = doc["head"]
    kernel = head["kernels"][rng.integers(len(head["kernels"]))]
    kind = rng.integers(8)
    if kind == 0:
        axis = int(rng.integers(3))
        kernel["grid"][axis] = ["Const", number(3, rng), "int32"]
    elif kind == 1:
        kernel["threads"][int(rng.integers(3))] = number(kernel["threads"][0], rng)
    elif kind == 2:
        buffer = kernel["buffers"][rng.integers(len(kernel["buffers"]))]
        which = int(rng.integers(3))
        buffer[1 + which] = [
            str(rng.choice(["float32", "int32", "uint8", "bfloat16"])), number(buffer[2], rng),
            str(rng.choice(["r", "w", "rw"])),
        ][which]  # fmt: skip
    elif kind == 3 and len(head["steps"]) > 1:
        a, b = rng.integers(len(head["steps"]), size=2)
        head["steps"][a], head["steps"][b] = head["steps"][b], head["steps"][a]
    elif kind == 4:
        buffer = head["buffers"][rng.integers(len(head["buffers"]))]
        what = rng.integers(3)
        if what == 0:
            buffer[1] = str(rng.choice(["input", "output", "state", "weight", "const", "arena"]))
        elif what == 1:
            buffer[4] = number(buffer[4], rng)
        elif buffer[3]:
            buffer[3][0] = number(buffer[3][0], rng)
            buffer[4] = int(np.prod(buffer[3])) * dt.as_dtype(buffer[2]).itemsize
    elif kind == 5:
        step = head["steps"][rng.integers(len(head["steps"]))]
        ref = step[2][rng.integers(len(step[2]))] if step[0] == "dispatch" else step[1]
        ref[int(rng.integers(3))] = number(ref[int(rng.integers(3))], rng)
    elif kind == 6:
        shrink(head, kernel, rng)
    else:
        step = head["steps"][rng.integers(len(head["steps"]))]
        if step[0] == "dispatch":
            step[1] = number(step[1], rng)


def shrink(head: dict[str, Any], kernel: dict[str, Any], rng: Rng) -> None:
    """A buffer of a kernel made smaller, honestly everywhere."""
    which = int(rng.integers(len(kernel["buffers"])))
    _, dtype, size, _ = kernel["buffers"][which]
    smaller = int(rng.integers(max(size, 1)))
    kernel["buffers"][which][2] = smaller
    index = head["kernels"].index(kernel)
    for step in head["steps"]:
        if step[0] == "dispatch" and step[1] == index and which < len(step[2]):
            step[2][which][2] = smaller * dt.as_dtype(dtype).itemsize


def changed(doc: dict[str, Any], rng: Rng) -> dict[str, Any]:
    doc = copy.deepcopy(doc)
    for _ in range(rng.integers(1, 4)):
        if rng.random() < 0.25:
            change_head(doc, rng)
        else:
            bodies = doc["bodies"]
            BODY[rng.integers(len(BODY))]([bodies[rng.integers(len(bodies))]], rng)
    seal(doc)
    return doc


def seal(doc: dict[str, Any]) -> None:
    """Writes the digest that each kernel has now, where it is one at all."""
    for head, body in zip(doc["head"]["kernels"], doc["bodies"]):
        try:
            lazy = kernel_json.read_kernel(
                head, functools.partial(json.dumps, body), len(doc["head"]["scalars"]), trusted=True
            )
            whole = Kernel(**{f.name: getattr(lazy, f.name) for f in fields(Kernel)})
            head["digest"] = kernel_hash(whole)
        except Exception:
            continue  # no kernel any more: the loader will say so


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
