"""The memory that control groups leave a process, read from files as Linux shows them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import weft
from weft.backends import registry
from weft.core.errors import OutOfMemoryError
from weft.host import memory

GIB, MIB = 1 << 30, 1 << 20
V2 = "29 23 0:26 / /sys/fs/cgroup rw,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = (
    "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n"
    "33 31 0:30 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "36 31 0:33 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n"
)
NONE = 9223372036854771712  # what version 1 shows where there is no limit


def system(root: Path, own: str, mounts: str, **groups: tuple[object, int, int]) -> Path:
    """Writes the files of a machine with 16 GiB, of which 12 are free; `groups` has limit, use and
    pages of files by the folder's name below /sys/fs/cgroup ("__" for "/")."""
    (root / "proc/self").mkdir(parents=True)
    text = f"MemTotal: {16 << 20} kB\nMemAvailable: {12 << 20} kB\nSwapFree: 0 kB\n"
    (root / "proc/meminfo").write_text(text)
    (root / "proc/self/cgroup").write_text(own)
    (root / "proc/self/mountinfo").write_text(mounts)
    for name, (limit, used, files) in groups.items():
        inner = name.strip("_").replace("__", "/")
        folder = root / "sys/fs/cgroup" / inner
        folder.mkdir(parents=True, exist_ok=True)
        first = inner.split("/")[0] == "memory"
        stat = f"inactive_file {files}\ntotal_inactive_file {files}\nactive_file 0\n"
        (folder / "memory.stat").write_text(stat)
        for file, value in zip(
            ("memory.limit_in_bytes", "memory.usage_in_bytes")
            if first else ("memory.max", "memory.current"),
            (limit, used),
        ):  # fmt: skip
            (folder / file).write_text(f"{value}\n")
    return root


def test_no_group_limits(tmp_path: Path) -> None:
    root = system(tmp_path, "0::/\n", V2)
    assert (memory.total(root), memory.available(root)) == (16 * GIB, 12 * GIB)


def test_version_2_nested(tmp_path: Path) -> None:
    """The process's own group has no limit; one around it has."""
    root = system(
        tmp_path, "0::/user.slice/job/step\n", V2, user__slice=("max", 0, 0),
        **{"user.slice": ("max", 5, 0), "user.slice__job": (2 * GIB, GIB, GIB // 2),
           "user.slice__job__step": ("max", GIB, 0)},
    )  # fmt: skip
    assert memory.total(root) == 2 * GIB
    assert memory.available(root) == GIB + GIB // 2


def test_version_1_nested(tmp_path: Path) -> None:
    root = system(
        tmp_path, "9:name=systemd:/\n5:cpu,cpuacct:/\n4:memory:/a/b\n0::/\n", V1,
        memory=(NONE, 7 * GIB, 0), memory__a=(4 * GIB, 3 * GIB, 0), memory__a__b=(3 * GIB, GIB, 0),
    )  # fmt: skip
    assert memory.total(root) == 3 * GIB
    assert memory.available(root) == GIB  # what the group around has left


def test_a_container_sees_its_group_at_the_top(tmp_path: Path) -> None:
    """The path is the host's, and the file system is mounted from the group on."""
    mounts = V1.replace("0:33 / ", r"0:33 /docker/x\040y ")
    root = system(tmp_path, "4:memory:/docker/x y\n", mounts, memory=(GIB, GIB // 4, 0))
    assert memory.available(root) == GIB - GIB // 4


@pytest.mark.parametrize("path", ["/../../elsewhere", "/gone/away"])
def test_a_group_that_is_not_shown(tmp_path: Path, path: str) -> None:
    root = system(tmp_path, f"0::{path}\n", V2, ___=(5 * GIB, GIB, 0))
    assert memory.available(root) == 4 * GIB


def test_odd_files_limit_nothing(tmp_path: Path) -> None:
    root = system(tmp_path, "0::/a\nx\n:::\n", "bad\n" + V2, a=("much", 0, 0))
    assert memory.available(root) == 12 * GIB
    assert memory.available(tmp_path / "nothing") == 0


def test_many_small_buffers_are_refused_as_a_large_one_is(monkeypatch: pytest.MonkeyPatch) -> None:
    device = registry.get("cpu")
    monkeypatch.setattr(memory, "available", lambda: 1 << 20)
    with pytest.raises(OutOfMemoryError, match="cpu"):
        kept = [device.alloc(16 << 20) for _ in range(8)]
        assert kept is None
    with pytest.raises(MemoryError, match="free"):
        for _ in range(8):
            memory.check(16 << 20)
    monkeypatch.undo()
    assert np.asarray(device.alloc(16 << 20)).nbytes == 16 << 20


@pytest.mark.parametrize("group", [20, 70, 300, 1000])
@pytest.mark.parametrize("size", [1, 6, 40])
def test_small_promises_never_add_up_to_more_than_a_group_has(
    monkeypatch: pytest.MonkeyPatch, group: int, size: int
) -> None:
    """Weights that are converted one by one: the error comes before the system's SIGKILL."""
    made = [0]
    monkeypatch.setattr(memory, "_promised", memory._Promised())
    monkeypatch.setattr(memory, "available", lambda: max(group * MIB - made[0], 1))
    with pytest.raises(MemoryError, match="free"):
        while made[0] <= group * MIB:
            memory.check(size * MIB)
            made[0] += size * MIB
    assert group // 2 - size - (memory.SPARE // MIB) <= made[0] // MIB < group


def test_a_compiler_without_memory_is_not_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Kernels that are on disk need no compiler."""
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path))
    x = np.arange(7, dtype=np.float32)

    def add(value: float) -> np.ndarray:
        made: np.ndarray = weft.compile(lambda t: t * value + 3.25, device="cpu")(x).numpy()
        return made

    first = add(0.3125)
    monkeypatch.setattr(memory, "available", lambda: 20 << 20)
    assert np.array_equal(add(0.3125), first)
    with pytest.raises(OutOfMemoryError, match=r"1 kernel.* 20 MiB are free"):
        add(0.3126)
