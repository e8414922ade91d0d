"""AArch64: what its processors are asked, and weft itself on one (emulated, by scripts/arm64)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from weft.backends.cpu import arm
from weft.backends.llvm.target import cpu_target

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv" / "arm64" / "python"

# Every bit of a training run and of a text: losses, parameters, tokens.
RUN = """
import hashlib, numpy as np, weft
from weft import nn, optim
from weft.hub.box import box_folder
rng = np.random.default_rng(0)
net = nn.Sequential(nn.Linear(40, 96), nn.GELU(), nn.LayerNorm(96), nn.Linear(96, 10))
with weft.no_grad():
    for p in net.parameters():
        p.assign(weft.tensor(rng.standard_normal(p.shape).astype(np.float32) * np.float32(0.2)))
net.to("cpu")
opt = optim.AdamW(net.parameters(), lr=1e-2)
x = weft.tensor(rng.standard_normal((600, 40)).astype(np.float32), device="cpu")
y = weft.tensor(rng.integers(0, 10, 600).astype(np.int32), device="cpu")
def step(x, y):
    loss = weft.functional.cross_entropy(net(x), y)
    loss.backward(); opt.step(); opt.zero_grad()
    return loss
run = weft.compile(step, device="cpu")
print([float(run(x, y).numpy()).hex() for _ in range(4)])
total = b"".join(p.numpy().tobytes() for p in net.parameters())
print(hashlib.sha256(total).hexdigest())
for how in ({"dtype": "float32"}, {"quant": "int8"}):
    model = weft.load(box_folder(), device="cpu", context=64, **how)
    print([*model.generate("def fibonacci(n):", max_new_tokens=8).ids])
"""


def test_what_the_system_says_replaces_what_llvm_found():
    found = frozenset({"dotprod", "lse"})
    assert arm.merged("+neon,-dotprod,+sve", found) == "+neon,+dotprod,+lse"
    assert arm.merged("", frozenset()) == ""
    assert arm.merged("+avx2", None) == "+avx2"


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_each_system_is_asked_in_its_own_way(monkeypatch, system):
    asked = []
    monkeypatch.setattr(arm, "is_arm", lambda: True)
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(arm, "_sysctl", lambda name: asked.append(name) or name.endswith("DotProd"))
    monkeypatch.setattr(arm, "_windows", lambda number: asked.append(number) or number == 43)
    assert arm.features() == {"dotprod"}
    assert asked


def test_a_system_without_an_answer_leaves_it_to_llvm(monkeypatch):
    monkeypatch.setattr(arm, "is_arm", lambda: True)
    monkeypatch.setattr(sys, "platform", "linux")

    def fails(entry):
        raise AttributeError("getauxval")

    monkeypatch.setattr(arm, "_auxiliary", fails)
    assert arm.features() is None


def test_sums_of_four_products_by_what_the_processor_has():
    def dots(*features):
        target = cpu_target("aarch64-linux", frozenset(features))
        return bool(target.dot4_signed), bool(target.dot4)

    assert dots() == (False, False)
    assert dots("dotprod") == (True, False)
    assert dots("dotprod", "i8mm") == (True, True)


# -- weft on an arm64 Debian ----------------------------------------------------------------------


def there(*arguments, cpu="max", **options):
    """Standard output of the emulated machine's Python."""
    if not PYTHON.exists():
        pytest.skip("no arm64 Debian: sh scripts/arm64 sets one up")
    environment = {**os.environ, "QEMU_CPU": cpu, "PYTHONPATH": str(ROOT), **options}
    command = [str(PYTHON), *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_training_run_and_texts_have_the_same_bits_there():
    here = subprocess.run(
        [sys.executable, "-c", RUN], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert there("-c", RUN) == here.stdout
    assert there("-c", RUN, WEFT_NUM_THREADS="1") == here.stdout


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("cpu", ["max", "cortex-a57"])  # with dot products of bytes, and without
def test_the_first_levels_of_the_check_pass_there(cpu):
    told = there("-m", "weft", "check", "--device", "cpu", "--level", "device", "--level",
                 "kernels", cpu=cpu)  # fmt: skip
    assert "failed" not in told


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_thread_pool_there():
    there("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/backends/test_cpu_threads.py")
