"""`weft check`."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import click

from weft.cli import options
from weft.conform.report import HEAD, LEVELS, CheckResult, DeviceReport
from weft.core import text
from weft.core.errors import UsageError

_SUPPORT = """# Support

The table has the result of `weft check --device D`: cases passed per level. That command writes it.

- `device`: the contract of `weft/program/device.py`
- `kernels`: every Kernel IR node and dtype against the interpreter
- `primitives`: every primitive against its NumPy meaning
- `templates`: fused composites, packed weights and batch independence
- `models`: whole models, one of packed weights among them, logits and forced decoding
- `stress`: a thousand runs without drift or memory growth

"Emulated" devices are instruction sets run by an emulator ([new-hardware.md](new-hardware.md)).
[devices.md](devices.md) defines "compiled and interpreted". [testing.md](testing.md) lists what
emulators of other projects ran, and what they did not.

{table}
"""


class _Progress:
    """One live line per level on a terminal; silent elsewhere."""

    def __init__(self) -> None:
        self.live = sys.stderr.isatty()
        self.count = 0

    def __call__(self, case: CheckResult) -> None:
        self.count += 1
        if case.status == "fail":
            print(f"FAIL {case.level}: {case.name}: {case.message}", file=sys.stderr)
        elif self.live and self.count % 10 == 0:
            print(f"\r{case.level}: {self.count} cases\033[K", end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        if self.live:
            print("\r\033[K", end="", file=sys.stderr)


@click.command(epilog="Example:  weft check --device vulkan --level kernels")
@options.device_option("Device to test. May be repeated.", multiple=True,
                       default=("auto",))  # fmt: skip
@click.option("--level", "levels", multiple=True, type=click.Choice(LEVELS), metavar="LEVEL",
              help=f"Run only this level; may be repeated (default: all): {', '.join(LEVELS)}."
              )  # fmt: skip
@click.option(
    "--write",
    multiple=True,
    type=click.Path(dir_okay=False),
    help="Write the support table into this Markdown page, or create it. Rows of devices not "
    "tested now stay. May be repeated.",
)
@options.as_json
def check(
    device: tuple[str, ...], levels: tuple[str, ...], write: tuple[str, ...], as_json: bool
) -> int:
    """Test that a device computes the same results as the NumPy reference. The exit status is 1 if
    a case fails."""
    from weft.backends import registry
    from weft.conform.check import check_device
    from weft.conform.report import support_table, table_of
    from weft.host.files import write_text

    pages = {Path(path): _page(Path(path)) for path in write}
    reports: list[DeviceReport] = []
    for name in device:
        start, progress = time.perf_counter(), _Progress()
        reports.append(check_device(registry.get(name), levels or LEVELS, progress))
        progress.close()
        seconds = time.perf_counter() - start
        print(f"{name}: {len(reports[-1].cases)} cases in {seconds:.0f} s", file=sys.stderr)
    if as_json:
        click.echo(json.dumps({"ok": all(r.ok for r in reports),
                               "devices": [r.as_dict() for r in reports]}))  # fmt: skip
    else:
        rows = [[r.device, r.name, *(r.cell(level) for level in LEVELS)] for r in reports]
        click.echo(text.table(["device", "name", *LEVELS], rows))
        for report in reports:
            _explain(report)
    for path, page in pages.items():
        old = table_of(page)
        write_text(path, page.replace(old, support_table(reports, old), 1))
    return 0 if all(r.ok for r in reports) else 1


def _page(path: Path) -> str:
    """A page with a support table. Raises UsageError for one that has none."""
    from weft.conform.report import support_table, table_of

    page = path.read_text(encoding="utf-8") if path.exists() else ""
    if not page:
        return _SUPPORT.format(table=support_table([]))
    if not table_of(page):
        raise UsageError(f"{path} lacks a support table (a line that begins {HEAD!r}) to replace")
    return page


def _explain(report: DeviceReport) -> None:
    """Failures, and one line per reason for skipping."""
    for case in report.cases:
        if case.status == "fail":
            click.echo(f"FAIL {case.level}: {case.name}: {case.message}")
    reasons = sorted({c.message for c in report.cases if c.status == "skip"})
    for reason in reasons:
        click.echo(f"skipped: {reason}")
