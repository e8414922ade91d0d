"""`weft quantize`: reads a folder of weights and writes packed weights, layer by layer.

Each finished layer is a file in a folder next to the result, so an interrupted run resumes there.
When all are done, the folder becomes the result, or a GGUF file is made from it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from weft.core.dtypes import bfloat16
from weft.core.errors import ModelError, UsageError
from weft.core.packed import Packed, dequantized
from weft.host.files import owned
from weft.host.mapped import release
from weft.importers.hf_config import Fields, read_config
from weft.importers.safetensors import open_checkpoint
from weft.models.arch.config import Kind
from weft.models.arch.weights import Weights
from weft.models.text.token_ids import read_token_ids
from weft.models.weights.content import model_digests
from weft.models.weights.weight_dtypes import main_dtype
from weft.quantize import compressed
from weft.quantize.calibrate import Calibration
from weft.quantize.finish import finish_folder, finish_gguf
from weft.quantize.gguf_tokens import tokenizer_metadata
from weft.quantize.gptq import Moments, gptq, unit_of
from weft.quantize.packing import Packing
from weft.quantize.pieces import Pieces
from weft.quantize.plan import Losses, choose, loss
from weft.quantize.resume import FORMAT, Unfinished
from weft.quantize.schemes import better, bits_per_weight
from weft.quantize.source import check_target, is_gguf, read_decoder, uncalibrated

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
class QuantizeResult:
    """Bytes before and after, bits per packed weight, seconds of this run."""

    before: int
    after: int
    bits: float
    seconds: float


def quantize(
    source: Path, out: Path, options: QuantizeOptions, ids: np.ndarray | None = None,
    device: Any = None, report: Report = lambda what, done, of: None,
) -> QuantizeResult:  # fmt: skip
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
    with owned(job.left.folder):
        job.begin()
        return _run(job, ids, started, report)


def _run(job: _Job, ids: np.ndarray | None, started: float, report: Report) -> QuantizeResult:
    def text() -> Calibration | None:
        return None if ids is None else Calibration(job.config, job.weights, ids, job.device)

    if job.options.bits and not job.packing.plan:
        job.choose(text(), report)
    calibration = text()
    for done, roles in enumerate(job.pieces.roles):
        if not job.pieces.finished(done):
            job.pieces.write(done, job.quantised(done, roles, calibration))
            for role in roles:  # another piece does not look at these pages of the file
                release(job.weights[role])
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
    """One model on its way to fewer bits: its settings, pieces and the plan of schemes."""

    def __init__(self, source: Path, out: Path, options: QuantizeOptions, device: Any) -> None:
        self.source, self.out, self.options, self.device = source, out, options, device
        raw = read_config(source)
        self.gguf = is_gguf(out)
        self.config, weights = read_decoder(source, raw, self.gguf)
        self.raw = dict(raw.data)
        self.before = open_checkpoint(source).nbytes
        self.weights = Weights(weights)
        # Readers of a folder convert scales to the model's dtype.
        wide = not self.gguf and main_dtype(self.weights) is bfloat16
        schemes: dict[Kind, str] = {
            "matrix": options.scheme, "experts": options.scheme, "head": options.head,
            "embed": options.embed,
        }  # fmt: skip
        self.packing = Packing(self.config, schemes, device, bfloat16 if wide else None)
        self.left = Unfinished(out.with_name(f".{out.name}.quantizing"))
        self.pieces = Pieces(self.config, self.weights, self.packing, self.left, self.gguf)

    def check(self) -> None:
        """Raises UsageError or ModelError for a model or settings that could not be written."""
        o = self.options
        if o.method not in METHODS:
            raise UsageError(f"method is {o.method!r}; expected {' or '.join(METHODS)}")
        if o.embed != "none" and not self.gguf:
            raise UsageError("embeddings become less bits in GGUF only; leave --embed out")
        why = uncalibrated(self.config)
        if why and (o.text or o.method == "gptq"):
            raise UsageError(
                f"weft does not calibrate {self.config.family}, {why}: --method search, without "
                "--text"
            )
        check_target(self.out)
        forms = self.pieces.forms(self.weights)
        if not any(map(self.pieces.is_linear, forms)):
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
        for i, roles in enumerate(self.pieces.roles[1:]):
            squares: Mapping[str, np.ndarray] = {}
            if calibration is not None:
                squares = calibration.advance(i, {r: self.weights[r] for r in roles})
            for role in self.pieces.forms(roles):
                matrix, h = self.pieces.matrix(role), squares.get(_input(role))
                searches = {s: self.packing.search(self.pieces.target(role, s)) for s in schemes}
                losses[role] = {s: loss(matrix, h, search) for s, search in searches.items()}
            report(f"plan of layer {i}", i + 1, len(self.pieces) - 1)
        sizes = {r: self.weights[r].size for r in losses}

        def bits(role: str, scheme: str) -> float:
            return bits_per_weight(*self.pieces.target(role, scheme))

        self.packing.plan = choose(sizes, schemes, bits, losses, self.options.bits)
        self.left.plan = self.packing.plan
        self.left.note()

    def quantised(
        self, piece: int, roles: list[str], calibration: Calibration | None
    ) -> dict[str, np.ndarray | Packed]:
        """Returns the weights of a piece in the form that is written."""
        out: dict[str, np.ndarray | Packed] = {r: self.weights[r] for r in roles}
        forms = self.pieces.forms(roles)
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
                packed = Packed(search.form, gptq(self.pieces.matrix(role), inputs, search))
                out[role], plain[role] = packed, self.packing.matrix(role, dequantized(*packed))
        rest = [r for r in forms if not isinstance(out[r], Packed)]
        for role in rest:  # few rows reach each expert, and matrices by head are no layers: no GPTQ
            packed = self.packing.packed(role, self.weights[role], squares.get(_input(role)))
            out[role], plain[role] = packed, dequantized(*packed)
        calibration.advance(i, plain)
        return out

    def passed(self, piece: int, roles: list[str]) -> dict[str, np.ndarray]:
        """Returns the weights of a finished piece as the text passes through them: GPTQ compensates
        for the losses of earlier layers."""
        if self.options.method != "gptq":
            return {r: self.weights[r] for r in roles}
        found = self.pieces.read(piece, roles).items()
        return {
            r: self.packing.matrix(r, dequantized(*v)) if isinstance(v, Packed) else v
            for r, v in found
        }

    def close(self, started: float) -> QuantizeResult:
        """Moves the result to its final name."""
        bits = {r: bits_per_weight(*f) for r, f in self.pieces.forms(self.weights).items()}
        count = sum(self.weights[r].size for r in bits)
        mean = sum(b * self.weights[r].size for r, b in bits.items()) / max(count, 1)
        if self.gguf:
            size = finish_gguf(self.pieces, self.config, self.tokenizer(), self.source, self.out)
        else:
            size = finish_folder(self.pieces, self.config, self.raw, self.source, self.out)
        return QuantizeResult(self.before, size, mean, time.perf_counter() - started)

    def tokenizer(self) -> dict[str, Any]:
        """Returns the tokenizer as GGUF metadata."""
        ids = read_token_ids(self.source, Fields(self.raw, str(self.source)))
        return tokenizer_metadata(self.source, self.config.vocab, ids)
