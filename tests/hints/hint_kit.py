"""Provokes messages and executes the commands that stand in them."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hint_scan import ROOT, Hint

from weft.cli.main import invoke
from weft.core.errors import WeftError
from weft.hub.box import box_folder
from weft.models.weights.random_weights import random_folder

LLAMA = {
    "model_type": "llama", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 2048,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
}  # fmt: skip
BERT = {
    "model_type": "bert", "vocab_size": 2048, "hidden_size": 32, "num_hidden_layers": 1,
    "num_attention_heads": 2, "intermediate_size": 48, "max_position_embeddings": 64,
}  # fmt: skip
SHORT = {"run": ["--max-new-tokens", "2", "--device", "cpu"], "embed": ["--device", "cpu"]}


EMPTY: Any = types.SimpleNamespace()


@dataclass
class Here:
    """A folder to be in, with models in it; `fill` is what a reader puts in for a capital word."""

    folder: Path
    patch: pytest.MonkeyPatch
    fill: dict[str, str] = field(
        default_factory=lambda: dict.fromkeys(("PROMPT", "TEXT", "QUERY", "DOCUMENT"), "x")
    )

    def decoder(self, name: str = "a llama") -> str:
        made = random_folder(self.folder / name, LLAMA)
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(box_folder() / file, made)
        return name

    def encoder(self, name: str = "a bert") -> str:
        made = random_folder(self.folder / name, BERT)
        shutil.copy(box_folder() / "tokenizer.json", made)
        return name

    def judge(self, name: str = "a judge", labels: int = 1) -> str:
        import numpy as np
        from safetensors.numpy import load_file, save_file

        made = Path(self.folder / self.encoder(name))
        config = json.loads((made / "config.json").read_text())
        config |= {"architectures": ["BertForSequenceClassification"], "num_labels": labels}
        (made / "config.json").write_text(json.dumps(config))
        tensors, n = load_file(made / "model.safetensors"), config["hidden_size"]
        shapes = {"pooler.dense.weight": (n, n), "pooler.dense.bias": (n,)}
        shapes |= {"classifier.weight": (labels, n), "classifier.bias": (labels,)}
        tensors |= {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
        save_file(tensors, made / "model.safetensors", {"format": "pt"})
        return name

    def function(self, name: str = "a net.onnx") -> str:
        import numpy as np
        from onnx import TensorProto, helper, save_model

        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])
        y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])
        graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "net", [x], [y])
        opset = [helper.make_opsetid("", 17)]
        save_model(helper.make_model(graph, opset_imports=opset, ir_version=9), name)
        np.save("x.npy", np.ones((2, 3), np.float32))
        self.fill["NAME=FILE.npy"] = self.fill["NAME=F.npy"] = "x=x.npy"
        return name

    def said(self, *words: str, status: int | None = None, stdin: str = "") -> str:
        """What a weft command prints, stderr last."""
        if "--device" not in words and words[0] in SHORT:
            words = (*words, *SHORT[words[0]])
        out, err = io.StringIO(), io.StringIO()
        self.patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            found = invoke(list(words))
        text = out.getvalue() + err.getvalue()
        assert status is None or found == status, f"weft {shlex.join(words)}: {found}\n{text}"
        return text

    def without(self, module: str) -> None:
        """Importing `module` fails, as where it is not installed."""
        self.patch.setitem(sys.modules, module, None)  # type: ignore[arg-type]

    def execute(self, command: str) -> None:
        """A command as it is typed: shell words, `&&` and `<`."""
        for part in command.split(" && "):
            line, _, source = part.partition(" < ")
            words = [self.fill.get(word, word) for word in shlex.split(line)]
            stdin = Path(shlex.split(source)[0]).read_text() if source else ""
            if words[0] == "weft":
                self.said(*words[1:], status=0, stdin=stdin)
            else:
                self._pip(words) if words[:2] == ["pip", "install"] else _known(words)

    def _pip(self, words: list[str]) -> None:
        """pip finds what it is to install; a package in a folder is there afterwards."""
        if words[2] == "-e":
            self.installed(Path(words[3]))
            return
        (what,) = words[2:]
        folder, _, extra = what.rstrip("]").partition("[")
        if (Path(folder) / "pyproject.toml").is_file():
            assert extra in _project(ROOT)["optional-dependencies"], f"no extra {extra}"
        else:
            assert what in PUBLISHED, f"{what} is not a package that weft knows of"

    def installed(self, folder: Path) -> None:
        """As `pip install -e` leaves it: its modules and its entry points are found."""
        project = _project(folder)
        info = self.folder / "site" / f"{project['name'].replace('-', '_')}-0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Name: {project['name']}\nVersion: 0\n")
        lines = [
            line
            for group, entries in project["entry-points"].items()
            for line in (f"[{group}]", *(f"{name} = {at}" for name, at in entries.items()))
        ]
        (info / "entry_points.txt").write_text("\n".join(lines))
        for path in (folder.resolve(), info.parent):
            self.patch.syspath_prepend(str(path))


Case = Callable[[Here], str]
CASES: dict[Hint, list[Case]] = {}


def hint(file: str, words: str) -> Callable[[Case], Case]:
    """The case that provokes the message with this command; it returns the message."""

    def keep(case: Case) -> Case:
        CASES.setdefault(Hint(file, words), []).append(case)
        return case

    return keep


def command_in(message: str, words: str) -> str:
    """The command of a hint as it stands in a message, to the end of its line or its quotes."""
    begin = re.escape(words.split("{}")[0].split(" .[")[0].removesuffix("*").strip())
    begin = begin.replace(r"def\ fibonacci\(n\):", r"(?=')")  # which is quoted
    found = re.search(rf"{begin}(?:'[^']*'|[^`;,)\n'])*", message)
    assert found, f"{words!r} does not stand in {message!r}"
    return found[0].strip()


def _project(folder: Path) -> dict[str, Any]:
    return dict(tomllib.loads((folder / "pyproject.toml").read_text())["project"])


PUBLISHED = {"llvmlite", "wgpu", "nvidia-cublas", "nvidia-cuda-nvcc-cu12"}
DEBIAN = {"lld", "qemu-user", "libvulkan1", "mesa-vulkan-drivers"}


def _known(words: list[str]) -> None:
    """Programs that are not weft's: their words exist."""
    if words[0] == "apt":
        assert {*words[2:]} <= DEBIAN
        return
    tool = Path(sys.executable).with_name(words[0])
    subprocess.run([str(tool), *words[1:], "--help"], check=True, capture_output=True, timeout=240)


def refused(call: Any, *given: Any, **named: Any) -> str:
    with pytest.raises(WeftError) as caught:
        call(*given, **named)
    return str(caught.value)
