"""Program files from strangers, with honest digests: nothing outside is read or written, nothing
runs for ever, nothing unbounded is asked for."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import program_changes
import program_fuzz as fuzz
import pytest
from fenced import FencedCpu

from weft.backends.registry import get
from weft.compile import compile_graph
from weft.core import dtypes as dt
from weft.core.errors import FileFormatError, OutOfMemoryError, UsageError, WeftError
from weft.kernel.printer import kernel_hash, text
from weft.program import serial
from weft.program.program import Program
from weft.program.session import Session
from weft.tensor.tracing import Spec, trace

Doc = dict[str, Any]
GOOD = (np.arange(64, dtype=np.float32) * np.float32(1e18) + np.float32(1)).tolist()


def document(program: Program) -> Doc:
    members = serial._members(program, report=False)
    return {
        "head": json.loads(members["program.json"]),
        "bodies": [json.loads(body) for body in json.loads(members["kernels.json"])],
        "consts": members["consts.safetensors"],
    }


def compiled(fn: Any, *shapes: tuple[int, ...]) -> Program:
    return compile_graph(trace(fn, [Spec(s, dt.float32) for s in shapes]), get("cpu").caps, "p")


@pytest.fixture(scope="module")
def plain() -> Doc:
    """out = x * 1e18 + 1: even the small numbers that poison is would show."""
    return document(compiled(lambda x: x * 1e18 + 1, (64,)))


def shifted(doc: Doc, by: int, kinds: tuple[str, ...]) -> Doc:
    """The attack: indices of accesses shifted in kernels.json, the digest computed again."""
    doc = copy.deepcopy(doc)
    for _, node in program_changes.nodes(doc["bodies"]):
        if node[0] in kinds:
            node[2] = ["Binary", "add", node[2], ["Const", by, "int32"], "int32"]
    program_changes.seal(doc)
    return doc


CHILD = """
import json, sys
import numpy as np
import program_fuzz as fuzz
from fenced import FencedCpu
from weft.program.session import Session
for line in sys.stdin:
    doc = json.loads(line)
    doc["consts"] = bytes.fromhex(doc["consts"])
    device = FencedCpu()
    out = Session(fuzz.load(doc), device).run([np.arange(64, dtype=np.float32)])[0]
    assert device.intact(), "written around a buffer"
    print(json.dumps(out.tolist()), flush=True)
"""


def in_a_child(docs: list[Doc]) -> list[list[float]]:
    """The outputs of Programs run between forbidden pages, in a process that may crash."""
    sent = "\n".join(json.dumps({**doc, "consts": doc["consts"].hex()}) for doc in docs)
    here = str(Path(__file__).parent)
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {here!r}){CHILD}"],
        input=sent, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, (len(found), done.stderr[-2000:])
    assert len(found) == len(docs)
    return found


FAR = (1, -3, 4096, 1 << 20, -(1 << 30), (1 << 31) - 64)


def test_a_shifted_store_goes_nowhere(plain: Doc) -> None:
    for got in in_a_child([shifted(plain, by, ("Store",)) for by in FAR]):
        assert set(got) <= {0.0, *GOOD} and 0.0 in got


def test_a_shifted_load_reads_nothing(plain: Doc) -> None:
    for got in in_a_child([shifted(plain, by, ("Load",)) for by in FAR]):
        assert set(got) <= set(GOOD) and got.count(GOOD[0]) > 1


def test_the_digest_alone_is_no_protection(plain: Doc) -> None:
    doc = copy.deepcopy(plain)
    doc["head"]["kernels"][0]["digest"] = "0" * 64
    with pytest.raises(FileFormatError, match="digest"):
        fuzz.load(doc)
    fuzz.load(plain)


# -- what is accepted is the same as before -------------------------------------------------------


@pytest.mark.parametrize("number", range(len(fuzz.SOURCES)))
def test_a_saved_program_computes_the_same(number: int) -> None:
    device = get("cpu")
    program = fuzz.SOURCES[number](device.caps)
    back = serial.loads(serial.dumps(program))
    again = serial.loads(serial.dumps(back))
    assert [text(k) for k in again.kernels] == [text(k) for k in back.kernels]
    rng = np.random.Generator(np.random.Philox(3))
    made = {b.name: fuzz.values(b, rng) for b in program.buffers if b.role in ("input", "weight")}
    scalars = {name: program.scalar_ranges[name][1] for name in program.scalars}
    outputs = []
    for p in (program, back):
        weights = {b.name: made[b.name] for b in p.buffers if b.role == "weight"}
        inputs = {p.buffers[i].name: made[p.buffers[i].name] for i in p.inputs}
        outputs.append(Session(p, device, weights).run(inputs, scalars))
    for got, want in zip(*outputs):
        assert got.tobytes() == want.tobytes()


def test_what_needs_no_guard_is_the_same_code() -> None:
    program = compiled(lambda x, w: (x + 1) * w, (40, 70), (70,))
    back = serial.loads(serial.dumps(program))
    assert [kernel_hash(k) for k in back.kernels] == [kernel_hash(k) for k in program.kernels]


def test_memory_starts_as_zeros(plain: Doc) -> None:
    doc = copy.deepcopy(plain)
    doc["head"]["steps"] = []
    device = FencedCpu()  # whose memory is poison
    out = Session(fuzz.load(doc), device).run([np.ones(64, np.float32)])[0]
    assert not out.any()


# -- limits ---------------------------------------------------------------------------------------


def body(*statements: Any) -> list[Any]:
    return ["Block", ["", *statements]]


def loop(name: str, stop: Any, *inner: Any, unroll: bool = False) -> list[Any]:
    stop = ["Const", stop, "int32"] if isinstance(stop, int) else stop
    start = ["Const", 0, "int32"]
    return ["For", ["Var", name, "int32"], start, stop, body(*inner), 1, unroll]


STORE = ["Store", "out0", ["Const", 0, "int32"], ["Const", 1.0, "float32"], None, False]
BIG = (1 << 31) - 1


@pytest.mark.parametrize(
    ("statements", "match"),
    [
        ([loop("a", BIG, loop("b", BIG, STORE))], "may execute"),
        ([loop("a", 4096, loop("b", 4096, STORE, unroll=True), unroll=True)], "unrolled"),
        ([["Array", "a", "float32", 1 << 30, "private"]], "bytes of private arrays"),
        ([["Tile", "t", "float32", 1 << 20, 1 << 20]], "tile"),
        ([["Let", ["Var", "v", "float32x1048576"], ["Const", 0.0, "float32x1048576"], False]],
         "lanes"),
        ([["Let", ["Var", "v", "int32"], ["Const", 1 << 70, "int32"], False]], "Const has value"),
        ([["For", ["Var", "i", "int32"], ["Const", 0, "int32"], ["Const", 9, "int32"], body(),
           1.5, False]], "For has step"),
        ([["For", ["Var", "i", "int32"], ["Const", 0, "int32"], ["Const", 9, "int32"], body(),
           1 << 64, False]], "For has step"),
        ([["Store", "out0", ["Const", 0, "int32"], ["Const", "0.0), ptr null", "float32"], None,
           False]], "Const has value"),
        ([["Let", ["Var", "v", "float32"], ["Vec", "extract", ["", ["Const", 1.0, "float32x4"]],
           "float32", ["", 0.5]], False]], "Vec has lanes"),
        ([["Let", ["Var", "v", "int32"], ["Axis", "group", 1.0, "int32"], False]], "Axis has dim"),
    ],
)  # fmt: skip
def test_what_is_too_much_is_refused(plain: Doc, statements: list[Any], match: str) -> None:
    doc = copy.deepcopy(plain)
    doc["bodies"][0] = body(*statements)
    program_changes.seal(doc)
    with pytest.raises(FileFormatError, match=match):
        fuzz.load(doc)


@pytest.mark.parametrize(
    ("grid", "threads", "match"),
    [
        ([BIG, BIG, BIG], [1, 1, 1], "may execute"),
        ([1, 1, 1], [1 << 20, 1, 1], "threads"),
    ],
)
def test_groups_without_end_are_refused(
    plain: Doc, grid: list[int], threads: list[int], match: str
) -> None:
    doc = copy.deepcopy(plain)
    doc["head"]["kernels"][0] |= {
        "grid": [["Const", n, "int32"] for n in grid],
        "threads": threads,
    }
    program_changes.seal(doc)
    with pytest.raises(FileFormatError, match=match):
        fuzz.load(doc)


def test_a_grid_nested_without_end_is_refused(plain: Doc) -> None:
    doc, entry = copy.deepcopy(plain), ["Const", 1, "int32"]
    for _ in range(150):
        entry = ["Binary", "min", entry, ["Const", 1, "int32"], "int32"]
    doc["head"]["kernels"][0]["grid"][0] = entry
    program_changes.seal(doc)
    with pytest.raises(FileFormatError, match="grid"):
        fuzz.load(doc)


def test_many_steps_come_to_an_end_too(plain: Doc, monkeypatch: pytest.MonkeyPatch) -> None:
    from weft.program import foreign

    monkeypatch.setattr(foreign, "MAX_RUN", 1000)
    doc = copy.deepcopy(plain)
    doc["head"]["steps"] *= 1000
    with pytest.raises(FileFormatError, match="in the run so far"):
        fuzz.load(doc)


@pytest.mark.parametrize("spec", ["cpu", "interp:cpu-avx2", "null"])
@pytest.mark.parametrize("count", [1, 200])
def test_memory_that_nobody_has_is_not_asked_for(plain: Doc, spec: str, count: int) -> None:
    doc = copy.deepcopy(plain)
    nbytes = (1 << 44) // count // 4 * 4
    for n in range(count):
        doc["head"]["buffers"].append([f"a{n}", "output", "float32", [nbytes // 4], nbytes])
    with pytest.raises((OutOfMemoryError, WeftError)) as caught:
        Session(fuzz.load(doc), get(spec))
    assert not isinstance(caught.value, FileFormatError)


def test_runtime_scalars_keep_to_their_inputs() -> None:
    program = fuzz.SOURCES[0](get("cpu").caps)
    assert program.scalar_ranges == {"n": (0, 6)}
    for p in (program, serial.loads(serial.dumps(program))):
        session = Session(p, get("cpu"), {"w": np.zeros((8, 8), np.float32)})
        inputs = {"x": np.zeros((6, 8), np.float32), "at": np.zeros(6, np.int32)}
        session.run(inputs, {"n": 6})
        for n in (7, -1):
            with pytest.raises(UsageError, match="counts rows"):
                session.run(inputs, {"n": n})


def test_names_cannot_pass_for_code() -> None:
    """Kernels that differ never have the same text, whatever their scalars are called."""
    from weft.kernel import ir
    from weft.kernel.builder import Builder

    texts = set()
    for name in ("n", "n.0 + $m", "n.0]\n  store y[$m", "n\n"):
        b = Builder("k")
        b.store(b.buffer("y", dt.int32, 1, "w"), 0, ir.Param(name, 1))
        lines = text(b.kernel(grid=(1,)))
        assert len(lines.splitlines()) == 6
        texts.add(lines)
    assert len(texts) == 4


# -- at random ------------------------------------------------------------------------------------


def test_changed_programs_stay_inside() -> None:
    counted, wrong = fuzz.play(0, 40)
    assert not wrong, "\n".join(wrong)
    assert sum(n for what, n in counted.items() if what.startswith("ran")) > 12, counted


def test_a_case_finds_what_is_not_guarded() -> None:
    assert any(fuzz.play(first, 8, unguarded=True)[1] for first in range(1036, 1096, 8))


@pytest.mark.slow
def test_many_cases_find_what_is_not_guarded() -> None:
    _, wrong = fuzz.play(1000, 60, unguarded=True)
    assert len(wrong) > 3


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_many_changed_programs_stay_inside() -> None:
    counted, wrong = fuzz.play(20_000, 20_000)
    assert not wrong, "\n".join(wrong)
    assert sum(n for what, n in counted.items() if what.startswith("ran")) > 6000, counted
