"""Runs the node tests of the installed onnx package with weft and with ONNX Runtime, and writes the
tables of docs/onnx.md again: python scripts/onnx_table.py (ten minutes on two cores). With
--again only what docs/results/onnx.json lacks is run."""

from __future__ import annotations

import json
import re
import sys
import time
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "importers"))

import onnx_cases as kit  # noqa: E402

from weft.core import text  # noqa: E402

PAGE, RESULTS = ROOT / "docs" / "onnx.md", ROOT / "docs" / "results" / "onnx.json"


def verdict(run: Any, case: kit.Case) -> str:
    """ "" where the test passes, else in one line why not."""
    try:
        run(case)
    except Exception as error:  # whatever either of them raises is a failure
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        shown = " ".join(lines[:3]) or type(error).__name__
        return re.sub(r"[\x00-\x1f|]+", " ", f"{type(error).__name__}: {shown}")[:200]
    return ""


def measured(known: dict[str, Any]) -> dict[str, Any]:
    """Case -> its operator, whether it has types of the host alone, and both verdicts."""
    found: dict[str, Any] = {}
    start = time.time()
    for case in kit.cases():
        found[case.name] = known.get(case.name) or {
            "operator": case.operator,
            "wide": case.wide,
            "weft": verdict(kit.by_weft, case),
            "onnxruntime": verdict(kit.by_onnxruntime, case),
        }
        if len(found) % 100 == 0:
            print(f"{len(found)} cases, {time.time() - start:.0f} s", file=sys.stderr)
            RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return found


def tables(found: dict[str, Any]) -> dict[str, str]:
    """Mark -> table: sums, by operator, and failures with their reasons."""
    sums = []
    for title, wide in (("types that devices have", False), ("types of the host alone", True)):
        rows = [r for r in found.values() if r["wide"] is wide]
        passed = [sum(not r[who] for r in rows) for who in ("weft", "onnxruntime")]
        shares = [f"{p} ({100 * p / len(rows):.1f} %)" for p in passed]
        sums.append([title, len(rows), *shares])
    by: dict[str, list[Any]] = defaultdict(list)
    for row in found.values():
        by[row["operator"]].append(row)
    counted = [
        [op, len(rows), *(sum(not r[who] for r in rows) for who in ("weft", "onnxruntime"))]
        for op, rows in sorted(by.items())
    ]
    failed = [[f"`{name}`", row["weft"]] for name, row in found.items() if row["weft"]]
    return {
        "sums": text.markdown(["node tests with", "cases", "weft", "ONNX Runtime"], sums),
        "operators": text.markdown(["operator", "cases", "weft", "ONNX Runtime"], counted),
        "failures": text.markdown(["case", "what happens"], failed),
    }


def _filled(table: str, mark: re.Match[str]) -> str:
    return f"{mark[1]}{table}\n"


def main() -> None:
    """Measures and writes."""
    again = "--again" in sys.argv and RESULTS.exists()
    found = measured(json.loads(RESULTS.read_text(encoding="utf-8")) if again else {})
    RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    page = PAGE.read_text(encoding="utf-8")
    for mark, table in tables(found).items():
        page = re.sub(rf"(<!-- {mark} -->\n)(\|.*\n?)*", partial(_filled, table), page)
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
