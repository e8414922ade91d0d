"""Programs to bytes and back; hostile files get FileFormatError and nothing else."""

import contextlib
import json
import random

import numpy as np
import pytest
from programs import small_graph, small_program, small_values

from weft import ops
from weft.backends.registry import get
from weft.core.errors import FileFormatError
from weft.kernel.printer import kernel_hash
from weft.program import serial
from weft.program.program import Program
from weft.program.session import Session


def outputs(program, device, n=6):
    v = small_values()
    session = Session(program, device, {"w": v["w"]}, {"s": v["s"].copy()})
    return [*session.run({"x": v["x"], "at": v["at"]}, {"n": n}), session.read_state("s")]


@pytest.mark.parametrize("trusted", [False, True])
@pytest.mark.parametrize("spec", ["cpu", "interp:cpu-avx2"])
def test_round_trip(spec, trusted):
    device = get(spec)
    program = small_program(device.caps)
    back = serial.loads(serial.dumps(program), trusted)
    assert [kernel_hash(k) for k in back.kernels] == [kernel_hash(k) for k in program.kernels]
    assert back.steps == program.steps and back.scalars == program.scalars
    expected = ops.evaluate(small_graph(), {**small_values(), "n": 6})
    for got, same, want in zip(outputs(back, device), outputs(program, device), expected):
        assert got.tobytes() == same.tobytes()
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_file_and_folder(tmp_path):
    program = small_program(get("cpu").caps)
    program.save(tmp_path / "p.weft")
    folder = tmp_path / "folder"
    folder.mkdir()
    serial.save(program, folder)
    for path in (tmp_path / "p.weft", folder):
        assert Program.load(path).steps == program.steps
    assert json.loads((folder / "report.json").read_text())["groups"]
    (folder / "kernels.json").unlink()
    with pytest.raises(FileFormatError, match=r"kernels\.json"):
        serial.load(folder)


def test_truncation_at_every_length():
    data = serial.dumps(small_program(get("cpu").caps))
    for cut in range(0, len(data) - 1, max(1, len(data) // 400)):
        with pytest.raises(FileFormatError):
            serial.loads(data[:cut])


def test_flipped_bytes_never_crash():
    data = serial.dumps(small_program(get("cpu").caps))
    rng = random.Random(0)
    for _ in range(300):
        bad = bytearray(data)
        for _ in range(rng.randint(1, 4)):
            bad[rng.randrange(len(bad))] = rng.randrange(256)
        with contextlib.suppress(FileFormatError):
            serial.loads(bytes(bad))


def _leaves(value, path=()):
    """Paths of every value inside a JSON document."""
    yield path
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in items:
            yield from _leaves(inner, (*path, key))


@pytest.mark.parametrize("member", ["program.json", "kernels.json"])
def test_mutated_json_never_crashes(tmp_path, member):
    serial.save(small_program(get("cpu").caps), tmp_path)
    part = tmp_path / member
    text = part.read_text()
    bodies = member == "kernels.json"
    if bodies:  # texts of JSON: mutate what is inside
        text = json.dumps([json.loads(body) for body in json.loads(text)])
    rng = random.Random(1)
    paths = [p for p in _leaves(json.loads(text)) if len(p) > bodies]
    junk = [None, -1, 1 << 70, "x", [], {}, 1.5, True, [[[]]], float("nan")]
    for path in rng.sample(paths, min(len(paths), 40)):
        document = json.loads(text)
        at = document
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = rng.choice(junk)
        written = [json.dumps(body) for body in document] if bodies else document
        part.write_text(json.dumps(written))
        with contextlib.suppress(FileFormatError):
            serial.load(tmp_path)


def test_a_write_to_a_weight_is_refused(tmp_path):
    program = small_program(get("cpu").caps)
    serial.save(program, tmp_path)
    document = json.loads((tmp_path / "program.json").read_text())
    weight = next(i for i, b in enumerate(program.buffers) if b.role == "weight")
    document["steps"].append(["fill", [weight, 0, 4], 0, "evil"])
    (tmp_path / "program.json").write_text(json.dumps(document))
    with pytest.raises(FileFormatError, match="writes to weight"):
        serial.load(tmp_path)
