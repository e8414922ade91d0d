"""`weft quantize`: reads a folder of weights and writes packed weights, layer by layer.

Each finished layer is a file in a folder next to the result, so an interrupted run resumes there.
When all are done, the folder becomes the result, or a GGUF file is made from it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from weft.core.dtypes import bfloat16
from weft.core.errors import ModelError, UsageError
from weft.core.packed import Packed, dequantized, split, stacked
from weft.core.places import move, remove, remove_empty
from weft.host.files import owned, write_json
from weft.importers.gguf_write import write_gguf
from weft.importers.hf_config import Fields, read_config
from weft.importers.safetensors import INDEX, SafetensorsFile, open_checkpoint, save_file
from weft.models.arch.config import Kind
from weft.models.arch.weights import Weights
from weft.models.text.token_ids import read_token_ids
from weft.models.weights.content import model_digests
from weft.models.weights.decoder_names import decoder_layout
from weft.models.weights.names import (
    bind_weights,
    checkpoint_names,
    parts_of,
    read_weight,
    tensors_of as plain_tensors,
)
from weft.models.weights.weight_dtypes import main_dtype
from weft.models.weights.writing import copy_tokenizer, said_of_head
from weft.quantize import compressed
from weft.quantize.calibrate import Calibration
from weft.quantize.gguf import kind_of, metadata, tensors
from weft.quantize.gguf_tokens import tokenizer_metadata
from weft.quantize.gptq import Moments, gptq, unit_of
from weft.quantize.packing import Packing, Target
from weft.quantize.plan import Losses, choose, loss
from weft.quantize.resume import FORMAT, STATE, Unfinished
from weft.quantize.schemes import better, bits_per_weight
from weft.quantize.source import check_target, decoder_config, is_gguf

METHODS = ("gptq", "search")
Report = Callable[[str, int, int], None]  # (what is done, number done, total)


@dataclass(frozen=True)
class QuantizeOptions:
    """The settings of a job. `scheme`: for linear layers; `head`: for a separate output matrix.
    `embed`: for embeddings (GGUF only); "none" leaves them unpacked. `bits`: if not 0, the allowed
    mean bits of linear layers; the layers that lose most get more. `method`: "search" for scales,
    or "gptq" on top of it. `text`: a digest of the calibration ids, "" for none."""

    scheme: str = "int4"
    head: str = "int8"
    embed: str = "none"
    bits: float = 0.0
    method: str = "gptq"
    text: str = ""


@dataclass(frozen=True)
class Result:
    """Bytes before and after, bits per packed weight, seconds of this run."""

    before: int
    after: int
    bits: float
    seconds: float


def quantize(
    source: Path, out: Path, options: QuantizeOptions, ids: np.ndarray | None = None,
    device: Any = None, report: Report = lambda what, done, of: None,
) -> Result:  # fmt: skip
    """Writes the decoder in the folder `source` to `out`: a GGUF file if the name ends in .gguf,
    else a folder in the compressed-tensors format.

    `ids`: int32 [windows, length] of calibration text; "gptq" needs it, "search" uses it. Raises
    UsageError, ModelError, FileFormatError, StorageError.
    """
    if options.method == "gptq" and ids is None:
        raise UsageError("gptq needs a calibration text")
    started = time.perf_counter()
    job = _Job(source, out, options, device)
    job.check()
    job.left.check()
    with owned(job.partial):
        job.begin()
        return _run(job, ids, started, report)


def _run(job: _Job, ids: np.ndarray | None, started: float, report: Report) -> Result:
    def text() -> Calibration | None:
        return None if ids is None else Calibration(job.config, job.weights, ids, job.device)

    if job.options.bits and not job.packing.plan:
        job.choose(text(), report)
    calibration = text()
    for done, roles in enumerate(job.pieces):
        if not job.finished(done):
            job.write(done, job.quantised(done, roles, calibration))
        elif calibration is not None and done:
            calibration.advance(done - 1, job.passed(done, roles))
        report(f"layer {done - 1}" if done else "embeddings", done + 1, len(job.pieces))
    return job.close(started)


def check(source: Path, out: Path, options: QuantizeOptions) -> None:
    """Raises the errors of `quantize` that can be found before any work."""
    _Job(source, out, options, None).check()


def _input(role: str) -> str:
    """Returns calibration's name for the input of a matrix. The experts' gates share the router's
    input; the inputs of their down projections are not measured."""
    layer, _, part = role.partition(".")
    router = part in ("gate_exps.w", "up_exps.w", "gate_up_exps.w")
    return f"{layer}.router" if router else role.removesuffix(".w")


class _Job:
    """The pieces of a model: first the weights outside the layers, then each layer."""

    def __init__(self, source: Path, out: Path, options: QuantizeOptions, device: Any) -> None:
        self.source, self.out, self.options, self.device = source, out, options, device
        raw = read_config(source)
        self.gguf = is_gguf(out)
        self.config = decoder_config(source, raw, self.gguf)
        self.raw = dict(raw.data)
        checkpoint = open_checkpoint(source)
        self.before = checkpoint.nbytes
        layout = decoder_layout(self.config)
        self.layout = layout.weights
        self.weights = Weights(bind_weights(layout, checkpoint))
        # Readers of a folder convert scales to the model's dtype.
        wide = not self.gguf and main_dtype(self.weights) is bfloat16
        schemes: dict[Kind, str] = {
            "matrix": options.scheme, "experts": options.scheme, "head": options.head,
            "embed": options.embed,
        }  # fmt: skip
        self.packing = Packing(self.config, schemes, device, bfloat16 if wide else None)
        self.names = checkpoint_names(self.config)
        rest = [r for r in self.weights if not r.split(".")[0].isdigit()]
        of = (f"{i}." for i in range(self.config.layers))
        self.pieces = [rest, *([r for r in self.weights if r.startswith(at)] for at in of)]
        self.partial = out.with_name(f".{out.name}.quantizing")
        self.left = Unfinished(self.partial)

    def check(self) -> None:
        """Raises UsageError or ModelError for a model or settings that could not be written."""
        o = self.options
        if o.method not in METHODS:
            raise UsageError(f"method is {o.method!r}; expected {' or '.join(METHODS)}")
        if o.embed != "none" and not self.gguf:
            raise UsageError("embeddings become less bits in GGUF only; leave --embed out")
        if o.text and (self.config.shares or self.config.layer_input):
            raise UsageError(
                f"weft does not calibrate {self.config.family}, whose layers take more than what "
                "the one before gives: --method search, without --text"
            )
        check_target(self.out)
        forms = {r: f for r in self.weights if (f := self.form(r)) is not None}
        if not any(map(self.is_linear, forms)):
            raise ModelError(f"{self.source}: no linear layer has rows of whole runs of 8 weights")
        if self.gguf:
            self.tokenizer()
        for form, _ in () if self.gguf else forms.values():
            compressed.check_form(form)
        if o.bits:
            sizes = {r: self.weights[r].size for r in forms if r[0].isdigit()}
            choose(sizes, [o.scheme], lambda role, _: bits_per_weight(*forms[role]), {}, o.bits)

    def begin(self) -> None:
        """Resumes the remains of the same job; deletes those of another."""
        check_target(self.out)  # from here on no other weft process can create it
        job = {"format": FORMAT, "source": str(self.source.resolve()), "bytes": self.before}
        self.left.begin({**job, "files": model_digests(self.source), **asdict(self.options)})
        self.packing.plan = self.left.plan

    def choose(self, calibration: Calibration | None, report: Report) -> None:
        """Chooses the mixed plan of schemes."""
        schemes = [self.options.scheme, *better(self.options.scheme, self.gguf)]
        losses: dict[str, Losses] = {}
        for i, roles in enumerate(self.pieces[1:]):
            squares: Mapping[str, np.ndarray] = {}
            if calibration is not None:
                squares = calibration.advance(i, {r: self.weights[r] for r in roles})
            for role in (r for r in roles if self.form(r) is not None):
                h = squares.get(_input(role))
                losses[role] = {
                    s: loss(self.matrix(role), h, self.packing.search(self.target(role, s)))
                    for s in schemes
                }
            report(f"plan of layer {i}", i + 1, len(self.pieces) - 1)
        sizes = {r: self.weights[r].size for r in losses}

        def bits(role: str, scheme: str) -> float:
            return bits_per_weight(*self.target(role, scheme))

        self.packing.plan = choose(sizes, schemes, bits, losses, self.options.bits)
        self.left.plan = self.packing.plan
        self.left.note()

    def _name(self, piece: int) -> str:
        return f"model-{piece + 1:05d}-of-{len(self.pieces):05d}.safetensors"

    def _file(self, piece: int) -> Path:
        return self.partial / self._name(piece)

    def finished(self, piece: int) -> bool:
        return self.left.has(self._name(piece))

    # -- one piece

    def form(self, role: str) -> Target | None:
        """Returns the form a weight gets; None if it stays unpacked."""
        found = self.packing.target(role, self.weights[role])
        if found is not None and self.gguf:
            kind_of(found[0])
        return found

    def target(self, role: str, scheme: str) -> Target:
        """Returns the form that a scheme would give to a packed weight."""
        found = self.packing.target(role, self.weights[role], scheme)
        assert found is not None
        return found

    def is_linear(self, role: str) -> bool:
        """Returns True if readers of the result see the weight as a linear layer."""
        return self.packing.kinds[role] in ("matrix", "experts", "router", "gate", "head")

    def linears(self, role: str) -> list[str]:
        """Returns the names of the layers whose matrices a weight holds."""
        names = parts_of(self.layout[role], self.names[role])
        return [name.removesuffix(".weight") for name in names]

    def matrix(self, role: str) -> np.ndarray:
        """Returns a weight as [N, K]."""
        return self.packing.matrix(role, self.weights[role])

    def quantised(
        self, piece: int, roles: list[str], calibration: Calibration | None
    ) -> dict[str, np.ndarray | Packed]:
        """Returns the weights of a piece in the form that is written."""
        out: dict[str, np.ndarray | Packed] = {r: self.weights[r] for r in roles}
        forms = {r: f for r in roles if (f := self.form(r)) is not None}
        if piece == 0 or calibration is None:
            for role in forms:
                out[role] = self.packing.packed(role, self.weights[role])
            return out
        i, plain = piece - 1, {r: self.weights[r] for r in roles}
        if self.options.method == "search":
            squares = calibration.advance(i, plain)
            for role in forms:
                out[role] = self.packing.packed(role, plain[role], squares.get(_input(role)))
            return out
        squares = {}
        for stage in calibration.stages(i, plain):
            wanted = [f"{name}.w" for name in stage if f"{name}.w" in forms]
            if stage[0].endswith(".router"):
                moments = calibration.moments(i, plain, stage[0])
                squares[stage[0]] = np.diagonal(moments).astype(np.float32)
            if not wanted:
                continue
            moments = calibration.moments(i, plain, stage[0])
            inputs = Moments(moments, unit_of(forms[wanted[0]][0]))
            for role in wanted:
                search = self.packing.search(forms[role])
                packed = Packed(search.form, gptq(self.matrix(role), inputs, search))
                out[role], plain[role] = packed, self.packing.matrix(role, dequantized(*packed))
        experts = [r for r in forms if self.packing.kinds[r] == "experts"]
        for role in experts:  # few rows reach each expert, so no GPTQ
            packed = self.packing.packed(role, self.weights[role], squares.get(_input(role)))
            out[role], plain[role] = packed, dequantized(*packed)
        calibration.advance(i, plain)
        return out

    # -- files

    def write(self, piece: int, weights: Mapping[str, np.ndarray | Packed]) -> None:
        tensors: dict[str, np.ndarray] = {}
        for role, value in weights.items():
            name = self.names[role]
            if not isinstance(value, Packed):
                tensors |= plain_tensors(self.layout[role], name, value)
            elif self.gguf:  # raw parts: the GGUF file is made from all pieces
                tensors |= {f"{name}.{p}": v for p, v in value.parts.items()}
            else:
                for one, part in zip(self.linears(role), split(value, len(self.linears(role)))):
                    tensors |= compressed.tensors_of(one, part)
        save_file(self._file(piece), tensors, {"format": "pt"})
        self.left.add(self._name(piece))

    def passed(self, piece: int, roles: list[str]) -> dict[str, np.ndarray]:
        """Returns the weights of a finished piece as the text passes through them: GPTQ compensates
        for the losses of earlier layers."""
        if self.options.method != "gptq":
            return {r: self.weights[r] for r in roles}
        found = self.read(piece, roles).items()
        return {
            r: self.packing.matrix(r, dequantized(*v)) if isinstance(v, Packed) else v
            for r, v in found
        }

    def read(self, piece: int, roles: list[str]) -> dict[str, np.ndarray | Packed]:
        """Reads the weights of a finished piece."""
        file = SafetensorsFile(self._file(piece))
        out: dict[str, np.ndarray | Packed] = {}
        for role in roles:
            name, found = self.names[role], self.form(role)
            if found is None:
                out[role] = read_weight(self.layout[role], name, lambda part, _: file[part])
            elif self.gguf:
                out[role] = Packed(found[0], {p: file[f"{name}.{p}"] for p in found[0].parts})
            else:
                each = [compressed.packed_from(file, one, found[0]) for one in self.linears(role)]
                out[role] = stacked(each)
        return out

    def close(self, started: float) -> Result:
        """Moves the result to its final name."""
        bits = {r: bits_per_weight(*f) for r in self.weights if (f := self.form(r)) is not None}
        count = sum(self.weights[r].size for r in bits)
        mean = sum(b * self.weights[r].size for r, b in bits.items()) / max(count, 1)
        size = self._write_gguf() if self.gguf else self._close_folder()
        return Result(self.before, size, mean, time.perf_counter() - started)

    def _close_folder(self) -> int:
        where: dict[str, str] = {}
        size = 0
        for piece in range(len(self.pieces)):
            file = SafetensorsFile(self._file(piece))
            where |= dict.fromkeys(file, self._file(piece).name)
            size += sum(t.stop - t.start for t in file.tensors.values())
        write_json(self.partial / INDEX, {"metadata": {"total_size": size}, "weight_map": where})
        linear = {name: r for r in self.weights if self.is_linear(r) for name in self.linears(r)}
        forms = {name: f[0] for name, r in linear.items() if (f := self.form(r)) is not None}
        tied = [] if "head" in self.weights else ["lm_head"]  # readers count a tied head as a layer
        plain = [name for name in linear if name not in forms] + tied
        raw = said_of_head(self.raw, self.config)
        config = {**raw, "quantization_config": compressed.quantization_config(forms, plain)}
        write_json(self.partial / "config.json", config)
        copy_tokenizer(self.source, self.partial)
        check_target(self.out)
        move(self.partial, self.out, self.out.parent)
        remove(self.out / STATE, self.out.parent)
        return size

    def _write_gguf(self) -> int:
        weights: dict[str, np.ndarray | Packed] = {}
        for piece, roles in enumerate(self.pieces):
            weights |= self.read(piece, roles)
        made = tensors(self.config, weights)
        said = metadata(self.config, self.source.resolve().name)
        whole = self.partial / "model.gguf"
        write_gguf(whole, said | self.tokenizer(), made)
        check_target(self.out)
        move(whole, self.out, self.out.parent)
        for name in (*map(self._name, range(len(self.pieces))), STATE):
            remove(self.partial / name, self.out.parent)
        with suppress(OSError):  # another process has put something else there
            remove_empty(self.partial, self.out.parent)
        return sum(t.nbytes for t in made.values())

    def tokenizer(self) -> dict[str, Any]:
        """Returns the tokenizer as GGUF metadata."""
        ids = read_token_ids(self.source, Fields(self.raw, str(self.source)))
        return tokenizer_metadata(self.source, self.config.vocab, ids)
