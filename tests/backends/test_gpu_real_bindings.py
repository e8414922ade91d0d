"""The vendors' own Python bindings between weft's driver and a small C library of ours: what weft
hands over is what the bindings take, and arrives as what was meant."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("gpu_library.c")
LIBRARY = {"cuda": "libcuda.so.1", "hip": "libamdhip64.so"}
PACKAGE = {"cuda": "cuda.bindings.driver", "hip": "rocm.bindings.hip"}
pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("cc") is None, reason="needs Linux and a C compiler"
)

PLAY = """
import ctypes, importlib, sys
import numpy as np
from weft.backends.gpu import Driver
from weft.core.errors import CompileError, DeviceError, OutOfMemoryError

kind, library = sys.argv[1:]
backend = importlib.import_module(f"weft.backends.{kind}")
api, arch = {"cuda": ("CudaApi", "sm_90"), "hip": ("HipApi", "gfx942")}[kind]
(line,) = backend.probe()
assert (line.available, line.name, line.memory, line.extra["arch"]) == (
    True, "fake GPU", 1 << 30, arch), line
driver = Driver(getattr(backend, api)(), 0)
a, b = driver.alloc(1000), driver.alloc(1000)
x, y = np.arange(250, dtype=np.int32), np.zeros(250, np.int32)
driver.write(a, x.ctypes.data, 1000)
driver.copy(b, a, 1000)
driver.read(y.ctypes.data, b, 1000)
assert (x == y).all()
driver.fill(b, 3, 1000)
driver.read(y.ctypes.data, b, 1000)
assert (y == 0x03030303).all()

code = {"cuda": b"// PTX", "hip": b"\\x7fELF"}[kind]
function = driver.load(code, "weft_k", 99 << 10)
driver.launch(function, (5, 4, 3), (32, 2, 1), [a, b, 1 << 40], 99 << 10)
values = ctypes.CDLL(library).weft_launched
values.restype = ctypes.POINTER(ctypes.c_uint64)
assert values()[:10] == [5, 4, 3, 32, 2, 1, 99 << 10, a, b, 1 << 40]

driver.record()
driver.fill(a, 0, 8)
driver.free(b)
graph = driver.recorded()
driver.replay(graph)
driver.forget(graph)
assert np.allclose(driver.times([driver.mark(), driver.mark(), driver.mark()]), 0.002)

for error, said, use in (
    (CompileError, {"cuda": "ptxas fatal: nonsense", "hip": "hipErrorNoBinaryForGpu (209)"}[kind],
     lambda: driver.load(b"nonsense", "weft_k")),
    (DeviceError, "(500)", lambda: driver.load(code, "weft_other")),
    (OutOfMemoryError, "1,000 of 2,000 bytes are free", lambda: driver.alloc(1 << 21)),
):
    try:
        use()
    except error as raised:
        assert said in str(raised), raised
    else:
        raise AssertionError(said)
driver.sync()
driver.free(a)
driver.close()
print("done")
"""


@pytest.mark.parametrize("pools", ["on", "off"])
@pytest.mark.parametrize("kind", ["cuda", "hip"])
def test_real_bindings(kind: str, pools: str, tmp_path: Path) -> None:
    pytest.importorskip(PACKAGE[kind])
    library = tmp_path / LIBRARY[kind]
    flags = [f"-Wl,-soname,{LIBRARY[kind]}", *(["-DHIP"] if kind == "hip" else [])]
    subprocess.run(["cc", "-shared", "-fPIC", *flags, "-o", library, SOURCE, "-ldl"], check=True)
    where = os.pathsep.join([str(tmp_path), os.environ.get("LD_LIBRARY_PATH", "")])
    root = str(SOURCE.parents[2])
    env = os.environ | {"LD_LIBRARY_PATH": where, "PYTHONPATH": root, "WEFT_POOL": pools}
    done = subprocess.run(
        [sys.executable, "-c", PLAY, kind, library],
        capture_output=True, text=True, env=env, cwd=root,
    )  # fmt: skip
    assert done.stdout == "done\n", done.stderr[-2000:]
