"""Reads rotary positions from config.json, in the spellings of transformers 4 and 5.

`rope_scaling` takes precedence over `rope_parameters`, and `rope_type` over `type`. If neither
gives the base and the turned share, they come from the config's `rope_theta` and
`partial_rotary_factor`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from weft.core.errors import ModelError
from weft.core.notices import say_unknown
from weft.core.text import shown
from weft.importers.hf_config import Fields
from weft.models.arch.config import Rope
from weft.models.arch.family_parts import MAX_LAYERS, MAX_POSITIONS, refuse

_ORIGINAL = "original_max_position_embeddings"
_BESIDE = ("rope_theta", "partial_rotary_factor")
# Keys that any rope may hold; weft's text models do not use the last ones.
_ANY = (
    *_BESIDE, "rope_type", "type", _ORIGINAL, "max_position_embeddings", "mrope_section",
    "mrope_interleaved", "finetuned",
)  # fmt: skip


def single_rope(
    c: Fields, head_dim: int, partial: bool = False, renamed: Mapping[str, str] = {},
    more: tuple[str, ...] = (),
) -> Rope:  # fmt: skip
    """Returns the rope of all layers. If the family's code is `partial`, it may turn only a part of
    the head. `renamed` maps other names of types; `more` lists further keys that the family
    reads."""
    said = said_of(c)
    if nested := next((k for k, v in said.data.items() if isinstance(v, dict)), None):
        raise ModelError(
            f"{said.where}: a rope for each kind of layer ({shown(nested, 40)}): unsupported"
        )
    outer = c.integer(_ORIGINAL, 1, MAX_POSITIONS, None)
    return _rope(c, said, head_dim, outer, partial, renamed, more)


def said_of(c: Fields) -> Fields:
    """Returns the fields of a config's single rope, gathered from their possible places."""
    both = c.section("rope_scaling"), c.section("rope_parameters")
    given = next((section for section in both if section is not None and section.data), None)
    beside = {k: c.data[k] for k in _BESIDE if c.data.get(k) is not None}
    if given is None:
        return c.having(beside)
    return given.having({**beside, **given.data})


def two_ropes(
    c: Fields, windows: tuple[int, ...], thetas: tuple[float, float], sizes: tuple[int, int]
) -> dict[str, Any]:
    """Returns the config fields for ropes of full and sliding layers. In that order, `thetas` are
    the default wavelengths and `sizes` the sizes of the heads. `rope_scaling` concerns the full
    layers."""
    kinds = "full_attention", "sliding_attention"
    both = c.section("rope_parameters") or Fields({}, f"{c.where}: rope_parameters")
    say_unknown(both.where, both.data, kinds)
    ropes = []
    for kind, theta, size in zip(kinds, thetas, sizes):
        own = both.section(kind) or Fields({}, f"{both.where}: {kind}")
        scaling = c.section("rope_scaling") if kind == kinds[0] else None
        more = {} if scaling is None else scaling.data
        said = own.having({"rope_theta": theta, **own.data, **more})
        top = both if "truncate" in both.data else None  # transformers looks for it there
        ropes.append(_rope(c, said, size, None, False, {}, (), top))
    if sizes[0] != sizes[1]:
        ropes = [replace(rope, rotary=rope.rotary or size) for rope, size in zip(ropes, sizes)]
    layer_rope = tuple(1 if w else 0 for w in windows)
    return {"ropes": tuple(ropes), "layer_rope": layer_rope, "windows": windows}


def turned_layers(c: Fields, layers: int) -> tuple[int | None, ...]:
    """Returns for each layer 0, or None where `no_rope_layers` is 0: by default in each fourth."""
    every = c.integer("no_rope_layer_interval", 1, MAX_LAYERS, 4)
    turned = c.integers("no_rope_layers", 0, 1) or [(i + 1) % every for i in range(layers)]
    if len(turned) < layers:
        raise ModelError(f"{c.where}: no_rope_layers has {len(turned)} entries for {layers}")
    return tuple(0 if turned[i] else None for i in range(layers))


def _rope(
    c: Fields, said: Fields, head_dim: int, outer: int | None, partial: bool,
    renamed: Mapping[str, str], more: tuple[str, ...], top: Fields | None = None,
) -> Rope:  # fmt: skip
    kind = said.text("rope_type", None) or said.text("type", None) or "default"
    kind = renamed.get(kind, kind)
    if kind not in ROPES:
        known = ", ".join(ROPES)
        raise ModelError(
            f"{said.where}: rope type {kind[:40]!r} is not supported; supported: {known}"
        )
    make, keys = ROPES[kind]
    others = {k: v for k, v in said.data.items() if k not in (*_ANY, *keys, *more)}
    say_unknown(said.where, {said.name(k): v for k, v in others.items()})
    if kind == "proportional":
        return _proportional(said, head_dim)
    if not partial:
        refuse(said, "partial_rotary_factor", 1.0, "partial rotary embedding")
    size = int(head_dim * said.number("partial_rotary_factor", 0.0, 1.0, 1.0))
    if size < 2 or size % 2:
        raise ModelError(f"{said.where}: partial_rotary_factor turns {size} of {head_dim} elements")
    longest = c.integer("max_position_embeddings", 1, MAX_POSITIONS, 2048)
    original = outer or said.integer(_ORIGINAL, 1, MAX_POSITIONS, longest)
    if top is not None:
        said = said.over({"truncate": top.data["truncate"]})
    theta = said.number("rope_theta", 1.0, 1e12, 1e4)
    made = replace(make(said, theta, longest, original), rotary=0 if size == head_dim else size)
    return checked_divisors(said.where, made, size // 2)


def _proportional(said: Fields, head_dim: int) -> Rope:
    """Returns a rope whose slower pairs do not turn."""
    share = said.number("partial_rotary_factor", 0.0, 1.0, 1.0)
    turning = int(share * head_dim // 2)
    factor = said.number("factor", 1e-6, 1e6, 1.0)
    still = (math.inf,) * (head_dim // 2 - turning)
    theta = said.number("rope_theta", 1.0, 1e12, 1e4)
    return Rope(theta, divisors=(*(factor,) * turning, *still))


def _linear(said: Fields, theta: float, longest: int, original: int) -> Rope:
    return Rope(theta, "linear", said.number("factor", 1.0, 1e6))


def _llama3(said: Fields, theta: float, longest: int, original: int) -> Rope:
    factor = said.number("factor", 1.0, 1e6)
    low = said.number("low_freq_factor", 1e-3, 1e6)
    high = said.number("high_freq_factor", 1e-3, 1e6)
    if high <= low:
        raise ModelError(f"{said.where}: high_freq_factor {high} must exceed low_freq_factor {low}")
    return Rope(theta, "llama3", factor, low, high, original)


def _yarn(said: Fields, theta: float, longest: int, original: int) -> Rope:
    """Reads YaRN (Peng et al., arXiv:2309.00071); its magnitude may be computed for another depth
    (DeepSeek's mscale)."""
    if theta <= 1:
        raise ModelError(
            f"{said.where}: YaRN needs a {said.name('rope_theta')} above 1, got {theta:g}"
        )
    factor = said.number("factor", 1.0, 1e6, None) or max(1.0, longest / original)
    fast = said.number("beta_fast", 0.0, 1e6, None) or 32.0
    slow = said.number("beta_slow", 0.0, 1e6, None) or 1.0
    depths = [said.number(name, 0.0, 1e3, 0.0) for name in ("mscale", "mscale_all_dim")]
    over, under = (0.1 * d * math.log(factor) + 1 for d in (depths if all(depths) else (1.0, 0.0)))
    magnitude = said.number("attention_factor", 1e-6, 1e6, None) or over / under
    truncate = said.flag("truncate", True)
    return Rope(theta, "yarn", factor, slow, fast, original, magnitude, truncate=truncate)


def _longrope(said: Fields, theta: float, longest: int, original: int) -> Rope:
    """Reads LongRoPE (Ding et al., arXiv:2402.13753): a divisor per pair, with one list for
    contexts up to the original and one beyond."""
    factor = said.number("factor", 1e-3, 1e6, longest / original)
    usual = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 < original else 1.0
    magnitude = said.number("attention_factor", 1e-6, 1e6, None) or usual
    short, long = (said.numbers(f"{k}_factor", 1e-3, 1e6) for k in ("short", "long"))
    return Rope(
        theta, "longrope", factor, original=original, magnitude=magnitude, divisors=short,
        long_divisors=long,
    )  # fmt: skip


_YARN = ("factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "attention_factor")
Maker = Callable[[Fields, float, int, int], Rope]  # (rope fields, theta, longest, original)
ROPES: Mapping[str, tuple[Maker, tuple[str, ...]]] = {  # with the keys that each reads
    "default": (lambda said, theta, longest, original: Rope(theta), ()),
    "linear": (_linear, ("factor",)),
    "llama3": (_llama3, ("factor", "low_freq_factor", "high_freq_factor")),
    "yarn": (_yarn, (*_YARN, "truncate")),
    "longrope": (_longrope, ("factor", "attention_factor", "short_factor", "long_factor")),
    "proportional": (lambda said, theta, longest, original: Rope(theta), ("factor",)),
}


def checked_divisors(where: str, rope: Rope, pairs: int) -> Rope:
    """Returns the rope. Raises ModelError unless it has one divisor per turning pair."""
    for given in (rope.divisors, rope.long_divisors):
        if (given or rope.scaling == "longrope") and len(given) != pairs:
            raise ModelError(f"{where}: the rope has {len(given)} factors; expected {pairs}")
    return rope
