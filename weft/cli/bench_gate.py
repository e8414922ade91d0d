"""`weft bench gate`: has a part of weft lost half its speed?"""

from __future__ import annotations

import click

from weft.cli import options
from weft.cli.bench_parts import emit, progress, say
from weft.core.errors import DeviceError, UsageError
from weft.core.hints import command


@click.command(epilog="Example:  weft bench gate --only int8")
@options.device_option("The device to measure.")
@click.option("--only", default="", help="Comma list: cases whose name contains one of these.")
@options.threads
@options.repeats(7)
@click.option("--write", "writes", is_flag=True,
              help="Commit the measured shares for this class of machines.")  # fmt: skip
@options.as_json
def gate(device: str, only: str, repeats: int, writes: bool, as_json: bool) -> None:
    """Time products, attention, norms and a convolution, each in turn with the device's own peak,
    and compare the shares with the committed ones. The exit status is 1 if a share is below 0.7 of
    its committed one."""
    from weft.backends import registry
    from weft.bench import gate as bench_gate, gate_cases

    parts = [part for part in only.split(",") if part]
    every = gate_cases.cases()
    cases = [c for c in every if not parts or any(part in c.name for part in parts)]
    if not cases:
        known = ", ".join(case.name for case in every)
        raise UsageError(f"no case matches --only {only!r}; there are {known}")
    result = bench_gate.run(registry.get(device), cases, repeats, progress=progress)
    progress("")
    expected = bench_gate.committed().get(result["machine"], {})
    rows = [[n, s, expected.get(n, "-"), next(c.peak for c in cases if c.name == n)]
            for n, s in result["results"].items()]  # fmt: skip
    result["committed"] = expected
    emit(result, as_json, ["case", "share", "committed", "of the peak of"], rows)
    if writes:
        bench_gate.write(result)
    elif not expected:
        again = command("bench", "gate", "--write")
        say(f'no shares are committed for "{result["machine"]}"; to commit these: {again}')
    elif lost := bench_gate.lost(result["results"], expected):
        raise DeviceError(f"{len(lost)} of {len(cases)} shares are low: {'; '.join(lost)}")
