"""Runs the tests of the array API standard on weft: python scripts/array_api_suite.py FOLDER

FOLDER is a clone of data-apis/array-api-tests with its submodule; it is copied, not changed. The
copy has two lines mended that need a module to have complex numbers. Needs what its
requirements.txt lists. `--examples N` sets how many examples each test draws (default 30). Prints
how many tests passed, how many need complex numbers, and each other one that failed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_WIDEST = "[(dt, dtype_nbits[dt]) for dt in complex_dtypes], key=lambda x: x[1]"
MENDED = {  # file of the suite: (what it says, what it says in the copy)
    "dtype_helpers.py": (_WIDEST, f"{_WIDEST}, default=(None,)"),
    "test_signatures.py": ("dh.dtype_to_name[dh.widest_complex_dtype]", '"complex128"'),
}
COMPLEX = re.compile(r"imag\(|fft|test_vecdot_conj|_complex")


def copied(suite: Path, folder: Path) -> Path:
    """A copy of the suite that collects its tests without complex numbers."""
    made = Path(shutil.copytree(suite, folder / "suite", ignore=shutil.ignore_patterns(".git")))
    for name, (old, new) in MENDED.items():
        path = made / "array_api_tests" / name
        text = path.read_text(encoding="utf-8")
        if old not in text:
            raise SystemExit(f"{name} of the suite has changed: {old!r} is not in it")
        path.write_text(text.replace(old, new), encoding="utf-8")
    return made


def outcomes(suite: Path, examples: int) -> dict[str, str]:
    """Each test that was run, and how it came out."""
    report = suite / "report.json"
    settings = {
        "ARRAY_API_TESTS_MODULE": "weft",
        "ARRAY_API_TESTS_VERSION": "2024.12",
        "ARRAY_API_TESTS_SKIP_DTYPES": "complex64,complex128",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    command = [
        sys.executable, "-m", "pytest", "-q", "-W", "ignore", "--tb=no", "--disable-deadline",
        "--derandomize", f"--max-examples={examples}", "--json-report",
        f"--json-report-file={report}", "array_api_tests",
    ]  # fmt: skip
    ran = subprocess.run(
        command, cwd=suite, env=os.environ | settings, capture_output=True, text=True, check=False
    )
    if not report.exists():
        raise SystemExit(ran.stdout + ran.stderr)
    tests = json.loads(report.read_text(encoding="utf-8"))["tests"]
    return {t["nodeid"].removeprefix("array_api_tests/"): t["outcome"] for t in tests}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--examples", type=int, default=30)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = outcomes(copied(given.folder, Path(folder)), given.examples)
    failed = [name for name, outcome in found.items() if outcome in ("failed", "error")]
    others = [name for name in failed if not COMPLEX.search(name)]
    passed = sum(outcome == "passed" for outcome in found.values())
    skipped = len(found) - passed - len(failed)
    print(f"{len(found)} tests: {passed} passed, {skipped} skipped by the suite, "
          f"{len(failed) - len(others)} need complex numbers, {len(others)} failed")  # fmt: skip
    print(f"{passed / (passed + len(others)):.1%} of those that need none passed")
    print("\n".join(others))


if __name__ == "__main__":
    main()
