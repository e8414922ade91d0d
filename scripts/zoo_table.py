"""Loads a tiny random checkpoint of every causal type of transformers, compares it with
transformers, and writes the table of docs/families.md again: python scripts/zoo_table.py (five
minutes on two cores). With names of types only those are run again."""

from __future__ import annotations

import json
import logging
import re
import signal
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "models")]  # this clone, whichever is installed

import causal_zoo as kit  # noqa: E402
import numpy as np  # noqa: E402
import transformers  # noqa: E402

import weft  # noqa: E402
from weft.core.errors import ModelError  # noqa: E402
from weft.models.arch.families import DECODERS  # noqa: E402
from weft.models.zoo import ask, worker  # noqa: E402

PAGE, RESULTS = ROOT / "docs" / "families.md", ROOT / "docs" / "results" / "zoo.json"
SECONDS = 180  # per type
CLOSE = 2e-5  # of the largest logit
OWN = frozenset(DECODERS)


def here(where: str, kind: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """Traces in this process, which has PyTorch already."""
    answer = worker.handle(dict(request))
    if "refused" in answer:
        raise ModelError(answer["refused"])
    return answer


def line(error: Exception) -> str:
    """The first line of an error, for a cell of a table."""
    text = str(error).strip() or type(error).__name__
    return re.sub(r"[\x00-\x1f|]+", " ", text.splitlines()[0])[:160]


def verdict(kind: str) -> dict[str, str]:
    """What came of one type: "result" is equal, recomputed (equal without a cache), differs,
    refused or not built, and why."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            reference = kit.written(kind, Path(folder))
            ids = kit.prompt(reference)
            wanted, tokens = kit.eager(reference, ids), kit.greedy(reference, ids)
        except Exception as error:  # transformers' own, for this tiny config
            return {"result": "not built", "why": line(error)}
        why = ""
        for cache, good in ((None, "equal"), ("none", "recomputed")):
            try:
                model: Any = weft.load(folder, device="cpu", context=64, cache=cache)
                got, found = model.logits(ids), list(model.generate(ids, kit.NEW).ids)
            except Exception as error:
                why = why or line(error).replace(folder, "").lstrip("/: ")
                continue
            lost = float(np.abs(got - wanted).max() / np.abs(wanted).max())
            if lost > CLOSE or found != tokens:
                return {"result": "differs", "why": f"logits by {lost:.1g} of the largest"}
            return {"result": good, "why": why}
        return {"result": "refused", "why": why}


def table(found: dict[str, dict[str, str]]) -> str:
    """The sums, the types that are equal, and the others with their reasons."""
    sums = Counter(row["result"] for row in found.values())
    equal = [f"`{kind}`" for kind, row in found.items() if row["result"] == "equal"]
    said = [
        f"With transformers {transformers.__version__}, {sums['equal']} of {len(found)} types "
        f"equal it, {sums['recomputed']} are recomputed and then equal it too, {sums['differs']} "
        f"differ, {sums['refused']} are refused, and {sums['not built']} were not built: their "
        "tiny config failed in transformers itself.",
        "",
        "Equal: " + ", ".join(equal) + ".",
        "",
        "| type | what came of it | why |",
        "| --- | --- | --- |",
    ]
    rows = [
        f"| `{kind}` | {row['result']} | {row['why']} |"
        for kind, row in found.items()
        if row["result"] != "equal"
    ]
    return "\n".join([*said, *rows])


def late(*_: Any) -> None:
    raise TimeoutError(f"it took more than {SECONDS} s")


def main(kinds: list[str]) -> None:
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    transformers.utils.logging.disable_progress_bar()
    ask._asked = here
    DECODERS.clear()  # families of our own are traced as well
    signal.signal(signal.SIGALRM, late)
    found = json.loads(RESULTS.read_text(encoding="utf-8")) if kinds else {}
    for kind in kinds or kit.TYPES:
        signal.alarm(SECONDS)
        found[kind] = verdict(kind)
        signal.alarm(0)
        print(f"{kind}: {found[kind]['result']} {found[kind]['why']}", file=sys.stderr)
    RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split("<!-- zoo -->", 1)
    after = rest.split("<!-- /zoo -->", 1)[1]
    text = f"{before}<!-- zoo -->\n{table(found)}\n<!-- /zoo -->{after}"
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
