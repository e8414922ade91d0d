"""A model's layers on several ranks: the bits of one machine, its share of the memory."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "models"))
from model_zoo import write_model
from rows import few
from several import needs_mpi, together

import weft
from weft.models.inputs import PAGE
from weft.models.machines.load import Way, follow, leading
from weft.ranks import join

IDS = np.random.default_rng(7).integers(0, 90, 150).tolist()
Job = tuple[Path, dict[str, Any]]  # a folder, options of weft.load


def answers(model: Any) -> dict[str, np.ndarray]:
    """Logits of a prompt, tokens of generations at once and alone, and what a paged runner gives
    for prompts in parts and for rows of several slots."""
    made = {"logits": model.logits(IDS)}
    texts = model.generate([IDS[:9], IDS[:40], IDS[5:8]], max_new_tokens=12, temperature=0.8)
    texts.append(model.generate(IDS[:20], max_new_tokens=12))
    made |= {f"ids{i}": np.array(text.ids) for i, text in enumerate(texts)}
    columns = -(-model.context // PAGE)
    runner = model.paged_runner(3, 3 * columns + 1)
    pages = 1 + np.random.default_rng(0).permutation(runner.pages - 1)
    runner.tables[:] = pages.reshape(3, columns)
    made["prompt"] = runner.prefill(2, IDS[:70]).copy()
    made["rest"] = runner.prefill(2, IDS[70:100], 70).copy()
    runner.prefill(0, IDS[:5])
    made["rows"] = runner.rows([3, 4, 5], [2, 0, 0], [100, 5, 6]).copy()
    made["many"] = runner.rows(IDS[:40], [1] * 40, range(40)).copy()
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


FAMILIES = ["gemma3", "gpt2", "gpt_oss", "lfm2", "llama3", "qwen3_5"]


@needs_mpi
@pytest.mark.parametrize("name", few(FAMILIES, "gemma3"))
def test_families_have_the_bits_of_one_machine(name: str, tmp_path: Path) -> None:
    """Sliding windows and a tied output, learned positions, sinks and experts, running states."""
    write_model(name, tmp_path / name, changed={"max_position_embeddings": 256})
    options = {"context": 200, "max_batch": 4}
    (got,) = divided(2, tmp_path, [(tmp_path / name, options)])
    assert_same(tmp_path / name, options, got)
