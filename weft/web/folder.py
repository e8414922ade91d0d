"""The content of a page's folder, whatever its model: Programs and tensors, the page and the
player."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from weft.core.errors import CompileError
from weft.host.files import write_bytes, write_text
from weft.program.formula import Formula
from weft.program.program import Copy, Dispatch, Fill, Program
from weft.web import programs, targets
from weft.web.licences import is_licence
from weft.web.shards import Shards

FORMAT = 3
TARGETS = (targets.WEBGPU, targets.WASM)
PLAYER = Path(__file__).with_name("js")
# files of the player's source that a page does not need
DEVELOPING = (
    "README.md", "eslint.config.js", "jsconfig.json", "pipeline.js", "pipeline_pictures.js",
)  # fmt: skip
# What only pages with a feature have of the player: a model's kind, or more that it does.
FEATURES = {
    "decoder": {
        "decoder.js", "forced.js", "grammar.js", "grammar_numbers.js", "language.js",
        "patterns.js", "philox.js", "sampler.js", "schema.js", "schema_flat.js", "schema_not.js",
        "schema_refs.js", "schema_values.js", "text.js", "vocabulary.js", "writing.js",
    },
    "encoder": {"encoder.js", "search.js"},
    "net": {"captured.js", "fitted.js", "net.js", "see.js", "seen.js"},
    "album": {"album.js", "fitted.js", "photos.js"},
    "speech": {
        "captured.js", "drop.js", "listen.css", "listen.js", "mel.js", "philox.js", "recorder.js",
        "sampler.js", "sound.js", "speech.js", "speech_rules.js", "subtitles.js",
    },
    "picture": {"ask.css", "ask.js", "drop.js", "fitted.js", "pictures.js"},
    "chat": {
        "chat.css", "chat.js", "talk.js", "template.js", "template_filters.js",
        "template_values.js", "toolcalls.js", "toolcalls_json.js", "toolcalls_marked.js",
        "toolforms.js", "tools.js",
    },
    "train": {"page_trainer.js", "train.js", "trainer.js"},
    "search": {"encoder.js", "search.js"},
}  # fmt: skip

PANELS = {  # of index.html, and the features that use them
    "chat": {"chat"}, "see": {"net"}, "search": {"album", "encoder", "search"}, "train": {"train"},
}  # fmt: skip


def write_body(
    folder: Path, made: Mapping[str, Mapping[str, Program]], weights: Mapping[str, np.ndarray]
) -> dict[str, Any]:
    """Writes Programs by target and name, the `weights` that they read, and the states that do not
    begin as zeros. A weight given by a formula is written as its result: a player computes none.
    Returns the manifest's entries. Raises CompileError where two Programs mean different
    things by one weight's name."""
    weights = {**weights, **_derived(made, weights)}
    shards = Shards(folder)
    for name in sorted(_weights(made, "weight") | _weights(made, "state") & weights.keys()):
        shards.add(name, weights[name])
    for target, each in made.items():
        for kind, program in each.items():
            for b in program.buffers:
                if b.value is not None:
                    shards.add(f"{target}/{kind}/{b.name}", b.value)
    shards.close()
    return {
        "tensors": shards.tensors,
        "shards": shards.files,
        "files": _code(folder, made),
        "memory": {target: _memory(target, each) for target, each in made.items()},
    }


def _weights(made: Mapping[str, Mapping[str, Program]], role: str) -> set[str]:
    """The tensors that the Programs' buffers of a role are made of."""
    found = set()
    for each in made.values():
        for program in each.values():
            for b in program.buffers:
                if b.role == role:
                    recipe = program.recipes.get(b.name)
                    found.add(recipe.whole if recipe else b.name)
    return found


def _derived(
    made: Mapping[str, Mapping[str, Program]], weights: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """The values of weight buffers that are worked out from weights, by name. Raises CompileError
    where two Programs mean different things by one name."""
    found: dict[str, tuple[Formula, np.ndarray]] = {}
    for each in made.values():
        for kind, program in each.items():
            for name, formula in program.formulas.items():
                known = found.setdefault(name, (formula, formula.value(weights)))
                if known[0] != formula:
                    raise CompileError(f"{kind} works out weight {name!r} unlike the other steps")
    return {name: value for name, (_, value) in found.items()}


def _memory(target: str, each: Mapping[str, Program]) -> int:
    """Bytes that the player allocates (js/session.js, js/webgpu.js, js/wasm.js). Weights and state
    count once by name, arenas once for all Programs; each Program has its own buffers and scalars.
    WebGPU adds buffers through which outputs are read, WebAssembly the arguments of each dispatch.
    The threads' stacks and the memory of kernels.wasm itself are not included."""
    gpu = target == targets.WEBGPU.name
    room = partial(_rounded, unit=16 if gpu else 256)
    shared: dict[tuple[str, str], int] = {}
    own = 0
    for program in each.values():
        arenas = 0
        for b in program.buffers:
            name = b.name
            if b.role == "arena":
                name, arenas = str(arenas), arenas + 1
            elif b.role not in ("weight", "state"):
                own += room(b.nbytes)
                continue
            shared[b.role, name] = max(shared.get((b.role, name), 0), room(b.nbytes))
        own += room(4 * len(program.scalars))
        if gpu:
            own += sum(room(program.buffers[n].nbytes) for n in program.outputs)
        for step in program.steps:
            if isinstance(step, Dispatch):
                own += 0 if gpu else room(4 * len(step.args))
            elif gpu and isinstance(step, Fill) and step.byte:
                own += room(step.dst.nbytes)  # the pattern
            elif gpu and isinstance(step, Copy) and step.src.buffer == step.dst.buffer:
                own += room(step.dst.nbytes)  # a stop on the way
    return own + sum(shared.values())


def _rounded(nbytes: int, unit: int) -> int:
    return max(-(-nbytes // unit), 1) * unit


def _code(folder: Path, made: Mapping[str, Mapping[str, Program]]) -> dict[str, list[Any]]:
    files: dict[str, list[Any]] = {}
    gpu = programs.webgpu(made[targets.WEBGPU.name], targets.WEBGPU)
    write_file(folder, "webgpu.json", compact_json(gpu), files)
    for feature, caps in targets.VARIANTS.items():
        variant = programs.webgpu(made[targets.WEBGPU.name], caps)
        if variant != gpu:
            write_file(folder, f"webgpu-{feature}.json", compact_json(variant), files)
    meta, modules = programs.webassembly(made[targets.WASM.name], targets.WASM)
    write_file(folder, "wasm.json", compact_json(meta), files)
    for name, code in modules.items():
        write_file(folder, name, code, files)
    return files


def features(manifest: Mapping[str, Any]) -> set[str]:
    """Returns the features of a page, names of FEATURES."""
    said = {**manifest.get("model", {}), **manifest}
    return {manifest["kind"], *(name for name in FEATURES if said.get(name))}


def player_files(manifest: Mapping[str, Any]) -> set[str]:
    """Returns the names of the player's files that a page has, its own and the common ones."""
    has = features(manifest)
    others = set().union(*FEATURES.values()) - set().union(*(FEATURES[name] for name in has))
    return {p.name for p in PLAYER.iterdir() if p.is_file()} - others - {*DEVELOPING}


def write_player(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Copies the page and the player; its service worker keeps every file but the weights.
    `manifest` is the model's, or says which `models` have folders of their own (several.py)."""
    files, models = player_files(manifest), manifest.get("models", ())
    for source in PLAYER.iterdir():
        if source.name in files:
            data = source.read_bytes()
            data = bare(data) if source.suffix == ".js" else data
            data = _own_panels(data, manifest) if source.name == "index.html" else data
            write_bytes(folder / source.name, data)
    names = sorted(str(p.relative_to(folder).as_posix()) for p in folder.rglob("*") if p.is_file())
    large = re.compile(
        r"(|.*/)weights-.*|sw\.js|selftest\.json|webgpu.*\.json"
        rf"|({'|'.join(['scratch', 'lora', 'search', *map(re.escape, models)])})/(?!manifest).*"
    )
    kept = [n for n in names if not large.fullmatch(n) and not is_licence(n)]
    digest = hashlib.sha256()
    begins = {}  # the first letters of each file's digest, by which the worker recognises it
    for name in kept:
        data = (folder / name).read_bytes()
        digest.update(data)
        begins[name] = hashlib.sha256(data).hexdigest()[:12]
    begins["./"] = begins["index.html"]
    worker = folder / "sw.js"
    text = worker.read_text(encoding="utf-8")
    text = text.replace("%VERSION%", digest.hexdigest()[:16])
    entries = " ".join(f"{name}={begin}" for name, begin in begins.items())
    write_text(worker, text.replace("%FILES%", entries))


def _own_panels(page: bytes, manifest: Mapping[str, Any]) -> bytes:
    """Returns the page without panels that it does not show, their tabs, and indentation."""
    text, has = page.decode(), features(manifest)
    for name in (name for name, users in PANELS.items() if not users & has):
        text = re.sub(rf'\n *<button role="tab" id="tab-{name}".*', "", text)
        text = re.sub(rf'\n *<section id="{name}".*?</section>', "", text, flags=re.DOTALL)
    if models := manifest.get("models"):
        text = text.replace("<body>", f'<body data-models="{" ".join(models)}">')
    return re.sub(r"\n\s+", "\n", text).encode()


def bare(source: bytes) -> bytes:
    """Returns JavaScript of the player without its comments and indentation: a third of its bytes,
    with gzip too."""
    text = re.sub(r"/\*\*.*?\*/ ?", "", source.decode(), flags=re.DOTALL)
    lines = (re.sub(r"(^|\s+)// [^\"'`]*$", "", line).strip() for line in text.splitlines())
    return "".join(f"{line}\n" for line in lines if line and not line.startswith("//")).encode()


def write_file(folder: Path, name: str, data: bytes, files: dict[str, list[Any]]) -> None:
    """Writes a file, and adds its size and hash to `files`, as the manifest lists them."""
    write_bytes(folder / name, data)
    files[name] = [len(data), hashlib.sha256(data).hexdigest()]


def compact_json(value: Any) -> bytes:
    """A value as JSON in UTF-8, without spaces."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
