"""report.md and pictures from results.json, whatever of it is there."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpulab import targets
from gpulab.cases import every
from gpulab.targets import COMPILED, EAGER, HOST, OWN, TRITON, WEFT

Data = Mapping[str, Any]
ORDER = (WEFT, OWN, EAGER, COMPILED, TRITON, HOST)
RATES = {"gflops": "GFLOP/s", "gflops_full": "GFLOP/s (full square)", "gbs": "GB/s"}


def write(folder: Path, data: Data) -> None:
    """report.md, and the pictures where matplotlib is installed."""
    try:
        from gpulab import plots

        pictures, missing = plots.draw(folder, data), ""
    except ImportError as error:
        pictures, missing = [], f"No pictures: {error} (pip install matplotlib)."
    text = "\n\n".join(filter(None, (*sections(data), missing, *map(_picture, pictures))))
    (folder / "report.md").write_text(text + "\n", encoding="utf-8")


def sections(data: Data) -> list[str]:
    """The report's paragraphs and tables."""
    return [
        *_head(data), "## Targets", _targets(data), "## Parts", _parts(data),
        *_check(data), *_sanitizer(data), *_measured(data), *_bench(data), *_tune(data),
    ]  # fmt: skip


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    lines += ["| " + " | ".join(_cell(c) for c in row) + " |" for row in rows]
    return "\n".join(lines)


def _cell(value: object) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")


def _picture(path: Path) -> str:
    return f"![{path.stem}]({path.name})"


def _number(value: float | None, digits: int = 3) -> str:
    return "–" if value is None else f"{value:.{digits}g}"


# -- sections -------------------------------------------------------------------------------------


def _head(data: Data) -> list[str]:
    machine = data.get("machine", {})
    weft, torch = machine.get("weft", {}), machine.get("torch", {})
    roof, copy = machine.get("roofline", {}), machine.get("torch_copy", {})
    name = weft.get("name", "a device that could not be opened")
    rows = [
        ("device", f"{data.get('run', '?')}: {name}"),
        ("driver", weft.get("driver", weft.get("error", "–"))),
        ("weft, Python", f"{weft.get('version', '–')}, {machine.get('python', '–')}"),
        ("PyTorch, CUDA", f"{torch.get('version', 'not here')}, {torch.get('cuda') or '–'}"),
        ("Triton", torch.get("triton") or "not installed"),
        ("transformers", torch.get("transformers") or "not installed"),
        ("FMA peak, float32", f"{_number(roof.get('gflops'), 4)} GFLOP/s"),
        ("matrix units, bf16", f"{_number(roof.get('tile_gflops'), 4)} GFLOP/s"),
        ("read bandwidth", f"{_number(roof.get('read_gbs'), 4)} GB/s"),
        ("copy bandwidth, weft", f"{_number(roof.get('copy_gbs'), 4)} GB/s"),
        ("copy bandwidth, PyTorch", f"{_number(copy.get('gbs'), 4)} GB/s"),
    ]
    if "load" in machine:
        rows.append(("load of the machine before", ", ".join(map(str, machine["load"]))))
    if "error" in torch:
        rows.append(("PyTorch", torch["error"]))
    rehearsal = "A rehearsal with small sizes (--quick): the figures say nothing about the goals."
    lines = [f"# weft on {name}", f"Started {data.get('started', '?')}."]
    if data.get("quick"):
        lines.append(rehearsal)
    if str(data.get("run", "")).startswith("cpu"):
        lines.append("The device is the CPU: the goals are set for an H100 and stand here only to "
                     "show what a GPU's report holds.")  # fmt: skip
    return [*lines, table(("", ""), rows)]


def _targets(data: Data) -> str:
    found = targets.verdicts(data, bool(data.get("quick")))
    rows = [(v.part, v.what, _number(v.value), f"{v.goal:g}", v.outcome, v.note) for v in found]
    counts = {o: sum(v.outcome == o for v in found) for o in ("met", "missed", "not measured")}
    said = ", ".join(f"{n} {outcome}" for outcome, n in counts.items())
    header = ("part", "ratio", "measured", "at least", "outcome", "")
    return f"{said}.\n\n{table(header, rows)}"


def _parts(data: Data) -> str:
    rows = [
        (name, part.get("state", "?"), part.get("seconds", "–"), part.get("why", ""))
        for name, part in data.get("parts", {}).items()
    ]
    return table(("part", "state", "seconds", "what is missing"), rows)


def _check(data: Data) -> list[str]:
    found = data.get("check", {})
    if not found:
        return []
    rows = [
        (level, r["state"], r.get("ok", "–"), r.get("fail", "–"), r.get("skip", "–"))
        for level, r in found.items()
    ]
    failures = [f"- {level}: {f}" for level, r in found.items() for f in r.get("failures", [])]
    made = ["## Conformance", table(("level", "state", "passed", "failed", "skipped"), rows)]
    return [*made, "\n".join(failures)]


def _sanitizer(data: Data) -> list[str]:
    found = data.get("sanitizer", {})
    if not found:
        return []
    rows = [(t, r["state"], " ".join(r.get("summary", []))) for t, r in found.items()]
    first = [f"- {t}: {line}" for t, r in found.items() for line in r.get("first", [])]
    made = ["## compute-sanitizer", table(("tool", "outcome", "summary"), rows)]
    return [*made, "\n".join(first)]


def _measured(data: Data) -> list[str]:
    found = data.get("cases", {})
    if not found:
        return []
    known = list(every(bool(data.get("quick"))))
    cases = {name: found[name] for name in sorted(found, key=lambda n: (*known, n).index(n))}
    there = [who for who in ORDER if any(who in c["results"] for c in cases.values())]
    others = there[1:]
    header = ["case", *(f"{who}, ms" for who in there)]
    header += [*(f"{who} / weft" for who in others), "weft"]
    rows, failed = [], []
    for name, case in cases.items():
        times = [targets.figure(data, name, who) for who in there]
        ratios = [targets.ratio(data, name, who) for who in others]
        rows.append([name, *(_number(t, 4) for t in times), *(_number(r) for r in ratios),
                     _rate(case)])  # fmt: skip
        for who, result in case["results"].items():
            if "error" in result:
                failed.append(f"- {name}, {who}: {result['error']}")
    intro = ("Medians of rounds in which contenders took turns; a ratio above 1 says that weft is "
             "faster. Operands lie on the device; moving them is not counted.")  # fmt: skip
    spread = f"Rounds of one contender differ by up to {_spread(data):.0%} of their median."
    return ["## Times", intro, table(header, rows), spread, "\n".join(failed)]


def _rate(case: Mapping[str, Any]) -> str:
    mine = case["results"].get(WEFT, {})
    unit = case.get("unit", "")
    if unit in mine:
        return f"{mine[unit]:,.1f} {RATES[unit]}"
    return f"{mine['tok_s']:,.1f} tokens/s" if "tok_s" in mine else "–"


def _spread(data: Data) -> float:
    """The largest (greatest - least) / median of round medians over all cases."""
    found = [0.0]
    for case in data.get("cases", {}).values():
        for result in case["results"].values():
            rounds = result.get("rounds_ms", [])
            if len(rounds) > 1 and result["median_ms"]:
                found.append((max(rounds) - min(rounds)) / result["median_ms"])
    return max(found)


def _bench(data: Data) -> list[str]:
    found = data.get("bench", {})
    if not found:
        return []
    rows = [(f"weft bench {name}", r["state"]) for name, r in found.items()]
    return ["## The shipped benchmarks", table(("command", "state"), rows)]


def _tune(data: Data) -> list[str]:
    found = data.get("tune", {})
    if not found:
        return []
    rows = [
        (
            c["kind"],
            c["class"],
            c["config"] or "default",
            _number(c["default_ms"]),
            _number(c["ms"]),
        )
        for c in found["classes"]
    ]
    header = ("kind", "class", "fastest", "default, ms", "fastest, ms")
    return ["## weft tune", table(header, rows)]


if __name__ == "__main__":  # the report of a results.json that is there already
    there = Path(sys.argv[1])
    write(there, json.loads((there / "results.json").read_text(encoding="utf-8")))
