"""The rank of this process among those that an MPI launcher started."""

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


def launched() -> int:
    """The number of ranks that the launcher of this process started; 1 without a launcher."""
    for name in SIZES:
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
    Raises UsageError where mpi4py is missing, RankError where it is of another MPI than the
    launcher."""
    size = launched()
    if size <= 1:
        return SingleRank()
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
