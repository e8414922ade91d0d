"""The parts of `scripts/gpu_check`; each takes a Lab and its seconds, and says what it left out."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpulab import measure, targets
from gpulab.cases import Case, decoder, model_cases, ops, train_cases, trainee
from gpulab.measure import Contender
from gpulab.worker import Clock, NotHereError, Store, Worker, command

LEVELS = ("device", "kernels", "primitives", "templates", "models", "stress")
TOOLS = ("memcheck", "racecheck", "synccheck")
WEFT = [sys.executable, "-c", "from weft.cli.main import main; main()"]


@dataclass
class Lab:
    """One run: where results go, the device, and the contenders' processes."""

    store: Store
    device: str
    quick: bool
    work: Path  # a temporary folder for a model's weights
    note: Callable[[str], None]
    workers: dict[str, Worker] = field(default_factory=dict)

    @property
    def gpu(self) -> bool:
        return not self.device.startswith("cpu")

    def log(self, name: str) -> Path:
        """A file for what a process says."""
        folder = self.store.folder / "logs"
        folder.mkdir(exist_ok=True)
        return folder / f"{name}.txt"

    def worker(self, name: str) -> Worker:
        """A contender's process: "weft", "own" (no vendor library), "host" (weft on the CPU) or
        "torch"."""
        if name not in self.workers:
            quick = ["quick"] if self.quick else []
            side = "torch_side" if name == "torch" else "weft_side"
            device = "cpu" if name == "host" else self.device
            if name == "torch":
                device = device.replace("hip", "cuda")  # PyTorch's own name for it
            args = [device, str(self.folder), *quick]
            env = {"WEFT_BLAS": "off"} if name == "own" else {}
            self.workers[name] = Worker(side, args, self.log(name), env)
        return self.workers[name]

    @property
    def folder(self) -> Path:
        return self.work / decoder(self.quick).name

    def close(self) -> None:
        """Ends every process that was started."""
        for worker in self.workers.values():
            worker.close()

    def torch(self) -> str:
        """ "" where PyTorch can take part, else why not."""
        found = self.store.data["machine"].get("torch")
        if found is None:
            if importlib.util.find_spec("torch") is None:
                found = {"error": "PyTorch is not installed"}
            elif self.device.partition(":")[0] not in ("cpu", "cuda", "hip"):
                found = {"error": f"PyTorch has no device {self.device}"}
            else:
                found = self.worker("torch").ask(120, ask="info")
            self.store.data["machine"]["torch"] = found
        return str(found.get("error", ""))


def contenders(lab: Lab, case: Case) -> list[Contender]:
    """The contenders that take part in a case on the device."""
    found = [Contender(targets.WEFT, lab.worker("weft"), "weft")]
    if case.op == "matmul" and lab.gpu:
        found.append(Contender(targets.OWN, lab.worker("own"), "weft"))
    if lab.torch():
        return found
    names = {"eager": targets.EAGER, "compile": targets.COMPILED, "triton": targets.TRITON}
    there = lab.worker("torch").ask(120, ask="variants", case=case.name).get("variants", [])
    return found + [Contender(names[v], lab.worker("torch"), v) for v in there]


def measured(lab: Lab, cases: Sequence[Case], seconds: float) -> str:
    """Cases on the device, all contenders in turn."""
    return measure.run(
        lab.store, cases, lambda case: contenders(lab, case), Clock(seconds), lab.note
    )


# -- the parts ------------------------------------------------------------------------------------


def devices(lab: Lab, seconds: float) -> str:
    """The machine: devices, versions, peaks."""
    clock, machine = Clock(seconds), lab.store.data["machine"]
    status, out = command([*WEFT, "devices", "--json"], clock.left, lab.log("devices"))
    if status == 0:
        machine["devices"] = json.loads(out)["devices"]
    machine["python"] = sys.version.split()[0]
    machine["load"] = [round(x, 1) for x in os.getloadavg()]
    if lab.gpu and shutil.which("nvidia-smi"):
        what = "--query-gpu=name,driver_version,memory.total,clocks.max.sm,power.limit"
        smi = command(["nvidia-smi", what, "--format=csv"], 20, lab.log("devices"))
        machine["nvidia_smi"] = smi[1].strip()
    weft = lab.worker("weft")
    machine["weft"] = weft.ask(clock.left, ask="info")
    if "error" in machine["weft"]:
        return f"weft cannot use {lab.device}: {machine['weft']['error']}"
    machine["roofline"] = weft.ask(clock.left, ask="roofline")
    if not lab.torch():
        machine["torch_copy"] = lab.worker("torch").ask(clock.left, ask="copy", budget=0.5)
    wrong = [machine[key]["error"] for key in ("roofline",) if "error" in machine[key]]
    return "; ".join(wrong)


def check(lab: Lab, seconds: float) -> str:
    """`weft check`, level by level; a level that failed or was cut off is named."""
    clock = Clock(seconds)
    found = lab.store.data.setdefault("check", {})
    todo = [level for level in LEVELS if found.get(level, {}).get("state") not in ("ok", "failed")]
    for level in todo:
        lab.note(f"weft check --level {level}")
        argv = [*WEFT, "check", "--device", lab.device, "--level", level, "--json"]
        status, out = command(argv, clock.left, lab.log(f"check-{level}"))
        found[level] = _checked(status, out)
        lab.store.save()
    bad = [level for level in LEVELS if found[level]["state"] != "ok"]
    return "; ".join(f"{level}: {found[level]['state']}" for level in bad)


def _checked(status: int | None, out: str) -> dict[str, Any]:
    if status is None:
        return {"state": "cut off"}
    try:
        (report,) = json.loads(out)["devices"]
    except (ValueError, KeyError):
        return {"state": "failed", "failures": [f"exit status {status}, see logs"]}
    cases = report["cases"]
    bad = [f"{c['name']}: {c['message']}"[:300] for c in cases if c["status"] == "fail"]
    counts = {s: sum(c["status"] == s for c in cases) for s in ("ok", "fail", "skip")}
    return {"state": "failed" if bad else "ok", **counts, "failures": bad[:50]}


def matmul(lab: Lab, seconds: float) -> str:
    """Products."""
    return measured(lab, [c for c in ops(lab.quick) if c.part == "matmul"], seconds)


def rows(lab: Lab, seconds: float) -> str:
    """Softmax, layer norm, gelu and an elementwise chain."""
    return measured(lab, [c for c in ops(lab.quick) if c.part == "rows"], seconds)


def attention(lab: Lab, seconds: float) -> str:
    """Causal attention, forward."""
    return measured(lab, [c for c in ops(lab.quick) if c.part == "attention"], seconds)


def model(lab: Lab, seconds: float) -> str:
    """The decoder: its weights are drawn here, then prefill and decode."""
    clock = Clock(seconds)
    why = weights(lab, clock.left)
    if why:
        return why
    left_out = measured(lab, model_cases(lab.quick), clock.left)
    lab.store.data["machine"]["work"] = lab.worker("weft").ask(max(clock.left, 60), ask="work")
    lab.store.save()
    lab.worker("weft").ask(30, drop="")
    return left_out


def weights(lab: Lab, seconds: float) -> str:
    """A folder in Hugging Face's layout with the decoder's config and random weights (seeded)."""
    if (lab.folder / "model.safetensors").exists():
        return ""
    lab.note(f"drawing the weights of {lab.folder.name}")
    code = "import json, sys; from weft.models import random_folder; "
    code += "random_folder(sys.argv[1], json.loads(sys.argv[2]))"
    argv = [sys.executable, "-c", code, str(lab.folder), json.dumps(decoder(lab.quick).config)]
    status, _ = command(argv, seconds, lab.log("weights"))
    return "" if status == 0 else f"the weights were not drawn (exit status {status}, see logs)"


def train(lab: Lab, seconds: float) -> str:
    """The training step, then many steps with an eye on memory."""
    clock = Clock(seconds)
    left_out = measured(lab, train_cases(lab.quick), clock.left * 0.6)
    steps = trainee(lab.quick).soak
    before = lab.store.data.get("soak", {})
    if before.get("steps") != steps and clock.left > 1:
        lab.note(f"{steps} training steps")
        soak = lab.worker("weft").ask(clock.left + 60, ask="soak", steps=steps, seconds=clock.left)
        lab.store.data["soak"] = before = soak
        lab.store.save()
    done = before.get("steps", 0)
    short = f"{done} of {steps} steps of the memory run" if done < steps else ""
    return "; ".join(filter(None, (left_out, before.get("error", ""), short)))


def cpu(lab: Lab, seconds: float) -> str:
    """The same products by weft on the CPU, and what moving operands costs the device."""
    clock = Clock(seconds)
    host, weft = lab.worker("host"), lab.worker("weft")
    left_out = []
    moved = lab.store.data.setdefault("moved", {})
    for case in [c for c in ops(lab.quick) if c.op == "matmul"]:
        results = lab.store.data["cases"].get(case.name, {}).get("results")
        if results is None or clock.left < 1:
            left_out.append(case.name)
        elif targets.HOST not in results or case.name not in moved:
            lab.note(f"{case.name} on the CPU")
            results[targets.HOST] = host.ask(
                clock.left + 5, run=case.name, variant="weft", budget=0.5
            )
            host.ask(30, drop=case.name)
            moved[case.name] = weft.ask(clock.left + 5, ask="moved", case=case.name)
            lab.store.save()
    return f"not measured: {', '.join(left_out)}" if left_out else ""


def bench(lab: Lab, seconds: float) -> str:
    """The shipped `weft bench` commands on the device."""
    clock, found = Clock(seconds), lab.store.data.setdefault("bench", {})
    pictures = lab.store.folder
    sizes = "128..256" if lab.quick else "512..2048"
    runs: dict[str, list[str]] = {
        "ops": ["ops", "--device", lab.device, "--budget", "0.3"],
        "sizes": ["ops", "--device", lab.device, "--sizes", sizes, "--plot",
                  str(pictures / "sizes.png")],
        "train": ["train", "--device", lab.device, "--dtype", "bfloat16", "--no-startup",
                  "--steps", "10", "--profile"],
    }  # fmt: skip
    if (lab.folder / "model.safetensors").exists():
        d = decoder(lab.quick)
        given = [
            "--prompt-tokens",
            str(min(d.prompt, 512)),
            "--max-new-tokens",
            str(d.gen),
            "--repeats",
            "3",
        ]
        trace = ["--profile", str(pictures / "trace.json")]
        runs["model"] = ["model", str(lab.folder), "--device", lab.device, "--dtype", "bfloat16",
                         "--act-dtype", "bfloat16", *given, *trace]  # fmt: skip
    for i, (name, argv) in enumerate(runs.items()):
        if found.get(name, {}).get("state") == "ok":
            continue
        lab.note(f"weft bench {argv[0]}")
        share = clock.left / (len(runs) - i) * 1.5
        status, out = command(
            [*WEFT, "bench", *argv, "--json"], min(share, clock.left), lab.log(f"bench-{name}")
        )
        state = "cut off" if status is None else "ok" if status == 0 else "failed"
        found[name] = {"state": state, "result": json.loads(out) if status == 0 else None}
        lab.store.save()
    return "; ".join(f"{n}: {r['state']}" for n, r in found.items() if r["state"] != "ok")


def sanitizer(lab: Lab, seconds: float) -> str:
    """compute-sanitizer over the conformance kernels."""
    clock, found = Clock(seconds), lab.store.data.setdefault("sanitizer", {})
    path = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not Path(path).exists():
        raise NotHereError("compute-sanitizer is not installed (it comes with the CUDA toolkit)")
    if not lab.gpu:
        raise NotHereError(f"compute-sanitizer has nothing to see on {lab.device}")
    for i, tool in enumerate(TOOLS):
        if found.get(tool, {}).get("state") in ("clean", "errors"):
            continue
        lab.note(f"compute-sanitizer {tool}")
        log = lab.log(f"sanitizer-{tool}")
        argv = [path, "--tool", tool, "--error-exitcode", "77", *WEFT, "check",
                "--device", lab.device, "--level", "kernels", "--json"]  # fmt: skip
        status, out = command(argv, clock.left / (len(TOOLS) - i), log)
        found[tool] = _sanitized(status, out + log.read_text(encoding="utf-8", errors="replace"))
        lab.store.save()
    return "; ".join(f"{t}: {r['state']}" for t, r in found.items() if r["state"] != "clean")


def _sanitized(status: int | None, said: str) -> dict[str, Any]:
    lines = [line for line in said.splitlines() if line.startswith("=========")]
    bad = [line for line in lines if "Invalid" in line or "hazard" in line or "Error:" in line]
    if status is None:
        return {"state": "cut off", "errors_so_far": len(bad), "first": bad[:10]}
    summary = [line for line in lines if "SUMMARY" in line]
    state = "clean" if status == 0 else "errors" if status == 77 or bad else "failed"
    return {"state": state, "status": status, "summary": summary, "first": bad[:10]}


def tune(lab: Lab, seconds: float) -> str:
    """Runs `weft tune`: the table is kept with the results, and no other part uses it."""
    sizes = "128" if lab.quick else "1024,4096"
    table = lab.store.folder / "tuned.json"
    argv = [*WEFT, "tune", "--device", lab.device, "--sizes", sizes, "--budget", "0.3",
            "--output", str(table), "--json"]  # fmt: skip
    status, out = command(argv, seconds, lab.log("tune"))
    if status != 0:
        cut = "cut off; what was chosen before is in tuned.json"
        return cut if status is None else f"exit status {status}, see logs"
    lab.store.data["tune"] = json.loads(out)
    return ""


PARTS: Mapping[str, tuple[Callable[[Lab, float], str], int]] = {
    "devices": (devices, 60), "check": (check, 180), "matmul": (matmul, 150), "rows": (rows, 80),
    "attention": (attention, 50), "model": (model, 240), "train": (train, 300), "cpu": (cpu, 60),
    "bench": (bench, 120), "sanitizer": (sanitizer, 240), "tune": (tune, 150),
}  # fmt: skip
"""Name -> (function, its share of the seconds)."""
