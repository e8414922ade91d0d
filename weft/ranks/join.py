"""The rank of this process among those that a launcher started: MPI's, or PyTorch's torchrun."""

from __future__ import annotations

import functools
import os
import shutil
import sys
from pathlib import Path

from weft.core.errors import RankError, UsageError
from weft.core.hints import command
from weft.core.install import how
from weft.ranks.base import Ranks, SingleRank

SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE")  # set by MPICH's, Intel's and Open MPI's launchers
TORCHRUN = "TORCHELASTIC_RUN_ID"  # set by torchrun, beside WORLD_SIZE
WAYS = ("gloo", "nccl")  # of torchrun's ranks


def launched() -> int:
    """The number of ranks that the launcher of this process started; 1 without a launcher."""
    for name in SIZES if TORCHRUN not in os.environ else ("WORLD_SIZE",):
        value = os.environ.get(name, "")
        if value.isdecimal():
            return int(value)
    return 1


def mpiexec() -> Path:
    """MPI's launcher: the one in this Python's folder, else the one in the PATH. Raises
    UsageError."""
    beside = Path(sys.executable).parent / "mpiexec"
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if found is None:
        raise UsageError(f"mpiexec was not found: {how('mpi')}")
    return Path(found)


@functools.cache
def join() -> Ranks:
    """The ranks of this process, once per process; SingleRank() unless a launcher started several.
    Raises UsageError where mpi4py or PyTorch is missing, RankError where the former is of another
    MPI than the launcher."""
    size = launched()
    if size <= 1:
        return SingleRank()
    if TORCHRUN in os.environ:
        return _of_torchrun(size)
    try:
        from weft.ranks.mpi import Mpi
    except (ImportError, RuntimeError) as error:  # mpi4py raises the latter without a libmpi
        raise UsageError(
            f"{size} ranks were started and mpi4py does not load ({error}); on every machine: "
            f"{how('mpi')}"
        ) from None
    made = Mpi()
    if made.size != size:
        raise RankError(
            f"the launcher started {size} ranks, and mpi4py sees {made.size}: they belong to "
            f"different MPIs; use the mpiexec in the folder of this Python, or "
            f"{command('launch', '-n', size, 'COMMAND')}"
        )
    return made


def _of_torchrun(size: int) -> Ranks:
    way = os.environ.get("WEFT_COLLECTIVES") or WAYS[0]
    if way not in WAYS:
        raise UsageError(f"WEFT_COLLECTIVES is {way[:40]!r}; expected gloo or nccl")
    try:
        from weft.ranks.collectives import TorchRanks
    except ImportError as error:
        raise UsageError(
            f"torchrun started {size} ranks and this Python's PyTorch does not load ({error}); "
            "install it on every machine, or start ranks by MPI"
        ) from None
    return TorchRanks(way)
