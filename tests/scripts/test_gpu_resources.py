"""scripts/gpu_resources.py --kinds: what it counts, against kernels whose figures are known."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from weft.backends.llvm.occupancy import groups, occupancy
from weft.backends.llvm.resources import Resources
from weft.core import dtypes as dt
from weft.core.errors import UsageError
from weft.kernel import expr as kb
from weft.kernel.builder import Builder

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

from gpu_kernels.cases import graphs
from gpu_kernels.judge import figures, summary, worst
from gpu_kernels.mix import mix
from gpu_kernels.traffic import traffic

N = 1024


def copy_kernel(index, shared=False):
    """y[i] = x[index(i)] of N elements, 64 threads a group; or out of shared memory."""
    b = Builder("copy")
    x, y = b.buffer("x", dt.float32, 32 * N), b.buffer("y", dt.float32, N, "w")
    i = b.let(b.group(0) * 64 + b.thread(0), "i")
    if shared:
        x = b.array("x_", dt.float32, 32 * N, "shared")
    b.store(y, i, kb.load(x, b.let(index(i), "at")))
    return b.kernel((N // 64,), (64,), bytes=8 * N)


def test_neighbours_share_what_memory_gives():
    found = traffic(copy_kernel(lambda i: i), 32)
    assert (found.grid, found.used, found.asked, found.fetched) == (N // 64, 8 * N, 8 * N, 8 * N)


def test_threads_apart_use_a_part_of_what_memory_gives():
    found = traffic(copy_kernel(lambda i: i * 32), 32)
    assert (found.used, found.asked) == (8 * N, 4 * N + 32 * N)


def test_threads_that_read_one_address_fetch_it_once():
    found = traffic(copy_kernel(lambda i: i // 32), 32)
    assert found.used == 8 * N and found.asked == 4 * N + 32 * N // 32


@pytest.mark.parametrize(("step", "turns"), [(1, 1), (2, 2), (32, 32), (33, 1)])
def test_banks_of_shared_memory(step, turns):
    found = traffic(copy_kernel(lambda i: i % 64 * step, shared=True), 32)
    assert found.turns == turns * found.shared


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "arch", "count"),
    [
        (256, 128, 0, "sm_80", 2),  # 65,536 registers
        (256, 32, 0, "sm_80", 8),  # 2,048 threads
        (128, 32, 81 << 10, "sm_90", 2),  # 228 KiB, and 1 KiB a group
        (32, 16, 0, "sm_120", 24),  # groups
        (256, 128, 0, "gfx90a", 4),  # 4 waves of 128 registers on a scheduler
        (256, 64, 33 << 10, "gfx942", 1),  # 64 KiB of LDS
        (256, 96, 0, "gfx1100", 8),  # 16 waves of 96 registers on a scheduler
    ],
)
def test_groups_that_a_core_holds(threads, registers, shared, arch, count):
    assert groups(Resources(threads, registers, shared, 0, 0), arch) == count


def test_occupancy_is_a_share_of_waves():
    assert occupancy(Resources(256, 128, 0, 0, 0), "sm_80") == 0.25
    with pytest.raises(UsageError, match="limits of sm_86"):
        occupancy(Resources(256, 128, 0, 0, 0), "sm_86")


def test_instructions_in_loops_count_more():
    text = "\n".join([
        "\tld.global.v4.b32 \t{%r1, %r2, %r3, %r4}, [%rd1];",
        "$L__BB0_1:",
        "\tfma.rn.f32 \t%f1, %f2, %f3, %f1;",
        "\tld.global.b32 \t%r1, [%rd1];",
        "\t@%p1 bra \t$L__BB0_1;",
        "\tret;",
    ])  # fmt: skip
    shares, width = mix(text)
    assert (shares["memory"], shares["floats"]) == (9 / 26, 8 / 26) or shares["memory"] == 0.346
    assert width == round((16 + 8 * 4) / 9, 1)


def test_every_case_is_a_graph_and_a_kind_makes_tables():
    assert len([make() for _, _, make in graphs()]) > 80
    found = figures("gfx942", "gather")
    assert "| gather | 1 |" in summary(found) and "beyond its bound" in worst(found)
