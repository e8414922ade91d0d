"""A model as a static folder that runs in a visitor's browser (docs/browser.md).

- manifest.json: a list of the content: sizes, hashes, tensors, the model's numbers
- webgpu.json: Programs with WGSL; webgpu-FEATURE.json: the same for GPUs with FEATURE
- wasm.json: Programs for WebAssembly; kernels*.wasm: their code
- selftest.json: results of its kernels on another device, for ?selftest
- weights-*.bin: tensors
- tokenizer.json: as the checkpoint has it
- chat.json: its chat template, if it has one that a page can run
- scratch/, lora/: files that train a new model, or an adapter, each with its own manifest
- search/: an encoder for the page's search, likewise
- LICENSE, NOTICE: weft's terms; model-LICENSE and the like: the model's, if its folder has them
- index.html, *.js: the page and the player, copied from weft/web/js
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from weft.core.errors import ModelError, UsageError
from weft.core.text import first_line
from weft.host.files import replacing_folder
from weft.models.arch.inputs import PAGE, columns, intact, kv_counts
from weft.models.run.base import Model
from weft.models.run.compiled_runner import CompiledRunner
from weft.models.run.embedder import Encoder
from weft.models.run.encoder_runner import encoder_program
from weft.models.run.model import KINDS, Decoder
from weft.models.run.picture_encoder import PictureEncoder
from weft.models.run.placed import weight_avals
from weft.models.run.runner import DECODE, PICTURED
from weft.models.run.transcriber import Transcriber
from weft.models.run.whisper import Whisper
from weft.program.program import Program
from weft.web import selftest
from weft.web.albums import album_parts
from weft.web.chat import chat_file
from weft.web.encoders import unlike_page
from weft.web.existing import check_page
from weft.web.folder import (
    FEATURES,
    FORMAT,
    TARGETS,
    compact_json,
    player_files,
    write_body,
    write_file,
    write_player,
)
from weft.web.licences import write_model_terms
from weft.web.sight import page_sight
from weft.web.speech import speech_parts
from weft.web.tokenizers import for_page
from weft.web.training import PageTraining, training

TARGET = ("webgpu.js", "wasm.js", "thread.js")
# The page fetches these when it uses them, after the weights.
LATER = (
    "ask.js", "forced.js", "grammar.js", "grammar_numbers.js", "language.js",
    "page_fetch.js", "patterns.js", "philox.js", "pictures.js", "schema.js", "schema_flat.js",
    "schema_not.js", "schema_refs.js", "schema_values.js", "selftest.js", "talk.js", "testpage.js",
    "toolcalls.js", "toolcalls_json.js", "toolcalls_marked.js", "toolforms.js", "tools.js",
    "vocabulary.js",
)  # fmt: skip
SEARCH = "search"


def export_web(
    model: Model, out: Path, train: Sequence[str] = (), search: Model | None = None
) -> dict[str, Any]:
    """Writes the folder `out`, whole or not at all; returns the manifest. `train` names what the
    page can also train (training.KINDS); `search` is an encoder for its search.

    Raises UsageError for a model unfit for a page and for a folder with other content, StorageError
    if a file cannot be written.
    """
    if search is not None and not (isinstance(model, Decoder) and isinstance(search, Encoder)):
        raise UsageError("--search takes an encoder, and MODEL must generate text")
    if train and not isinstance(model, Decoder):
        raise UsageError(f"{model.folder} is an encoder; a page trains decoders")
    check_page(out)
    with replacing_folder(out) as folder:
        if isinstance(model, Decoder):
            return export_decoder(model, folder, [training(model, kind) for kind in train], search)
        if isinstance(model, PictureEncoder):
            manifest = export_album(model, folder)
        elif isinstance(model, Transcriber):
            manifest = export_speech(model, folder)
        else:
            manifest = export_encoder(model, folder)
        write_player(folder, manifest)
        return manifest


def export_decoder(
    model: Decoder, folder: Path, trained: Sequence[PageTraining] = (), search: Model | None = None,
    player: bool = True,
) -> dict[str, Any]:  # fmt: skip
    """Writes the files of a decoder into an empty `folder`, with page and player if `player`; the
    manifest."""
    # A page has one table for all layers.
    # A page's prompts are text, whose three rotary positions are one.
    config = replace(model.config, kv_window=0, turns_by=())
    runner = CompiledRunner(config, model.placed, model.context, 1, columns(model.context))
    sight = page_sight(model, runner.room(PICTURED))
    # without vectors, a step with places for them does what one without them does
    kinds = KINDS if sight is None else (PICTURED, DECODE)
    made = {caps.name: {kind: runner.program(kind, caps) for kind in kinds} for caps in TARGETS}
    c = model.config
    about = {"family": c.family, "vocab": c.vocab, "context": model.context}
    about |= {"kv_heads": kv_counts(c), "page": PAGE, "eos": list(model.tokens.eos)}
    about["rewinds"] = intact(c, model.context, model.context, 0)
    for each in trained:
        _export_training(each, folder / each.kind, model.folder.name, about)
    weights: dict[str, Any] = {**runner.weights}
    if sight is not None:
        about |= {"picture": sight.about, "looks": bool(c.looks), "hidden": c.hidden}
        weights |= sight.arrays
        made = {target: {**made[target], "picture": p} for target, p in sight.made.items()}
    body = write_body(folder, made, weights)
    given = {kind: _prompt(runner, kind) for kind in kinds if kind in KINDS}
    tests = {
        caps.name: selftest.references(_texts(made[caps.name]), caps, given) for caps in TARGETS
    }
    write_file(folder, "selftest.json", compact_json(tests), body["files"])
    about |= {"rows": {kind: runner.room(kind) for kind in KINDS}}
    head: dict[str, Any] = {
        "kind": "decoder",
        "model": about,
        "train": [each.kind for each in trained],
    }
    if (chat := _chat(model, folder, body["files"])) is not None:
        head["chat"] = chat
    if search is not None:
        (folder / SEARCH).mkdir()
        export_encoder(search, folder / SEARCH)
        head["search"] = SEARCH
    manifest = _manifest(model, folder, head, body)
    if player:
        write_player(folder, manifest)
    return manifest


def export_encoder(model: Model, folder: Path) -> dict[str, Any]:
    """Writes the files of an encoder: a Program for one text of each width, so that a text's
    vector does not depend on others; the manifest."""
    if not isinstance(model, Encoder):
        raise UsageError(f"{model.folder}: a page runs decoders and encoders")
    c, how, avals = model.config, model.pooling, weight_avals(model.weights)
    if (what := unlike_page(model)) is not None:
        raise UsageError(f"{model.folder}: a page cannot run encoders with {what}")
    made = {
        caps.name: {str(n): encoder_program(c, avals, (1, n), caps) for n in model.widths}
        for caps in TARGETS
    }
    about = {"family": c.family, "vocab": c.vocab, "hidden": c.hidden, "pad": model.pad}
    about |= {"widths": model.widths, "modes": how.modes, "normalize": bool(how.steps)}
    head = {"kind": "encoder", "model": about}
    return _manifest(model, folder, head, write_body(folder, made, model.weights))


def export_album(model: PictureEncoder, folder: Path) -> dict[str, Any]:
    """Writes the files of a model whose texts find pictures; the manifest."""
    made, weights, about = album_parts(model)
    head = {"kind": "album", "model": about}
    return _manifest(model, folder, head, write_body(folder, made, weights))


def export_speech(model: Transcriber, folder: Path) -> dict[str, Any]:
    """Writes the files of a model that writes down what it hears; the manifest."""
    if not isinstance(model, Whisper):
        raise UsageError(f"{model.folder}: a page hears with Whisper, not yet with this family")
    made, weights, about = speech_parts(model)
    head = {"kind": "speech", "model": about}
    return _manifest(model, folder, head, write_body(folder, made, weights))


def _chat(model: Decoder, folder: Path, files: dict[str, Any]) -> bool | str | None:
    """True if the page can chat, else the reason; None for a model without a template."""
    tokenizer = model.need_tokenizer("a page cannot run without one")
    if not tokenizer.has_chat:
        return None
    try:
        write_file(folder, "chat.json", chat_file(tokenizer, model.tokens.eos), files)
    except ModelError as e:
        return first_line(e)
    return True


def _manifest(
    model: Model, folder: Path, head: dict[str, Any], body: dict[str, Any]
) -> dict[str, Any]:
    """Writes the tokenizer and the manifest, which it gives."""
    tokenizer = model.need_tokenizer("a page cannot run without one")
    write_file(folder, "tokenizer.json", for_page(tokenizer), body["files"])
    text = {"around": tokenizer.around(), "limit": tokenizer.limit, "lower": tokenizer.lower}
    terms = write_model_terms(model.folder, folder)
    manifest = {"format": FORMAT, "name": model.folder.name, "text": text, **terms, **head, **body}
    write_file(folder, "manifest.json", compact_json(manifest), {})
    return manifest


def _export_training(it: PageTraining, folder: Path, name: str, about: Mapping[str, Any]) -> None:
    """Writes a folder of its own, which a page fetches when it is to train."""
    folder.mkdir()
    made = {caps.name: it.programs(caps) for caps in TARGETS}
    body = write_body(folder, made, it.tensors)
    head = {"format": FORMAT, "kind": it.kind, "name": name, "model": about, "train": it.about}
    manifest = {**head, **body}
    write_file(folder, "manifest.json", compact_json(manifest), {})


def sizes(folder: Path, manifest: Mapping[str, Any]) -> list[tuple[str, int, int]]:
    """(what, bytes, bytes as a server sends them with gzip) of what a visit of `folder` fetches for
    either target; weights are hardly smaller for it."""
    weights = sum(nbytes for _, nbytes, _ in manifest["shards"])
    kind = manifest["kind"]
    shown = {"kind": kind, "model": manifest["model"]}
    player = {name for name in player_files(shown) if name.endswith(".js")}
    player -= {*TARGET, *LATER, "node.js", "node_thread.js"}
    player -= FEATURES["picture"] if kind == "decoder" else set()  # ask.js begins with them
    parts = {
        "Program, WebGPU": ["webgpu.json", "webgpu.js"],
        "Program, WebAssembly": ["wasm.json", "kernels-relaxed.wasm", "wasm.js", "thread.js"],
        "tokenizer's data": [n for n in manifest["files"] if n.startswith("tokenizer")],
        "player": sorted(player),
        "page": ["index.html", "page.css", "icon.svg"],
    }
    found = [("weights", weights, weights)]
    for what, names in parts.items():
        files = [(folder / name).read_bytes() for name in names]
        packed = sum(len(gzip.compress(data, mtime=0)) for data in files)
        found.append((what, sum(map(len, files)), packed))
    return found


def _texts(made: Mapping[str, Program]) -> dict[str, Program]:
    """The Programs of the steps of a text."""
    return {kind: made[kind] for kind in KINDS if kind in made}


def _prompt(runner: CompiledRunner, kind: str) -> dict[str, np.ndarray]:
    """The inputs of a step at the beginning of a text, which ?selftest uses."""
    size = runner.room(kind)
    n = min(3, size)
    made = runner.inputs(size, range(1, n + 1), [0] * n, range(n))
    return made | {"last": np.array([n - 1], np.int32)}
