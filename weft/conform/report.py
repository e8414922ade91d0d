"""The outcome of `weft check`: cases, levels, and the table the docs show."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from weft.core import text

Status = Literal["ok", "fail", "skip"]
LEVELS = ("device", "kernels", "primitives", "templates", "models", "stress")


@dataclass(frozen=True)
class CheckResult:
    """One check: what was compared, how it ended, the largest error, and why it failed."""

    level: str
    name: str
    status: Status
    message: str = ""
    max_abs: float = 0.0


@dataclass
class DeviceReport:
    """All cases of one device."""

    device: str
    name: str
    cases: list[CheckResult] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return bool(self.cases) and all(c.status != "fail" for c in self.cases)

    def level(self, level: str) -> list[CheckResult]:
        return [c for c in self.cases if c.level == level]

    def cell(self, level: str) -> str:
        """A level in one cell: "passed 120", "FAILED 2 of 120", "-" when it was not run."""
        cases = self.level(level)
        if not cases:
            return "-"
        failed = sum(c.status == "fail" for c in cases)
        skipped = sum(c.status == "skip" for c in cases)
        tail = f", {skipped} skipped" if skipped else ""
        ran = len(cases) - skipped
        return f"FAILED {failed} of {ran}{tail}" if failed else f"passed {ran}{tail}"

    def as_dict(self) -> dict[str, Any]:
        return {
            "device": self.device,
            "name": self.name,
            "ok": self.ok,
            "levels": {level: self.cell(level) for level in LEVELS},
            "cases": [asdict(c) for c in self.cases],
        }


# A check yields (name, thunk); the thunk returns the largest error, raises Skip or fails.
Check = tuple[str, Callable[[], float]]


class Skip(Exception):
    """Raised by a check that does not apply to this device; the message says why."""


class CheckFailed(Exception):
    """Raised by a check whose answer is wrong; the message says where and by how much."""


def run_checks(report: DeviceReport, level: str, checks: Iterator[Check]) -> Iterator[CheckResult]:
    """Runs checks one by one into the report. Any exception is that case's failure: one bad kernel
    must not hide the others."""
    for name, thunk in checks:
        try:
            case = CheckResult(level, name, "ok", "", float(thunk()))
        except Skip as why:
            case = CheckResult(level, name, "skip", str(why))
        except Exception as error:  # failures belong in the report
            message = str(error) if isinstance(error, CheckFailed) else f"{_kind(error)}: {error}"
            case = CheckResult(level, name, "fail", message.strip().splitlines()[0][:300])
        report.cases.append(case)
        yield case


def _kind(error: Exception) -> str:
    return type(error).__name__


# Devices that no report here has been about, until one is.
_NEVER = dict.fromkeys(("cuda", "hip"), "compiled and interpreted, never run on hardware")


HEAD = "| device | ran on |"  # the table's first line


def table_of(page: str) -> str:
    """The lines of a page's support table; "" where it has none."""
    lines = page.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith(HEAD)), len(lines))
    return "\n".join(itertools.takewhile(lambda line: line.startswith("|"), lines[start:]))


def support_table(reports: list[DeviceReport], previous: str = "") -> str:
    """Returns the Markdown table of docs/support.md: a row per device, a column per level, and
    devices that never ran at the end. Cells without a new result keep the content of `previous`, a
    text with such a table."""
    lines = [line[2:-2].split(" | ") for line in previous.splitlines() if line.startswith("| ")]
    known = {cells[0]: cells for cells in lines if ":" in cells[0] and "---" not in cells[0]}
    for r in reports:
        old = known.get(r.device, ["-"] * (2 + len(LEVELS)))[2:]
        new = [r.cell(level) for level in LEVELS]
        cells = [now if now != "-" else then for now, then in zip(new, old)]
        known[r.device] = [r.device, r.name, *cells]
    rows = [*known.values()]
    seen = {device.partition(":")[0] for device in known}
    rows += [
        [kind, why, *("-" for _ in LEVELS)] for kind, why in _NEVER.items() if kind not in seen
    ]
    return text.markdown(["device", "ran on", *LEVELS], rows)
