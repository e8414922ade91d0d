"""`weft explain` on compiled files, and its page."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

import weft
from weft.cli.explain import explain
from weft.cli.explain_page import Life, lifetimes
from weft.core.errors import UsageError
from weft.models import random_folder
from weft.models.run import saved
from weft.tensor.compiling import compile as compile_function

pytestmark = pytest.mark.usefixtures("small_roofline")
CONFIG = {
    "model_type": "gpt2", "vocab_size": 40, "n_embd": 16, "n_layer": 2, "n_head": 2,
    "n_positions": 16,
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_folder(tmp_path_factory.mktemp("gpt2"), CONFIG)


@pytest.fixture(scope="module", params=["cpu-avx2", "webgpu", "gfx942"])
def file(folder: Path, request: pytest.FixtureRequest) -> Path:
    from weft.backends.presets import caps_of

    path = folder.parent / f"{request.param}.weft"
    model = weft.load(folder, device="cpu", max_batch=1)
    saved.save(model, path, request.param, caps_of(request.param), {"quant": "none"}, False)
    return path


def run(*args: object) -> str:
    done = CliRunner().invoke(explain, list(map(str, args)), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return str(done.output)


def test_a_compiled_model(file: Path, folder: Path) -> None:
    text = run(file)
    assert f"weft {weft.__version__}" in text and "prefill on" in text and "quant none" in text
    said = json.loads(run(file, "--json", "--step", "decode"))
    assert said["file"]["for"] == file.stem and said["steps"]["decode"]["groups"]
    if file.stem == "cpu-avx2":  # what the model itself is explained as
        own = weft.load(folder, device="interp:cpu-avx2")
        from weft.cli import explained

        program, report = explained.of_model(own, None).steps["decode"].make()
        assert report is not None and len(report.groups) == len(program.steps)
        again = said["steps"]["decode"]
        assert [g["name"] for g in again["groups"]] == [g.name for g in report.groups]
    with pytest.raises(UsageError, match="holds no graph"):
        run(file, "--show", "graph")
    with pytest.raises(UsageError, match="does not apply"):
        run(file, "--target", "sm_90")


def test_the_source_of_what_is_not_here(file: Path) -> None:
    marks = {"cpu-avx2": "define", "webgpu": "@compute", "gfx942": "s_endpgm"}
    assert marks[file.stem] in run(file, "--show", "source", "--step", "decode")


def test_the_page(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    run(file, "--html", out)
    page = out.read_text()
    links = set(re.findall(r'href="#(.*?)"', page))
    assert {"step-1", "kernels"} < links and links <= set(re.findall(r'id="(.*?)"', page))
    assert "<script" not in page and "http" not in re.sub("http-equiv", "", page).split("<pre>")[0]
    assert page.count("<rect") > 10


def test_what_launches_take(folder: Path, tmp_path: Path) -> None:
    """Measured where the device is here, else why not."""
    from weft.backends.presets import caps_of

    model = weft.load(folder, device="cpu", max_batch=1)
    for device in ("cpu", "gfx942"):
        saved.save(model, tmp_path / f"{device}.weft", device, caps_of(device), {}, False)
        run(tmp_path / f"{device}.weft", "--step", "decode", "--html", tmp_path / "page.html")
        page = re.sub(r"<pre>.*?</pre>", "", (tmp_path / "page.html").read_text(), flags=re.S)
        timed = page.split("<h3>Timings</h3>")[1].split("<h3>")[0]
        if device == "gfx942":
            assert "not measured: gfx942 is not here" in timed
            continue
        assert "GFLOP/s and" in timed and "not measured" not in timed
        shares = [float(x) for x in re.findall(r'style="width:([0-9.]+)%"', timed)]
        assert max(shares, default=0) <= 100
        times = [float(x) for x in re.findall(r'<td class="n">(\d+\.\d{3})</td>', timed)]
        launches = page.split("<h3>Launches</h3>")[1].split("<h3>")[0]
        each = [float(x) for x in re.findall(r'<td class="n">(\d+\.\d{3})</td></tr>', launches)]
        steps = bundle_program(tmp_path / "cpu.weft", "decode").steps
        assert len(each) == len(steps) and abs(sum(each) - sum(times)) < 0.002 * len(steps)


def bundle_program(path: Path, step: str) -> weft.Program:
    from weft.program import bundle, serial

    return serial.loads(bundle.read(path).programs[step])


def test_a_page_of_hostile_names(tmp_path: Path) -> None:
    name = "<script>alert(1)</script>"
    program = _program()
    changed = weft.Program(name, *[getattr(program, f) for f in list(_FIELDS)[1:]])
    changed.save(tmp_path / "p.weft")
    run(tmp_path / "p.weft", "--device", "interp", "--html", tmp_path / "page.html")
    assert "<script" not in (tmp_path / "page.html").read_text()


_FIELDS = weft.Program.__dataclass_fields__


def _program() -> weft.Program:
    fn = compile_function(lambda x: (weft.exp(x) @ x).sum(), device="interp")
    fn(weft.ones((8, 8)))
    return fn.programs()[0]


def test_one_program(tmp_path: Path) -> None:
    _program().save(tmp_path / "p.weft")
    assert "launches of" in run(tmp_path / "p.weft", "--device", "interp")


def test_lifetimes_do_not_overlap(folder: Path) -> None:
    """No two values have the same bytes at the same time, and every read finds its value."""
    model = weft.load(folder, device="cpu", max_batch=1)
    for program in model.programs().values():
        lives = lifetimes(program)
        assert lives
        for i, a in enumerate(lives):
            assert 0 <= a.first <= a.last < len(program.steps)
            for b in lives[i + 1 :]:
                assert not (_same_bytes(a, b) and a.first < b.first < a.last), (a, b)


def _same_bytes(a: Life, b: Life) -> bool:
    return a.buffer == b.buffer and a.start < b.start + b.nbytes and b.start < a.start + a.nbytes
