"""The search for codes and GPTQ, on random matrices."""

from __future__ import annotations

import numpy as np
import pytest

from weft.core.dtypes import float16, float32
from weft.core.errors import ModelError, UsageError
from weft.core.packed import Form, Packed, dequantized
from weft.importers.gguf_blocks import BY_NAME
from weft.importers.packed.gguf import packed_of
from weft.importers.packed.gguf_out import blocks_of
from weft.quantize.gptq import Moments, gptq, unit_of
from weft.quantize.schemes import K_TYPES, Scheme, bits_per_weight
from weft.quantize.search import Search

pytestmark = pytest.mark.usefixtures("few_candidates")


SCHEMES = ["int4", "int4-zero", "nf4", "int8", "fp8", "int8-channel", "q4_k", "q6_k"]


KS = [K_TYPES["q4_k"][0], K_TYPES["q6_k"][0]]


def nearest(form: Form, w: np.ndarray) -> np.ndarray:
    """Rounding to nearest with the largest weight at the end of the range: what needs no search."""
    groups = w.reshape(len(w), -1, form.group).astype(np.float64)
    if form.table is None:
        step = np.abs(groups).max(axis=2, keepdims=True) / (2 ** (form.bits - 1) - 1)
        return (np.round(groups / step) * step).reshape(w.shape)
    table = np.array(sorted(t for t in form.table if t == t))
    step = np.abs(groups).max(axis=2, keepdims=True) / table.max()
    at = np.abs(groups[..., None] / step[..., None] - table).argmin(axis=-1)
    return (table[at] * step).reshape(w.shape)


@pytest.mark.parametrize("name", SCHEMES)
def test_a_search_loses_less_than_rounding(name: str) -> None:
    rng = np.random.default_rng(0)
    w = (rng.standard_normal((40, 256)) * 0.02).astype(np.float32)
    w[3] = 0
    h = np.exp(rng.standard_normal(256)).astype(np.float32)
    scheme = Scheme(name)
    form = scheme.form(256)
    assert form is not None
    parts = Search(form, scheme.scale_dtype)(w, h)
    form.check(parts, 40, 256)
    got = dequantized(form, parts)
    assert not got[3].any()
    used = np.arange(40) != 3
    pair = (got[used], nearest(form, w[used]))
    lost, plain = ((h * (x - w[used]) ** 2).sum() for x in pair)
    assert lost < plain * (1.02 if name == "fp8" else 0.95 if form.bits == 4 else 1.0)


@pytest.mark.parametrize("name", ["q4_k", "q5_k", "q6_k"])
def test_scales_of_scales(name: str) -> None:
    """The gguf package reads the blocks as what was found, and weft as the very parts; rows of one
    sign, of zeros and with outliers too."""
    import gguf

    rng = np.random.default_rng(3)
    w = rng.standard_normal((12, 512)).astype(np.float32) * np.float32(0.02)
    w[1], w[2], w[4, :256] = np.abs(w[1]), w[2] - 0.1, 0
    w[5, ::32] = 3
    form = Scheme(name).form(512)
    assert form is not None and form.super_group == 256
    parts = Search(form, float16)(w)
    assert all((parts[p] < 64).all() for p in ("scales", "lows") if form.bits < 6)
    wanted, kind = dequantized(form, parts), gguf.GGMLQuantizationType[name.upper()]
    found = blocks_of(Packed(form, parts))
    assert np.array_equal(gguf.quants.dequantize(found, kind), wanted)
    again = packed_of(BY_NAME[name.upper()], found, w.shape)
    assert all(np.array_equal(again.parts[p], parts[p]) for p in form.parts)
    assert not wanted[4, :256].any()
    largest, lost = (np.abs(v).reshape(12, -1, form.group).max(axis=2) for v in (w, wanted - w))
    assert (lost <= 2 * np.maximum(2 * largest / 2**form.bits, 1e-3)).all()
    assert bits_per_weight(form) == gguf.GGML_QUANT_SIZES[kind][1] / 32


def test_rows_do_not_depend_on_those_beside_them(monkeypatch: pytest.MonkeyPatch) -> None:
    w = np.random.default_rng(1).standard_normal((70, 64)).astype(np.float32)
    form = Form(4, 32, offset=8)
    whole = Search(form, float16)(w)
    monkeypatch.setattr("weft.quantize.search.CHUNK", 64 * 9)
    pieces = Search(form, float16)(w)
    assert all(np.array_equal(whole[p], pieces[p]) for p in whole)


def test_gptq_loses_less_than_the_search() -> None:
    rng = np.random.default_rng(2)
    mix = rng.standard_normal((256, 64)) * np.exp(rng.standard_normal(256))[:, None]
    x = rng.standard_normal((600, 256)) @ mix @ mix.T
    x[:, 5] = 0  # an input that is never used
    w = rng.standard_normal((24, 256)).astype(np.float32)
    for form in (Form(4, 32, shift="zero"), Form(4, 64, "nf4"), *KS):
        search = Search(form, float32)
        made = gptq(w, Moments(x.T @ x, unit_of(form)), search)
        form.check(made, 24, 256)
        lost = [np.linalg.norm((dequantized(form, p) - w) @ x.T) for p in (made, search(w))]
        assert lost[0] < 0.7 * lost[1]


def test_what_cannot_be_quantised_is_refused() -> None:
    form, w = Form(4, 32, offset=8), np.ones((2, 32), np.float32)
    with pytest.raises(ModelError, match="NaN"):
        Search(form, float16)(w * np.inf)
    with pytest.raises(ModelError, match="overflow"):
        Search(form, float16)(w * np.float32(1e30))
    with pytest.raises(ModelError, match="NaN"):
        Moments(np.full((32, 32), np.nan), 32)
    for bad in ("int6", "int5-zero", "nf4-zero", "int4-g48", "", "fp8-zero"):
        with pytest.raises(UsageError, match="no scheme"):
            Scheme(bad)
