"""`weft compile`: a model in one file gives what its folder gives, bit for bit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_zoo import VOCAB, write_model, write_tokenizer
from present import opened
from rows import few

import weft
from weft.backends import registry
from weft.backends.presets import caps_of
from weft.cli.main import invoke
from weft.core.errors import DeviceError, FileFormatError, UsageError
from weft.host.mapped import mapped_files
from weft.models.run import saved
from weft.models.run.compiled_runner import step_sizes

IDS = np.random.default_rng(0).integers(0, VOCAB, 40)
OPTIONS = {"max_new_tokens": 12, "temperature": 1.3, "top_p": 0.95, "seed": 3}


def kept(model: Any, path: Path, device: str = "cpu", beside: bool = False) -> Path:
    saved.save(model, path, device, caps_of(device), {}, beside)
    return path


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("llama2", {}),
        pytest.param("gemma2", {"dtype": "float16"}, marks=pytest.mark.slow),
        pytest.param("qwen3", {"quant": "int4", "act_dtype": "int8"}, marks=pytest.mark.slow),
        ("gpt2", {"cache": "int8", "max_batch": 3}),
    ],
)
def test_a_decoder(zoo: Any, tmp_path: Path, name: str, options: dict[str, Any]) -> None:
    folder, _ = zoo(name)
    model = weft.load(folder, device="cpu", **{"context": 64, "max_batch": 1, **options})
    again = weft.load(kept(model, tmp_path / "m.weft"), device="cpu")
    np.testing.assert_array_equal(again.logits(IDS), model.logits(IDS))
    prompts = [IDS[:9], [3], IDS[5:30]]
    assert again.generate(prompts, **OPTIONS) == model.generate(prompts, **OPTIONS)
    assert again.precision == model.precision and again.context == 64
    assert mapped_files(again.weights.values())


def test_text_and_chat(tmp_path: Path) -> None:
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<a>"
    write_model("llama2", tmp_path / "folder")
    write_tokenizer(tmp_path / "folder", chat_template=template)
    model = weft.load(tmp_path / "folder", device="cpu", max_batch=1)
    again = weft.load(kept(model, tmp_path / "m.weft"))
    assert again.generate("def f(x)", **OPTIONS) == model.generate("def f(x)", **OPTIONS)
    turns = [{"role": "user", "content": "x = 1"}]
    assert again.chat_ids(turns) == model.chat_ids(turns)


def test_an_encoder(tmp_path: Path) -> None:
    write_model("bert", tmp_path / "folder")
    write_tokenizer(tmp_path / "folder")
    model = weft.load(tmp_path / "folder", device="cpu")
    again = weft.load(kept(model, tmp_path / "m.weft"))
    texts = ["def f", "return x + 1", "x", "def f(x): return x"]
    alone = [model.embed(text)[0] for text in texts]
    np.testing.assert_array_equal(again.embed(texts), alone)


def test_for_a_gpu_that_is_not_here(zoo: Any, tmp_path: Path) -> None:
    """Compiled for WebGPU's default limits, played on what has more."""
    folder, _ = zoo("llama2")
    model = weft.load(folder, device="cpu", context=32, max_batch=1, dtype="float32")
    path = kept(model, tmp_path / "m.weft", "webgpu")
    with pytest.raises(DeviceError, match="groups of threads"):
        weft.load(path, device="cpu")
    again = weft.load(path, device=opened("vulkan"))
    np.testing.assert_allclose(again.logits(IDS[:8]), model.logits(IDS[:8]), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "target",
    few(["cpu-neon", "cpu-avx512", "sm_90", "gfx942", "hip-wave32"], "cpu-neon", "sm_90", "gfx942"),
)
def test_every_preset_compiles(zoo: Any, tmp_path: Path, target: str) -> None:
    folder, _ = zoo("llama2")
    model = weft.load(folder, device="cpu", context=32, max_batch=1)
    assert kept(model, tmp_path / "m.weft", target).stat().st_size > 10_000


def test_the_same_bytes_in_every_process(zoo: Any, tmp_path: Path) -> None:
    folder, _ = zoo("llama2")
    made = []
    for seed in ("1", "2"):
        out = tmp_path / f"{seed}.weft"
        command = [sys.executable, "-m", "weft", "compile", str(folder), "-o", str(out)]
        command += ["--device", "cpu-avx2", "--context", "32"]
        subprocess.run(command, check=True, env={**os.environ, "PYTHONHASHSEED": seed})
        made.append(out.read_bytes())
    assert made[0] == made[1]


def test_weights_beside(zoo: Any, tmp_path: Path) -> None:
    folder, _ = zoo("llama2")
    model = weft.load(folder, device="cpu", context=32, max_batch=1)
    first = kept(model, tmp_path / "a.weft", beside=True)
    second = kept(model, tmp_path / "b.weft", beside=True)
    (weights,) = tmp_path.glob("*.weights")  # one file serves both
    assert first.stat().st_size < weights.stat().st_size + first.stat().st_size
    np.testing.assert_array_equal(weft.load(second).logits(IDS[:5]), model.logits(IDS[:5]))
    raw = bytearray(weights.read_bytes())
    raw[len(raw) // 2] ^= 1
    weights.write_bytes(raw)
    with pytest.raises(FileFormatError, match="does not match its name"):
        weft.load(first)
    weights.unlink()
    with pytest.raises(FileFormatError, match="not in the same folder"):
        weft.load(first)


def test_what_comes_too_late(zoo: Any, tmp_path: Path) -> None:
    folder, _ = zoo("llama2")
    path = kept(weft.load(folder, device="cpu", context=32, max_batch=1), tmp_path / "m.weft")
    for late in ({"dtype": "float16"}, {"quant": "int4"}, {"context": 16}, {"device": "oracle"}):
        with pytest.raises(UsageError, match="too late"):
            weft.load(path, **late)


def test_the_command(zoo: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, _ = zoo("llama2")
    out = tmp_path / "m.weft"
    assert invoke(["compile", str(folder), "-o", str(out), "--context", "32"]) == 0
    sizes = [n for n in step_sizes(registry.get("cpu").caps) if n > 1]  # with AMX 16 rows too
    names = ", ".join(["prefill", "decode", *(f"rows{n}" for n in sizes)])
    assert f"{names} for cpu" in capsys.readouterr().out
    assert invoke(["compile", str(folder), "-o", str(out), "--device", "tpu"]) == 2
    assert "sm_90" in capsys.readouterr().err
