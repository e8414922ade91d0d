"""scripts/gpu_check: one run over all parts, its results kept as they come."""

from __future__ import annotations

import argparse
import datetime
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpulab import report
from gpulab.parts import PARTS, Lab
from gpulab.targets import HOST
from gpulab.worker import NotHereError, Store

# the key of a part's other data, if it is not the part's name
KEPT = {"train": "soak", "cpu": "moved"}


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    p = argparse.ArgumentParser("gpu_check", description=__doc__)
    whole = sum(seconds for _, seconds in PARTS.values())
    p.add_argument("--device", default="cuda", help="what to prove and measure (default: cuda)")
    p.add_argument("--out", default=os.environ.get("OUT"), help="folder of results (default: OUT)")
    p.add_argument("--time", type=float, help="seconds for all parts together, each in proportion "
                   f"(default: {whole})")  # fmt: skip
    p.add_argument("--only", default="", help=f"comma list of {', '.join(PARTS)}")
    p.add_argument("--again", action="store_true", help="do the parts again that are done already")
    p.add_argument("--quick", action="store_true", help="small sizes: a rehearsal")
    p.add_argument("--work", help="folder for weights of 2 GB (default: a temporary one)")
    given = p.parse_args(argv)
    given.only = [name for name in given.only.split(",") if name]
    unknown = [name for name in given.only if name not in PARTS]
    if unknown:
        p.error(f"no part {unknown[0]!r}; there are {', '.join(PARTS)}")
    if not given.out:
        p.error("say --out DIR (or set OUT): where results go")
    return given


def main(argv: Sequence[str]) -> int:
    """Runs the parts; exit status 0 when every part that could run did so without a failure."""
    given = arguments(argv)
    store = Store(Path(given.out).resolve())
    data = store.data
    before = data.get("run", given.device), data.get("quick", given.quick)
    if before != (given.device, given.quick):
        of = f"{before[0]}{' --quick' * before[1]}"
        print(f"gpu_check: {given.out} holds results of {of}: use another folder", file=sys.stderr)
        return 2
    data |= {"run": given.device, "quick": given.quick}
    data.setdefault("started", datetime.datetime.now().isoformat(timespec="seconds"))
    signal.signal(signal.SIGTERM, _interrupt)
    wanted = given.only or list(PARTS)
    if "devices" not in (*wanted, *data["parts"]):  # every figure is held against its peaks
        wanted.insert(0, "devices")
    shares = {name: PARTS[name][1] for name in wanted}
    scale = given.time / sum(shares.values()) if given.time else 1.0
    with tempfile.TemporaryDirectory(prefix="weft-gpu-") as temporary:
        work = Path(given.work or temporary)
        lab = Lab(store, given.device, given.quick, work, _note)
        try:
            for name in wanted:
                _part(lab, name, shares[name] * scale, given.again)
        except KeyboardInterrupt:
            print("gpu_check: interrupted; what is done is kept", file=sys.stderr)
        finally:
            lab.close()
            report.write(store.folder, data)
    print(store.folder / "report.md")
    states = {data["parts"].get(name, {}).get("state") for name in wanted}
    return 0 if states <= {"done", "not here"} else 1


def _part(lab: Lab, name: str, seconds: float, again: bool) -> None:
    parts: dict[str, Any] = lab.store.data["parts"]
    if parts.get(name, {}).get("state") == "done" and not again:
        return
    if again:
        _forget(lab.store.data, name)
    print(f"== {name}, at most {seconds:.0f} s", file=sys.stderr, flush=True)
    start = time.monotonic()
    parts[name] = {"state": "interrupted"}
    lab.store.save()
    try:
        left_out = PARTS[name][0](lab, seconds)
        state = "incomplete" if left_out else "done"
    except NotHereError as error:
        state, left_out = "not here", str(error)
    except Exception as error:  # the other parts go on
        state, left_out = "failed", f"{type(error).__name__}: {error}"
    spent = round(time.monotonic() - start, 1)
    parts[name] = {"state": state, "seconds": spent, "why": left_out}
    _note(f"{state} after {spent} s{': ' * bool(left_out)}{left_out}")
    lab.store.save()
    report.write(lab.store.folder, lab.store.data)


def _forget(data: dict[str, Any], part: str) -> None:
    """Removes what a part has measured."""
    for case in [name for name, c in data["cases"].items() if c["part"] == part]:
        del data["cases"][case]
    if part == "cpu":
        for case in data["cases"].values():
            case["results"].pop(HOST, None)
    data.pop(KEPT.get(part, part), None)


def _note(line: str) -> None:
    print(f"   {line}", file=sys.stderr, flush=True)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
