"""Installs the oldest versions that pyproject.toml allows, and tries weft with them.

    python scripts/lower_bounds.py [EXTRA ...] [--all] [--only-resolve]

Without an EXTRA it tries weft's own dependencies. With --all it tries every extra, each in an
environment of its own below the system's folder for temporary files. For the extra `test`, 2 GB,
pip only checks that its versions fit together. Ends with status 1 and the names of the failed
extras. PYTHON names the interpreter.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TOOLS = ("pytest", "pytest-timeout", "pytest-xdist", "hypothesis", "jsonschema", "gguf")
SMOKE = {  # extra -> commands, tests
    "": (
        ["-m weft devices", "-m weft run def --max-new-tokens 4 --device cpu"],
        ["tests/core", "tests/models/test_hub.py", "tests/cli/test_cli.py", "tests/kernel"],
    ),
    "serve": ([], ["tests/serve/test_openapi.py", "tests/serve/test_structured.py"]),
    "import": ([], ["tests/importers/test_onnx.py"]),
    "train": ([], ["tests/hints", "-k", "draw_curve or report.py"]),
    "bench": ([], ["tests/hints", "-k", "size_picture or side_by_side"]),
    "cuda": ([], ["tests/backends/test_gpu_probe.py"]),
    "hip": ([], ["tests/backends/test_gpu_probe.py"]),
    "otel": ([], ["tests/hints", "-k", "tracing"]),
    "mpi": (["-m weft launch -n 2 devices"], ["tests/ranks/test_transport.py"]),
}


def bounds(project: dict[str, Any], extra: str, tools: bool) -> list[str]:
    """Each requirement of weft and an extra at its lowest; other tools for tests where wanted."""
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras.get(extra, [])]
    if tools:
        wanted += [r for r in extras["test"] if re.split(r"[<>=~; ]", r)[0] in TOOLS]
    pinned = [re.sub(r"(>=|~=)\s*", "==", r.partition(";")[0].strip()) for r in wanted]
    return [*dict.fromkeys(pinned)]


def tried(python: str, project: dict[str, Any], extra: str, resolve: bool) -> str:
    """A description of the failure; "" if there is none."""
    resolve = resolve or extra == "test"
    with tempfile.TemporaryDirectory(prefix="weft-bounds-") as folder:
        here = str(Path(folder, "bin", "python"))
        subprocess.run([python, "-m", "venv", folder], check=True)
        install = [here, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        install += ["--dry-run"] if resolve else []
        done = subprocess.run(
            [*install, *bounds(project, extra, tools=not resolve)], capture_output=True, text=True
        )
        if done.returncode:
            said = [line for line in done.stderr.splitlines() if "WARNING" not in line]
            return "\n".join(["they cannot be installed together", *said[-12:]])
        if resolve:
            return ""
        env = {**os.environ, "PYTHONPATH": str(ROOT), "WEFT_DEVICE": "cpu"}
        env["PATH"] = f"{folder}/bin{os.pathsep}{env['PATH']}"
        commands, tests = SMOKE[extra]
        lines = [each.split() for each in commands]
        lines += [["-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", *tests]] if tests else []
        for line in lines:
            done = subprocess.run(
                [here, *line], cwd=ROOT, env=env, capture_output=True, text=True, check=False
            )
            if done.returncode:
                said = (done.stdout + done.stderr).splitlines()[-25:]
                return "\n".join([f"python {' '.join(line)} fails", *said])
    return ""


def main(words: list[str]) -> int:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [w for w in words if not w.startswith("-")]
    if "--all" in words:
        extras = ["", *project["optional-dependencies"]]
    failed = 0
    for extra in extras or [""]:
        start = time.monotonic()
        why = tried(os.environ.get("PYTHON", sys.executable), project, extra,
                    "--only-resolve" in words)  # fmt: skip
        seconds = time.monotonic() - start
        print(f"{extra or 'weft'}: {why or 'works'} ({seconds:.0f} s)", flush=True)
        failed += bool(why)
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
