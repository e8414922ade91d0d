"""A case for each command that a message suggests: what it takes to see the message."""

from __future__ import annotations

import asyncio
import importlib
import json
import shutil
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from adapter_kit import adapter
from hint_kit import EMPTY, Here, hint, refused

from weft.backends import registry
from weft.compile import tuned
from weft.core import notices

# -- models and files on the command line ---------------------------------------------------------


@hint("cli/run.py", "weft run {} --input NAME=FILE.npy")
def _(here: Here) -> str:
    return here.said("chat", here.function(), status=2)


@hint("cli/run.py", "weft embed {} TEXT")
def _(here: Here) -> str:
    return here.said("run", here.encoder(), "x", status=2)


@hint("cli/run.py", "weft classify {} TEXT")
def _(here: Here) -> str:
    return here.said("run", here.judge(), "x", status=2)


@hint("cli/embed.py", "weft classify {} TEXT")
def _(here: Here) -> str:
    return here.said("embed", here.judge(), "x", "--device", "cpu", status=2)


@hint("cli/judge.py", "weft embed {} TEXT --query QUERY")
def _(here: Here) -> str:
    return here.said("rerank", here.encoder(), "x", "y", "--device", "cpu", status=2)


@hint("cli/chat.py", "weft run {} PROMPT")
def _(here: Here) -> str:
    return here.said("chat", here.decoder(), "--device", "cpu", status=2)


@hint("cli/run.py", "weft run {} PROMPT")
def _(here: Here) -> str:
    """A prompt that has the form of a name. The hub has no such model, so a folder answers."""
    Path("org").mkdir()
    message = here.said("run", "org/name", status=0)
    here.decoder("org/name")
    return message


@hint("cli/run.py", "weft run -")
def _(here: Here) -> str:
    Path("a prompt.txt").write_text("def f")
    return here.said("run", "a prompt.txt", status=0)


@hint("cli/run.py", "weft run def fibonacci(n):")
def _(here: Here) -> str:
    return here.said("run", status=2)


@hint("cli/embed.py", "weft run {} PROMPT")
def _(here: Here) -> str:
    return here.said("embed", here.decoder(), "x", "--device", "cpu", status=2)


@hint("cli/explain.py", "weft explain {}")
def _(here: Here) -> str:
    path = here.decoder()
    return here.said("explain", path, "--show", "kernels", "--kernel", "nosuch", status=2)


@hint("cli/compile.py", "weft run {} PROMPT")
def _(here: Here) -> str:
    given = ["--device", "cpu", "--context", "32"]
    return here.said("compile", here.decoder(), "-o", "a {file}.weft", *given, status=0)


@hint("cli/compile.py", "weft embed {} TEXT")
def _(here: Here) -> str:
    return here.said("compile", here.encoder(), "-o", "a bert.weft", "--device", "cpu", status=0)


@hint("cli/compile.py", "weft classify {} TEXT")
def _(here: Here) -> str:
    path = here.judge(labels=2)
    return here.said("compile", path, "-o", "a judge.weft", "--device", "cpu", status=0)


@hint("cli/compile.py", "weft rerank {} QUERY DOCUMENT")
def _(here: Here) -> str:
    path = here.judge()
    return here.said("compile", path, "-o", "a ranker.weft", "--device", "cpu", status=0)


@hint("cli/compile.py", "weft run {} --input NAME=F.npy")
def _(here: Here) -> str:
    return here.said("compile", here.function(), "-o", "a net.weft", "--device", "cpu", status=0)


@hint("cli/export.py", "weft serve-page {}")
def _(here: Here) -> str:
    here.patch.setattr("weft.web.server.serve", lambda *given: None)  # it would not end
    return here.said("export", "web", here.decoder(), "-o", "a page", status=0)


@hint("web/server.py", "weft export web -o {}")
def _(here: Here) -> str:
    folder = Path(here.decoder())
    here.patch.setattr("weft.hub.box.box_folder", lambda: folder)  # a smaller one
    Path("a page").mkdir()
    return here.said("serve-page", "a page", status=2)


@hint("cli/hub.py", "weft pull ORG/NAME")
def _(here: Here) -> str:
    here.patch.setenv("HF_HUB_CACHE", str(here.folder / "none"))
    _fetches(here)
    return here.said("list", status=0)


@hint("cli/hub.py", "weft list")
def _(here: Here) -> str:
    return here.said("rm", here.decoder(), "--yes", status=2)


def _fetches(here: Here) -> None:
    """Fetching, which tests do elsewhere with a hub of their own, gives a folder."""
    from weft.hub import fetch

    here.patch.setattr(fetch, "look_up", lambda name: types.SimpleNamespace(commit="0" * 40))
    here.patch.setattr(fetch, "fetch", lambda *given, **more: here.folder)


@hint("cli/machines.py", "weft launch -n 2 run MODEL PROMPT")
def _(here: Here) -> str:
    here.fill["MODEL"] = here.decoder()
    here.patch.setattr("weft.cli.launch._play", lambda *given: 0)  # MPI has tests of its own
    return here.said("run", here.fill["MODEL"], "x", "--parallel", "columns", status=2)


@hint("cli/bench_gate.py", "weft bench gate --write")
def _(here: Here) -> str:
    from weft.bench import gate, gate_cases

    here.patch.setattr(gate, "run", lambda *_, **__: {"machine": "another", "results": {}})
    here.patch.setattr(gate, "COMMITTED", here.folder / "gate.json")
    gate.COMMITTED.write_text("{}")
    here.patch.setattr(gate_cases, "cases", lambda: [gate.Case("x", "read", 1.0, EMPTY)])
    return here.said("bench", "gate", status=0)


@hint("cli/bench.py", "weft devices")
def _(here: Here) -> str:
    from weft.bench import side_by_side

    here.patch.setattr(side_by_side, "present", list)
    small = ["--sizes", "8,16", "--only", "softmax", "--repeats", "5", "--budget", "0.01"]
    return here.said("bench", "ops", *small, status=0)


@hint("cli/new_backend.py", "pip install -e {} && {}")
def _(here: Here) -> str:
    return here.said("new-backend", "mychip", "-o", "a folder", status=0)


@hint("cli/new_backend.py", "weft check --device {} --level device")
def _(here: Here) -> str:
    message = here.said("new-backend", "mychip", "-o", "a folder", status=0)
    here.installed(Path("a folder"))
    return message


@hint("hub/box.py", "weft run MODEL PROMPT")
def _(here: Here) -> str:
    from weft.hub import box

    here.fill["MODEL"] = here.decoder()
    here.patch.setattr(box, "FILES", ("nosuch",))
    return here.said("run", "x", status=1)


# -- training -------------------------------------------------------------------------------------

CONFIG = """
[data]
paths = ["notes.txt"]
[model]
from = "{model}"
[train]
steps = 2
batch = 1
context = 16
device = "cpu"
[output]
folder = "run"
"""


@hint("cli/train.py", "weft train {}")
def _(here: Here) -> str:
    message = here.said("train", "--init", "a config.toml", status=0)
    _edited(here, "a config.toml")
    return message


@hint("cli/train.py", "weft train {} --resume *")
def _(here: Here) -> str:
    _edited(here, "a config.toml")
    return here.said("train", "a config.toml", "--until", "1", "--device", "cpu", status=0)


def _edited(here: Here, file: str) -> None:
    Path("notes.txt").write_text("the weft crosses every warp\n" * 200)
    Path(file).write_text(CONFIG.format(model=here.decoder("llama")))


@hint("models/run/loader.py", "weft run MODEL PROMPT --adapter {}")
def _(here: Here) -> str:
    """A GGUF file that says that it holds an adapter, here one that changes nothing."""
    import gguf

    base = here.decoder("llama")
    wide = json.loads((here.folder / base / "config.json").read_text())["hidden_size"]
    writer = gguf.GGUFWriter(here.folder / "an adapter.gguf", "llama")
    for key, value in {"general.type": "adapter", "adapter.type": "lora"}.items():
        writer.add_key_value(key, value, gguf.GGUFValueType.STRING)
    for half, shape in {"a": (2, wide), "b": (wide, 2)}.items():
        writer.add_tensor(f"blk.0.attn_output.weight.lora_{half}", np.zeros(shape, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    here.fill |= {"MODEL": base, "PROMPT": "x"}
    return here.said("run", "an adapter.gguf", "x", status=2)


@hint("models/weights/adapter_base.py", "weft pull {}")
def _(here: Here) -> str:
    _adapted(here, "org/elsewhere")
    _fetches(here)
    return here.said("run", "an adapter", "x", status=1)


@hint("models/weights/adapter_base.py", "weft merge BASE {} -o MERGED")
def _(here: Here) -> str:
    here.fill |= {"BASE": _adapted(here, "./nowhere"), "MERGED": "merged"}
    return here.said("run", "an adapter", "x", status=1)


def _adapted(here: Here, named: str = "") -> str:
    base = here.decoder()
    made = adapter(here.folder / "an adapter", here.folder / base, ["q_proj"], 2, 0)
    file = made / "adapter_config.json"
    where = named or str(here.folder / base)
    file.write_text(file.read_text().replace(str(here.folder / base), where))
    return base


# -- several machines -----------------------------------------------------------------------------


def _divided(here: Here, **more: Any) -> str:
    """The message of loading a model as a part of several."""
    from weft.models.run import loader
    from weft.models.weights.placement import Placement

    path = more.pop("path")
    place = Placement("cpu", quant=more.pop("quant", None), context=32, part=lambda c: c)
    return refused(loader.load_uncompiled, Path(path), place)


@hint("models/run/loader.py", "weft quantize {} -o OUT --scheme {}")
def _(here: Here) -> str:
    here.fill["OUT"] = "out"
    return _divided(here, path=here.decoder(), quant="int8")


@hint("importers/hf_config.py", "weft merge {} {} -o MERGED")
def _(here: Here) -> str:
    notices.say.cache_clear()
    base = _adapted(here)
    for file in (here.folder / "an adapter").iterdir():
        shutil.copy(file, here.folder / base)
    here.fill["MERGED"] = "merged"
    return here.said("run", base, "x", status=0)


@hint("models/run/loader.py", "weft merge {} {} -o MERGED")
def _(here: Here) -> str:
    _adapted(here)
    here.fill["MERGED"] = "merged"
    return _divided(here, path="an adapter")


@hint("machines/load.py", "weft merge {} ADAPTER -o MERGED")
def _(here: Here) -> str:
    from weft.machines import load

    base = _adapted(here)
    here.fill |= {"ADAPTER": "an adapter", "MERGED": "merged"}
    lead: Any = types.SimpleNamespace(ranks=EMPTY)
    return refused(load._load, lead, EMPTY, base, adapters={"x": "an adapter"})


@hint("ranks/join.py", "weft launch -n {} COMMAND")
def _(here: Here) -> str:
    join = importlib.import_module("weft.ranks.join")  # the package has a function of that name

    here.fill["COMMAND"] = "devices"
    here.patch.setattr(join, "launched", lambda: 3)
    made = types.ModuleType("weft.ranks.mpi")
    made.Mpi = lambda: types.SimpleNamespace(size=1)  # type: ignore[attr-defined]
    here.patch.setitem(sys.modules, "weft.ranks.mpi", made)
    here.patch.setattr("weft.cli.launch._play", lambda *given: 0)
    return refused(join.join.__wrapped__)


@hint("ranks/join.py", "pip install .[mpi]")
def _(here: Here) -> str:
    join = importlib.import_module("weft.ranks.join")  # the package has a function of that name

    here.patch.setattr(sys, "executable", "/nosuch/python")
    here.patch.setenv("PATH", "/nosuch")
    return refused(join.mpiexec)


@hint("ranks/join.py", "pip install .[mpi]")
def _(here: Here) -> str:
    join = importlib.import_module("weft.ranks.join")  # the package has a function of that name

    here.patch.setattr(join, "launched", lambda: 2)
    here.without("weft.ranks.mpi")
    return refused(join.join.__wrapped__)


@hint("ranks/mpi.py", "pip install .[mpi]")
def _(here: Here) -> str:
    ranks = pytest.importorskip("weft.ranks.mpi", exc_type=ImportError)
    mpi = types.SimpleNamespace(Query_thread=lambda: 0, THREAD_MULTIPLE=3)
    here.patch.setattr(ranks, "MPI", mpi)
    return refused(ranks.MpiHeartbeat, None, str)


# -- tuning ---------------------------------------------------------------------------------------

QUICK = {"tune": ["--sizes", "64x64x64", "--kinds", "matmul", "--budget", "0.01"]}


def _tuning(here: Here) -> None:
    from weft.bench import roofline
    from weft.bench.roofline import Roofline

    here.patch.setenv("WEFT_CACHE", str(here.folder / "cache"))
    here.patch.setattr(roofline, "measure", lambda device: Roofline(100.0, 10.0, 1000.0))
    notices.say.cache_clear()
    said = here.said

    def quickly(*words: str, **more: Any) -> str:
        return said(*words, *QUICK.get(words[0], []), **more)

    here.said = quickly  # type: ignore[method-assign]


@hint("compile/tuned.py", "weft tune --device {} *")
def _(here: Here) -> str:
    _tuning(here)
    path = tuned.default_path(registry.get("cpu").caps)
    assert path is not None
    path.parent.mkdir(exist_ok=True)
    path.write_text("{")
    return _active()


@hint("compile/tuned.py", "weft tune --device {} *")
def _(here: Here) -> str:
    """A table that the user named is the one that is written anew."""
    import dataclasses

    _tuning(here)
    table = dataclasses.replace(tuned.new("a test", registry.get("cpu").caps), code="old")
    tuned.write("a table.json", table)
    here.patch.setenv("WEFT_TUNING", "a table.json")
    message = _active()
    assert message.rstrip().endswith("--output 'a table.json'")
    return message


def _active() -> str:
    import contextlib
    import io

    err = io.StringIO()
    with contextlib.redirect_stderr(err):
        assert tuned.active(registry.get("cpu").caps) is None
    return err.getvalue()


# -- servers and hubs -----------------------------------------------------------------------------


@hint("serve/ollama/models.py", "weft serve MODEL")
def _(here: Here) -> str:
    serve = importlib.import_module("weft.cli.serve")
    from weft.serve.errors import HttpError
    from weft.serve.ollama import models

    here.fill["MODEL"] = here.decoder()

    async def ended(*given: Any) -> int:
        return 0

    here.patch.setattr(serve, "_serve", ended)
    with pytest.raises(HttpError) as caught:
        asyncio.run(models.managed(EMPTY))
    return str(caught.value)


@hint("hub/errors.py", "hf auth login")
def _(here: Here) -> str:
    from weft.hub import errors
    from weft.hub.names import parse

    name = parse("org/name")
    assert name is not None
    return errors._refused(name, "x", "hub", 404, "")
