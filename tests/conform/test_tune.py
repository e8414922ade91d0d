"""`weft tune`: what it measures, what it may choose, and how compiling goes by its table."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from rows import covering

from weft.backends import registry
from weft.bench import roofline, tune, tune_cases
from weft.bench.roofline import Roofline
from weft.cli.explain import explain
from weft.cli.tune import tune as command
from weft.compile import compile_graph, tuned, tuning
from weft.compile.passes import groups_of
from weft.compile.tuned import TunedRow
from weft.core import dtypes as dt, notices
from weft.core.caps import PRESETS, Caps
from weft.core.errors import FileFormatError, UsageError
from weft.models import random_folder
from weft.models.run.compiled_runner import model_caps
from weft.program.program import Program
from weft.tensor.program_cache import program_for

CAPS = PRESETS["cpu-avx2"]
ROOF = Roofline(100.0, 10.0, 1000.0)
GPT2 = {
    "model_type": "gpt2", "vocab_size": 40, "n_embd": 32, "n_layer": 1, "n_head": 2,
    "n_positions": 16,
}  # fmt: skip


@pytest.fixture(autouse=True)
def own_tables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A cache directory of its own, and notices that were not said before."""
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("WEFT_TUNING", raising=False)
    monkeypatch.setattr(roofline, "measure", lambda device: ROOF)
    notices.say.cache_clear()
    yield


def table_for(caps: Caps, **rows: TunedRow) -> tuned.TunedTable:
    given = {tuple(key.split("/")): row for key, row in rows.items()}
    return dataclasses.replace(tuned.new("a test", caps), rows=given)


def run(*args: str) -> str:
    done = CliRunner().invoke(command, list(args), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return str(done.stdout)


# -- measuring and choosing -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("64..256", [(64,) * 3, (128,) * 3, (256,) * 3]),
        ("5,2x3x4", [(5, 5, 5), (2, 3, 4)]),
    ],
)
def test_sizes(text: str, sizes: list[tuple[int, int, int]]) -> None:
    assert tune_cases.parse_sizes(text) == sizes


@pytest.mark.parametrize("text", ["", "a", "1x2", "0", "4..2", "1..2..3", "99999999", "1x2x3x4"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match="--sizes takes"):
        tune_cases.parse_sizes(text)


@pytest.mark.parametrize("caps,dtype", covering(
    ["cpu-avx512", "cpu-amx", "cuda", "hip-wave32", "webgpu"], [dt.bfloat16, dt.float32]
), ids=str)  # fmt: skip
def test_any_candidate_computes_the_same_for_any_number_of_rows(caps: str, dtype: Any) -> None:
    """What a template lists, in the interpreter: right, and no bit depends on the rows."""
    device = registry.get(f"interp:{caps}")
    sizes = [(18, 36, 40)]
    for case in tune_cases.product_cases(["matmul", "matvec"], sizes, [dtype], device.caps):
        found = tune.measure(device, case, ROOF, 0.0)
        assert found[0].config == {} and not [m.why for m in found if m.why]
        for m in found:
            assert not tune.rows_differ(device, case, m.config), (case.label, m.config)


def test_the_fastest_right_configuration_is_chosen() -> None:
    default, fast, wrong = tune.Measured({}, 10.0), tune.Measured({"a": 1}, 5.0), {"a": 2}
    slow = tune.Measured({"a": 3}, 9.9)
    out = tune.Measured(wrong, why="wrong: 1 of 4 differ")
    choice = tune.TunedConfig("matmul", "c", {"x": [default, fast, out, slow]})
    tune._choose(choice, lambda config: False)
    assert (choice.config, choice.ms, choice.default_ms) == ({"a": 1}, 5.0, 10.0)
    tune._choose(choice, lambda config: config == {"a": 1})  # its bits depend on the rows
    assert choice.config == {} and "depend" in fast.why  # and 1% is no gain
    assert [r[-1] for r in tune.table_rows([choice])] == [
        fast.why, "", "default chosen", out.why
    ]  # fmt: skip


def test_cases_of_one_class_are_judged_together() -> None:
    a = [tune.Measured({}, 10.0), tune.Measured({"a": 1}, 5.0), tune.Measured({"b": 1}, 8.0)]
    b = [tune.Measured({}, 1.0), tune.Measured({"a": 1}, 1.9), tune.Measured({"b": 1}, 0.8)]
    choice = tune.TunedConfig("matmul", "c", {"x": a, "y": b})
    tune._choose(choice, lambda config: False)
    assert choice.config == {"b": 1} and choice.ms == 8.8


# -- tables ---------------------------------------------------------------------------------------


def test_a_table_survives_the_disk(tmp_path: Path) -> None:
    table = table_for(CAPS, **{"matmul/x": TunedRow({"nv": 2, "on": True, "how": "so"}, 1.5, 2.0)})
    tuned.write(tmp_path / "t.json", table)
    back = tuned.read(tmp_path / "t.json")
    assert len(back.digest) == 16 and dataclasses.replace(back, digest="") == table


GOOD = {"weft": "tuning", "format": 1, "device": "d", "caps": "c", "code": "e", "rows": []}
ROW = {"kind": "matmul", "class": "c", "config": {"nv": 2}, "ms": 1, "default_ms": 2}


@pytest.mark.parametrize(
    "content",
    [
        b"", b"\xff\xfe", b"[]", b"{}", b"[" * 100_000, b"1" * 5000,
        json.dumps(GOOD | {"format": 9}), json.dumps(GOOD | {"device": 3}),
        json.dumps(GOOD | {"device": "x" * 1000}), json.dumps(GOOD | {"rows": {}}),
        json.dumps(GOOD | {"rows": [7]}), json.dumps(GOOD | {"rows": [ROW | {"config": [1]}]}),
        json.dumps(GOOD | {"rows": [ROW | {"config": {"nv": 1.5}}]}),
        json.dumps(GOOD | {"rows": [ROW | {"config": {"nv": 1 << 40}}]}),
        json.dumps(GOOD | {"rows": [ROW | {"config": {"nv": [2]}}]}),
        json.dumps(GOOD | {"rows": [ROW | {"ms": float("nan")}]}),
        json.dumps(GOOD | {"rows": [ROW | {"ms": -1}]}),
        json.dumps(GOOD | {"rows": [ROW | {"ms": None}]}),
        json.dumps(GOOD | {"rows": [ROW | {"ms": 10**400}]}),
        json.dumps(GOOD | {"rows": [{k: v for k, v in ROW.items() if k != "kind"}]}),
        b" " * (5 << 20),
    ],
)  # fmt: skip
def test_hostile_tables_are_a_named_error(
    content: bytes | str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    monkeypatch.setenv("WEFT_TUNING", str(path))
    with pytest.raises(FileFormatError, match=r"t\.json") as caught:
        tuned.active(CAPS)
    assert len(str(caught.value)) < 400


def test_a_broken_table_in_the_cache_is_left_aside(capsys: pytest.CaptureFixture[str]) -> None:
    path = tuned.default_path(CAPS)
    assert path is not None and tuned.active(CAPS) is None
    path.parent.mkdir()
    path.write_text("{")
    assert tuned.active(CAPS) is None and tuned.digest(CAPS) == ""
    assert "is not a tuning table" in capsys.readouterr().err


def test_a_missing_file_is_a_named_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_TUNING", "/nowhere/t.json")
    with pytest.raises(UsageError, match=r"WEFT_TUNING=/nowhere/t\.json: No such file"):
        tuned.active(CAPS)


@pytest.mark.parametrize(
    ("change", "said"), [("caps", "other limits"), ("code", "again: weft tune --device")]
)
def test_tables_for_something_else_are_ignored_with_a_notice(
    change: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    table = dataclasses.replace(table_for(CAPS), **{change: "0" * 16})
    tuned.write(tmp_path / "t.json", table)
    monkeypatch.setenv("WEFT_TUNING", str(tmp_path / "t.json"))
    assert tuned.active(CAPS) is None and tuned.active(CAPS) is None
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and said in lines[0]
    monkeypatch.setenv("WEFT_TUNING", "0")
    assert tuned.active(CAPS) is None


# -- compiling by a table -------------------------------------------------------------------------


def names(program: Program) -> list[str]:
    """The kernels' names, which hold the digests of what they do."""
    return [k.name for k in program.kernels]


def product(m: int = 20, n: int = 48, k: int = 64) -> Any:
    return tune_cases._graph(m, n, k, dt.float32, "kn")


def test_compiling_goes_by_the_table() -> None:
    graph, path = product(), tuned.default_path(CAPS)
    assert path is not None
    before = compile_graph(graph, CAPS)
    assert before.meta["report"].groups[0].config == "default"
    shapes = tuning.shape_class(groups_of(graph, CAPS)[0])
    assert shapes == "float32 float32 kn n64 k64"
    tuned.write(path, table_for(CAPS, **{f"matmul/{shapes}": TunedRow({"nv": 2}, 1.0, 2.0)}))
    after = compile_graph(graph, CAPS)
    assert names(after) != names(before)
    assert f"nv=2 (tuned for a test, {shapes})" in after.meta["report"].text()
    # what the template does not list for this group is not used
    tuned.write(path, table_for(CAPS, **{f"matmul/{shapes}": TunedRow({"nv": 777}, 1.0, 2.0)}))
    assert names(compile_graph(graph, CAPS)) == names(before)


def test_rows_do_not_count_in_a_class() -> None:
    classes = {tuning.shape_class(groups_of(product(m), CAPS)[0]) for m in (17, 64, 500)}
    assert len(classes) == 1
    assert tuning.shape_class(groups_of(product(k=65), CAPS)[0]) not in classes


def test_the_key_of_a_kept_program_holds_the_table() -> None:
    graph, built = product(), []

    def build() -> Any:
        built.append(1)
        return graph

    for _ in range(2):
        program_for("p", CAPS, build)
    path = tuned.default_path(CAPS)
    assert path is not None and len(built) == 1
    row = TunedRow({"nv": 2}, 1.0, 2.0)
    tuned.write(path, table_for(CAPS, **{"matmul/float32 float32 kn n64 k64": row}))
    program_for("p", CAPS, build)
    assert len(built) == 2


def test_other_kinds_have_a_class_without_rows() -> None:
    from weft import ops

    def softmax(rows: int) -> str:
        x = ops.input_node("x", (rows, 100), dt.float16)
        with ops.building():
            out = ops.call("softmax", x)
        return tuning.shape_class(groups_of(type(product())((x,), (out,)), CAPS)[0])

    assert softmax(3) == softmax(70) == "float16 w128"


# -- the command ----------------------------------------------------------------------------------


def test_tune_on_the_cpu_writes_a_table_that_explain_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = str(random_folder(tmp_path / "gpt2", GPT2))
    monkeypatch.setattr(tune, "GAIN", 99.0)  # the best of the others, were it slower
    monkeypatch.setattr(
        tune.Bench, "times", lambda self, kernels: [1.0, *[0.5] * (len(kernels) - 1)]
    )
    found = json.loads(run(model, "--kinds", "matvec", "--budget", "0", "--json"))
    rows = [c for c in found["classes"] if c["config"]]
    assert rows and Path(found["table"]).exists() and found["device"] == "cpu:0"
    shown = CliRunner().invoke(explain, [model, "--step", "decode"], catch_exceptions=False)
    assert f"tuned for {found['name']}, {rows[0]['class']}" in shown.stdout


def test_tables_grow(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    given = ("--dtype", "float32", "--budget", "0", "--output", str(path))
    assert "default" in run("--kinds", "matmul", "--sizes", "20", *given)
    run("--kinds", "matvec", "--sizes", "1x24x20", *given)
    assert {kind for kind, _ in tuned.read(path).rows} == {"matmul", "matvec"}


def test_what_was_chosen_is_kept_when_the_rest_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, measure = tmp_path / "t.json", tune.measure

    def once(device: Any, case: Any, *rest: Any) -> Any:
        if "24" in case.label:
            raise KeyboardInterrupt
        return measure(device, case, *rest)

    monkeypatch.setattr(tune, "measure", once)
    given = ["--kinds", "matvec", "--sizes", "1x16x20,1x24x40", "--dtype", "float32"]
    CliRunner().invoke(command, [*given, "--budget", "0", "--output", str(path)])
    assert [of for _, of in tuned.read(path).rows] == ["float32 float32 nk n16 k32"]


def test_tune_on_a_target_that_is_not_here() -> None:
    text = run("--device", "interp:cpu-avx2", "--sizes", "18x20x16", "--dtype", "float32")
    assert "18x20x16 float32 kn" in text and "default" in text


@pytest.mark.parametrize(
    "args",
    [("--kinds", "nosuch"), ("--sizes", "x"), ("--dtype", "int8"), ("--kinds", "")],
)
def test_wrong_usage(args: tuple[str, ...]) -> None:
    done = CliRunner().invoke(command, list(args))
    assert isinstance(done.exception, UsageError)


def test_values_are_in_range_for_gathers() -> None:
    from weft import ops

    x = ops.input_node("x", (4,), dt.int32)
    assert set(np.unique(tune._values(x, np.random.default_rng(0)))) <= {0, 1}


def test_models_go_by_the_table_of_their_device() -> None:
    """They are compiled as if the device had no library of its vendor's: same templates."""
    caps = PRESETS["cuda"]
    assert model_caps(caps) != caps
    assert tuned.default_path(model_caps(caps)) == tuned.default_path(caps)
    assert tuned.caps_digest(caps) != tuned.caps_digest(PRESETS["hip-wave64"])
