"""scripts/fingerprint: the same hashes in every process, a case of everything that weft's tables
list, and a change named by the first step that it touches."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from fingerprints import compare, models, nets, packed, run, stages, targets  # noqa: E402
from fingerprints.sources import DEVICE, Source, traced  # noqa: E402
from fingerprints.stages import Fingerprints, Texts  # noqa: E402

import weft  # noqa: E402
from weft import nn, optim  # noqa: E402
from weft.backends.wgsl.dialect import RULES as WGSL_RULES  # noqa: E402
from weft.compile import passes  # noqa: E402
from weft.conform import packed as conform_packed  # noqa: E402
from weft.conform.models import CONFIGS  # noqa: E402
from weft.core import dtypes as dt  # noqa: E402
from weft.core.caps import PRESETS  # noqa: E402
from weft.core.errors import UsageError  # noqa: E402
from weft.importers.packed.gguf import FORMS  # noqa: E402
from weft.kernel import ir  # noqa: E402
from weft.models.arch.encoders import ENCODERS  # noqa: E402
from weft.models.arch.families import DECODERS  # noqa: E402
from weft.models.arch.family_fields import WRAPPER_FIELDS  # noqa: E402
from weft.templates import registry  # noqa: E402
from weft.tensor import functional as F  # noqa: E402


def script(folder: Path, seed: str, *arguments: str) -> dict[str, Any]:
    """What the script prints, run in a folder of its own."""
    folder.mkdir()
    env = {k: v for k, v in os.environ.items() if not k.startswith("WEFT_")}
    env |= {"PYTHONHASHSEED": seed, "TMPDIR": str(folder), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(ROOT / "scripts" / "fingerprint"), *arguments]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, check=True)
    data: dict[str, Any] = json.loads(done.stdout)
    return data


def test_processes_agree(tmp_path: Path) -> None:
    """Another seed of hashes, folder and number of processes change nothing."""
    group = ("--group", "mixed", "--target", "webgpu")
    first = script(tmp_path / "a", "1", *group, "--jobs", "1")
    assert first == script(tmp_path / "b", "2", *group, "--jobs", "2")
    assert len(first["cases"]) > 1
    assert not [case for case, record in first["cases"].items() if "error" in record]


# -- what is covered ------------------------------------------------------------------------------


def test_every_family_has_a_case() -> None:
    plain = {config["model_type"] for config in CONFIGS.values()}
    wrapped = {f"{kind}_text" for kind in WRAPPER_FIELDS}
    same = {"phi4_multimodal"}  # its text model is phi3's
    assert set(DECODERS) <= plain | wrapped | same | set(models.INNER)
    assert set(models.INNER) == set(WRAPPER_FIELDS)
    made = {f"{s.group}/{s.name}" for s in models.families()}
    assert {f"families/{name}" for name in CONFIGS} <= made
    assert {f"families/wrapped-{name}" for name in WRAPPER_FIELDS} <= made
    assert {s.name for s in models.GROUPS["encoders"]()} >= set(ENCODERS)


def test_every_packed_form_has_a_case() -> None:
    assert set(FORMS) <= set(packed.forms())
    pytest.importorskip("gguf")
    labels = {source.label for source in run.sources(["packed", "blocks"])}
    known = set(packed.blocks()) | {"Q2_0", "Q8_K"}  # the package, or models, lack these two
    assert set(FORMS) <= known
    assert {f"packed/{kind}" for kind in packed.kinds()} <= labels


def test_every_module_has_a_case() -> None:
    pytest.importorskip("torch")
    run.sources(["modules"])
    met = {type(m) for make, _ in nets.modules().values() for _, m in make(nn).named_modules()}
    listed = {getattr(nn, name) for name in nn.__all__}
    kinds = {k for k in listed if isinstance(k, type) and issubclass(k, nn.Module)}
    assert kinds - met - {nn.Module} == set()
    used = {type(make([("p", weft.tensor([1.0]))])) for make in nets.OPTIMISERS.values()}
    assert used == {optim.SGD, optim.Adam, optim.AdamW}


def test_every_preset_is_rendered() -> None:
    picked = {name for i in range(100) for name in targets.chosen(f"case {i}")}
    assert set(PRESETS) | {"wasm", "page"} == picked
    assert all(targets.renderers(name) for name in targets.CAPS)


# -- what a change is called ----------------------------------------------------------------------


def graph(scale: float = 2.0) -> Any:
    def fn(x: Any, w: Any) -> Any:
        return F.softmax(x @ w) + (x.exp() * scale).sum() + (x.exp() * scale).sum()

    spec = weft.Spec((8, 8), dt.float32)
    return weft.trace(fn, [spec, spec])


def record(folder: Path, scale: float = 2.0, target: str = "webgpu") -> dict[str, stages.Record]:
    made = Fingerprints(Texts(folder))
    return {f"small/one @{target}": made.of(graph(scale), target)}


def first_stage(before: Any, after: Any) -> str:
    (found,) = compare.changes(before, after)
    return found.stage


def test_nothing_changed(tmp_path: Path) -> None:
    before, after = record(tmp_path), record(tmp_path)
    assert compare.summary(before, after, True) == (["1 of 1 cases identical"], False)


def test_another_graph(tmp_path: Path) -> None:
    before, after = record(tmp_path), record(tmp_path, 3.0)
    assert first_stage(before, after) == "traced graph"
    lines, differs = compare.summary(before, after, True)
    assert differs and lines[1].split() == [
        "traced", "graph,", "small", "1", "for", "example", "small/one", "@webgpu",
    ]  # fmt: skip
    (found,) = compare.changes(before, after)
    text = "\n".join(compare.shown(found, Texts(tmp_path)))
    assert "--- before/0" in text and "value=('array', 'float32'" in text
    gone, differs = compare.summary(before, {}, True)
    assert differs and gone[0].startswith("gone")


def test_another_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = record(tmp_path)
    changed = tuple((n, (lambda g, _: g) if n == "cse" else fn) for n, fn in passes.PASSES)
    monkeypatch.setattr(passes, "PASSES", changed)
    assert first_stage(before, record(tmp_path)) == "pass 'cse'"


def test_another_kernel_of_a_template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, get = record(tmp_path), registry.get

    def other(kind: str) -> Any:
        def build(*given: Any) -> ir.Kernel:
            kernel = get(kind)(*given)
            if kind != "norm":
                return kernel
            extra = ir.Let(ir.Var("extra", ir.I32), ir.Const(1, ir.I32))
            return dataclasses.replace(kernel, body=ir.Block((extra, *kernel.body.body)))

        return build

    monkeypatch.setattr(registry, "get", other)
    assert first_stage(before, record(tmp_path)) == "kernels of norm"


def test_another_rule_of_a_renderer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page, cpu = record(tmp_path), record(tmp_path, target="cpu-avx2")
    store = WGSL_RULES[ir.Store]

    def other(w: Any, s: ir.Store) -> None:
        w.emit("// another rule")
        store(w, s)

    monkeypatch.setitem(WGSL_RULES, ir.Store, other)
    after = record(tmp_path)
    assert first_stage(page, after) == "text for wgsl"
    (found,) = compare.changes(page, after)
    assert any("+" in x and "// another rule" in x for x in compare.shown(found, Texts(tmp_path)))
    assert not compare.changes(cpu, record(tmp_path, target="cpu-avx2"))


def test_an_earlier_end_compares_what_both_have(tmp_path: Path) -> None:
    whole = record(tmp_path)
    for last in stages.LAST:
        made = Fingerprints(Texts(), last).of(graph(), "webgpu")
        assert not compare.changes(whole, {"small/one @webgpu": made})
    short = Fingerprints(Texts(), "passes").of(graph(3.0), "webgpu")
    assert first_stage(whole, {"small/one @webgpu": short}) == "traced graph"


def test_cases_of_a_source() -> None:
    """A step that is traced only has a graph; what cannot be built is a case of its own."""

    def build(_: Path) -> Any:
        yield "whole", graph()
        yield "-later", graph(3.0)
        raise UsageError("no more")

    source = Source("small", "one", build, alone=True, traced=lambda step: step.startswith("-"))
    wanted = run.Wanted(target="")
    found = run.records(source, Fingerprints(Texts()), wanted)
    (target,) = run.targets_of(source, "small/one.whole", wanted)
    last = "small/one cannot be built"
    assert list(found) == [f"small/one.whole @{target}", "small/one.-later", last]
    assert list(found["small/one.-later"]) == ["graph"]
    assert found[last] == {"error": "UsageError: no more"}


def test_no_case_depends_on_those_before_it() -> None:
    """Equal kernels have texts of their own for Caps that differ."""
    one, shared = [Fingerprints(Texts()) for _ in "ab"]
    item = traced(lambda: conform_packed._product(DEVICE, packed.forms()["Q4_1"]))
    for target in ("webgpu", "lavapipe"):
        shared.of(item, target)
    assert shared.of(item, "page") == one.of(item, "page")
