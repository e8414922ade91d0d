"""A model's layers on several ranks: the bits of one machine, its share of the memory."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "models"))
sys.path.insert(0, str(Path(__file__).parent.parent / "serve"))
from model_zoo import write_model
from rows import few
from serve_kit import Listening
from several import environment, followers, needs_mpi, started, together

import weft
from weft.bench.timing import peak_rss_mib
from weft.conform.models import CONFIGS
from weft.core.errors import OutOfMemoryError, UsageError
from weft.hub.box import box_folder
from weft.importers.hf_config import Fields
from weft.machines import pipeline
from weft.machines.load import Way, follow, leading
from weft.machines.placement import LayerBytes, Measure, place
from weft.models import random_folder
from weft.models.arch.families import DECODERS
from weft.models.arch.inputs import PAGE
from weft.models.arch.shares import check_columns
from weft.quantize.job import QuantizeOptions, quantize
from weft.ranks import join
from weft.ranks.base import LOST

IDS = np.random.default_rng(7).integers(0, 90, 150).tolist()
Job = tuple[Path, dict[str, Any]]  # a folder, options of weft.load


def answers(model: Any) -> dict[str, np.ndarray]:
    """Logits of a prompt, tokens of generations at once and alone, and what a paged runner gives
    for prompts in parts and for rows of several slots."""
    made = {"logits": model.logits(IDS)}
    texts = model.generate(
        [IDS[:9], IDS[:40], IDS[5:8]], max_new_tokens=12, temperature=0.8, seed=0
    )
    texts.append(model.generate(IDS[:20], max_new_tokens=12))
    made |= {f"ids{i}": np.array(text.ids) for i, text in enumerate(texts)}
    columns = -(-model.context // PAGE)
    runner = model.new_runner(3, 3 * columns + 1)
    pages = 1 + np.random.default_rng(0).permutation(runner.pages - 1)
    runner.tables[:] = pages.reshape(3, columns)
    made["prompt"] = runner.prefill(2, IDS[:70]).copy()
    made["rest"] = runner.prefill(2, IDS[70:100], 70).copy()
    runner.prefill(0, IDS[:5])
    made["rows"] = runner.rows([3, 4, 5], [2, 0, 0], [100, 5, 6]).copy()
    made["many"] = runner.rows(IDS[:40], [1] * 40, range(40)).copy()
    made["long"] = runner.prefill(1, IDS).copy()  # in parts from rank to rank
    made["after"] = runner.rows([3], [1], [len(IDS)]).copy()
    return made


def case_answers() -> None:
    """What rank 0 answers for each (folder, options, split, file)."""
    (way, work), ranks = json.loads(os.environ["WORK"]), join()
    folders = iter([folder for folder, _, _ in work])
    with ranks.leaving():
        if ranks.rank:
            sys.exit(follow(ranks, lambda: next(folders), "cpu"))
        with leading(ranks, Way(*way)) as load:
            for folder, options, file in work:
                np.savez(file, **answers(load(folder, device="cpu", **options)))


def divided(
    count: int, tmp_path: Path, jobs: list[Job], way: tuple[Any, ...] = ()
) -> list[dict[str, np.ndarray]]:
    """What rank 0 of several answers for each job."""
    files = [str(tmp_path / f"{i}.npz") for i in range(len(jobs))]
    work = [(str(f), o, file) for (f, o), file in zip(jobs, files)]
    status, _, err = together(count, __file__, "case_answers", WORK=json.dumps([way, work]))
    assert status == 0, err
    return [dict(np.load(file)) for file in files]


def assert_same(folder: Path, options: dict[str, Any], got: dict[str, np.ndarray]) -> None:
    want = answers(weft.load(folder, device="cpu", **options))
    assert want.keys() == got.keys()
    for name, value in want.items():
        np.testing.assert_array_equal(value, got[name], err_msg=f"{folder.name}: {name}")


LAYERS, COLUMNS = (), (True,)  # ways to divide a model
PAIRS = [
    *(("layers", name) for name in ("gemma3", "gpt2", "gpt_oss", "lfm2", "llama3", "qwen3_5")),
    *(("columns", name) for name in ("gemma3", "gpt2", "llama3", "qwen2")),
]


@needs_mpi
@pytest.mark.parametrize("what,name", few(PAIRS, ("columns", "llama3")))
def test_families_have_the_bits_of_one_machine(what: str, name: str, tmp_path: Path) -> None:
    """Sliding windows and a tied output, learned positions, sinks and experts, running states."""
    write_model(name, tmp_path / name, changed={"max_position_embeddings": 256})
    options = {"context": 200, "max_batch": 4}
    way = LAYERS if what == "layers" else COLUMNS
    (got,) = divided(2, tmp_path, [(tmp_path / name, options)], way)
    assert_same(tmp_path / name, options, got)


WIDE = {
    **CONFIGS["llama"], "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 3,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64, "vocab_size": 320,
    "max_position_embeddings": 256,
}  # fmt: skip
NUMBERS: list[tuple[str, dict[str, Any]]] = [
    ("float16", {}), ("bfloat16", {}), ("float32", {"dtype": "float16", "cache": "int8"}),
    ("int8", {}), ("int8", {"act_dtype": "int8"}), ("int4", {"cache": "f32"}),
    ("int4", {"act_dtype": "float32"}),
]  # fmt: skip


WAYS: list[tuple[int, Any]] = [(2, COLUMNS), (4, COLUMNS), (2, (False, [1, 2])), (3, ())]
NUMBERED = [(kind, options, ranks, way) for ranks, way in WAYS for kind, options in NUMBERS]


@needs_mpi
@pytest.mark.slow
@pytest.mark.parametrize("kind,options,ranks,way", NUMBERED)
def test_numbers_have_the_bits_of_one_machine(
    kind: str, options: dict[str, Any], ranks: int, way: Any, tmp_path: Path
) -> None:
    """Floats, packed weights, integers, narrow caches; on 2 to 4 ranks."""
    packed = kind.startswith("int")
    config = {**WIDE, "dtype": "float32" if packed else kind}
    folder = random_folder(tmp_path / "plain", config, scale=0.1)
    if packed:
        plain, folder = folder, tmp_path / "packed"
        quantize(plain, folder, QuantizeOptions(kind, method="search"), device="cpu")
    options = {"context": 200, "max_batch": 4, **options}
    (got,) = divided(ranks, tmp_path, [(folder, options)], way)
    assert_same(folder, options, got)


def case_memory() -> None:
    """By how much each rank's memory grew, at most, until it had answered."""
    (way, folder, file), ranks = json.loads(os.environ["WORK"]), join()
    before = peak_rss_mib()
    with ranks.leaving():
        if ranks.rank:
            follow(ranks, lambda: folder, "cpu")
        else:
            several = ranks.size > 1
            with leading(ranks, Way(*way)) if several else nullcontext(weft.load) as load:
                load(folder, device="cpu", context=32, dtype="float32").logits(IDS[:20])
        Path(f"{file}{ranks.rank}").write_text(str(peak_rss_mib() - before))


@needs_mpi
@pytest.mark.slow
@pytest.mark.parametrize("what", ["layers", "columns"])
def test_memory_is_divided(what: str, tmp_path: Path) -> None:
    """Of 242 MiB of weights: what a process takes, and what the larger of two ranks does. Half of
    the weights, and a compiler each: nothing is cached, or only one side might compile."""
    sizes = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 4,
             "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 128,
             "dtype": "bfloat16"}  # fmt: skip
    folder = random_folder(tmp_path / "model", {**WIDE, **sizes})
    way = (False, [2, 2]) if what == "layers" else COLUMNS
    most = []
    for count in (1, 2):
        work = json.dumps([way, str(folder), str(tmp_path / f"of{count}.")])
        status, _, err = together(count, __file__, "case_memory", WORK=work, WEFT_CACHE="off")
        assert status == 0, err
        most.append(max(float(f.read_text()) for f in tmp_path.glob(f"of{count}.*")))
    assert most[1] < 0.8 * most[0]


# -- who cannot, and why ---------------------------------------------------------------------------


def case_refused() -> None:
    """Rank 0's errors, one after the other; the ranks go on after each."""
    (good, other, wrong), ranks = json.loads(os.environ["WORK"]), join()
    folders = iter([other, good])
    with ranks.leaving():
        if ranks.rank:
            sys.exit(follow(ranks, lambda: next(folders), "cpu"))
        with leading(ranks, Way(split=[1, 1])) as load:
            for folder, options in wrong:
                with pytest.raises(UsageError) as error:
                    load(folder, **{"device": "cpu", **options})
                print(error.value)
            load(good, device="cpu").logits(IDS[:3])


@needs_mpi
def test_what_is_refused_by_name(tmp_path: Path) -> None:
    small = {**CONFIGS["llama"], "max_position_embeddings": 64}
    good = random_folder(tmp_path / "good", small)
    other = random_folder(tmp_path / "other", small, seed=1)
    deep = random_folder(tmp_path / "deep", {**small, "num_hidden_layers": 3})
    mixed = random_folder(tmp_path / "mixed", CONFIGS["gemma4"])
    wrong = [[deep, {}], [mixed, {}], [good, {"quant": "int8"}], [good, {"device": "oracle"}],
             [good, {"adapters": {"a": "there"}}]]  # fmt: skip
    work = [str(good), str(other), [[str(f), o] for f, o in [*wrong, (good, {})]]]
    status, out, err = together(2, __file__, "case_refused", WORK=json.dumps(work))
    assert status == 0, err
    for line, said in zip(
        out.splitlines(),
        ["the split is 1,1; expected 2", "more than the residual stream", "quant is for one",
         "the oracle runs on one", "adapters are for one", "rank 1 on"],
        strict=True,
    ):  # fmt: skip
        assert said in line
    assert "other files in" in out


def test_columns_that_cannot_be_divided() -> None:
    for name, ranks, said in (
        ("llama", 3, "4 heads"), ("qwen3_moe", 2, "columns of"), ("lfm2", 2, "columns of"),
    ):  # fmt: skip
        config = DECODERS[name](Fields(CONFIGS[name], "config"))
        with pytest.raises(UsageError, match=said):
            check_columns(config, ranks, "model")


# -- placement -------------------------------------------------------------------------------------

AMOUNT = st.floats(1.0, 100.0)


@settings(deadline=None, max_examples=300)
@given(
    layers=st.lists(AMOUNT, min_size=2, max_size=9), ends=AMOUNT, data=st.data(),
)  # fmt: skip
def test_layers_are_placed_as_well_as_can_be(
    layers: list[float], ends: float, data: st.DataObject
) -> None:
    """Against all ways to cut the layers into runs."""
    count = data.draw(st.integers(2, min(3, len(layers))))
    ranks = [
        Measure(data.draw(st.floats(20.0, 500.0)), data.draw(st.floats(1.0, 4.0)))
        for _ in range(count)
    ]
    s = LayerBytes(tuple(layers), ends, ends / 2)

    def slowest(split: tuple[int, ...]) -> float:
        worst, at = 0.0, 0
        for r, (n, rank) in enumerate(zip(split, ranks)):
            held = sum(layers[at : at + n])
            if held + (0 if r else ends) > rank.memory:
                return np.inf
            worst, at = max(worst, (held + (0 if r else ends / 2)) / rank.speed), at + n
        return worst

    ways = [
        w for w in itertools.product(range(1, len(layers)), repeat=count) if sum(w) == len(layers)
    ]
    best = min(map(slowest, ways))
    if best == np.inf:
        with pytest.raises(OutOfMemoryError, match="start more ranks"):
            place(s, ranks)
    else:
        assert slowest(tuple(place(s, ranks))) <= best * (1 + 1e-6)


# -- a rank that is lost ---------------------------------------------------------------------------


def case_lost() -> None:
    """Rank 1 ends, or stops, in the midst of a generation; rank 0 says how it took that."""
    (folder, how), ranks = json.loads(os.environ["WORK"]), join()
    if ranks.rank:
        step, left = pipeline.follow_step, [5]

        def dying(*given: Any) -> None:
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), getattr(signal, how))
            step(*given)

        pipeline.follow_step = dying
    with ranks.leaving():
        if ranks.rank:
            sys.exit(follow(ranks, lambda: folder, "cpu"))
        with leading(ranks, Way(split=[1, 1])) as load:
            load(folder, device="cpu").generate(IDS[:5], max_new_tokens=40)


@needs_mpi
@pytest.mark.parametrize("how,expected", few([("SIGKILL", 9), ("SIGSTOP", LOST)], ("SIGKILL", 9)))
def test_a_lost_rank_ends_all_in_seconds(how: str, expected: int, tmp_path: Path) -> None:
    folder = random_folder(tmp_path, {**CONFIGS["llama"], "max_position_embeddings": 64})
    began, work = time.monotonic(), json.dumps([str(folder), how])
    patience = "3" if how == "SIGSTOP" else "20"  # a busy machine is silent for 3 s
    status, _, err = together(2, __file__, "case_lost", WORK=work, WEFT_PATIENCE=patience)
    assert status == expected and time.monotonic() - began < 200, err
    if how == "SIGSTOP":
        assert "rank 1 on" in err and "said nothing for 3 s" in err


# -- weft launch -----------------------------------------------------------------------------------

PROMPT = "def fibonacci(n):"
PORT = re.compile(r"http://127.0.0.1:(\d+)")


def served(process: subprocess.Popen[str]) -> Listening:
    """The server that a launch has started, once it answers."""
    assert process.stdout is not None and process.stderr is not None
    for line in process.stdout:
        if found := PORT.search(line):
            return Listening("127.0.0.1", int(found[1]))
    raise AssertionError(process.stderr.read())


@needs_mpi
@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["layers", "columns"])
def test_a_server_on_two_ranks(parallel: str, tmp_path: Path) -> None:
    """It answers as one machine; a rank that is killed costs a restart; it ends when told."""
    box = shutil.copytree(box_folder(), tmp_path / "box")
    want = weft.load(box, device="cpu").generate(PROMPT, max_new_tokens=12).text
    line = [sys.executable, "-m", "weft", "launch", "-n", "2", "--restarts", "1", "serve"]
    line += [str(box), "--device", "cpu", "--port", "0", "--parallel", parallel]
    process = subprocess.Popen(
        line, env=environment(PYTHONUNBUFFERED="1", WEFT_PATIENCE="5"), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    body = {"prompt": PROMPT, "max_tokens": 12, "temperature": 0}
    try:
        for again in range(2):
            server = served(process)
            status, answer, _ = server.ask("POST", "/v1/completions", body)
            assert status == 200 and answer["choices"][0]["text"] == want
            if not again:
                os.kill(followers(box)[0], signal.SIGKILL)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=240)
        assert process.returncode == 0 and "starting again, 1 of 1" in err, err
    finally:
        process.kill()


@needs_mpi
@pytest.mark.slow
def test_a_silent_machine_is_503_and_then_the_end(tmp_path: Path) -> None:
    box = shutil.copytree(box_folder(), tmp_path / "box")
    line = [sys.executable, "-m", "weft", "launch", "-n", "2", "serve", str(box)]
    line += ["--device", "cpu", "--port", "0"]
    process = subprocess.Popen(
        line, env=environment(PYTHONUNBUFFERED="1", WEFT_PATIENCE="3"), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        server = served(process)
        os.kill(followers(box)[0], signal.SIGSTOP)
        began = time.monotonic()
        status, answer, _ = server.ask("POST", "/v1/completions", {"prompt": "x", "max_tokens": 9})
        assert status == 503 and time.monotonic() - began < 100, answer
        assert "machine of this server was lost" in answer["error"]["message"]
        _, err = process.communicate(timeout=240)
        assert process.returncode == LOST and "said nothing for 3 s" in err
    finally:
        process.kill()


@needs_mpi
def test_what_the_command_refuses() -> None:
    for words, said in (
        (["--split", "3,x"], "--split is '3,x'"), (["--split", "3,3", "--parallel", "columns"],
        "--split is for layers"), (["--split", "5,3"], "the split is 5,3"),
    ):  # fmt: skip
        line = ["-m", "weft", "run", "x", "--device", "cpu", "--max-new-tokens", "1", *words]
        _, err = (process := started(2, *line)).communicate(timeout=240)
        assert process.returncode == 2 and said in err


@needs_mpi
@pytest.mark.slow
def test_the_benchmark_writes_the_same_in_every_case() -> None:
    line = [sys.executable, "-m", "weft", "bench", "divided", "--json", "--repeats", "1"]
    line += ["--max-new-tokens", "2", "--layers", "2", "--width", "128"]
    made = subprocess.run(line, env=environment(), text=True, capture_output=True, timeout=240)
    assert made.returncode == 0, made.stderr
    results = json.loads(made.stdout)["results"]
    assert len(results) == 4
    assert all((r["sent_kb"] > 0) == ("ranks" in name) for name, r in results.items())
