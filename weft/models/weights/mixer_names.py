"""The names and shapes of the weights of mixers, in the roles of `names`."""

from __future__ import annotations

from weft.models.arch.config import DecoderConfig, Kind
from weft.models.weights.layout_builder import LayoutBuilder

# Role -> (kind, shape, True with a bias).
Projections = dict[str, tuple[Kind, tuple[int, ...], bool]]


def _attention(c: DecoderConfig, i: int) -> Projections:
    layer = c.layer(i)
    blocks = blocks_of(c, i)["qkv"]
    q, one = c.heads * layer.head_dim, dict(zip("qkv", blocks))
    sizes = {"qkv": sum(blocks)} if c.fused_qkv else {r: one[r] for r in layer.projects}
    made: Projections = {role: ("matrix", (n, c.hidden), c.qkv_bias) for role, n in sizes.items()}
    if c.output_gate:
        made["q"] = ("matrix", (2 * q, c.hidden), c.qkv_bias)
    return made | {"o": ("matrix", (c.hidden, q), c.out_bias)}


def blocks_of(c: DecoderConfig, i: int) -> dict[str, tuple[int, ...]]:
    """Returns the lengths of the blocks of rows in joined matrices."""
    layer = c.layer(i)
    q, kv = c.heads * layer.head_dim, layer.kv_heads * layer.head_dim
    if c.fused_by_head:
        return {"qkv": (3 * q,)}
    return {"qkv": (q, kv, kv), "gate_up": (layer.ffn, layer.ffn)}


def _conv(c: DecoderConfig, i: int) -> Projections:
    return {
        "conv_in": ("matrix", (3 * c.hidden, c.hidden), c.conv_bias),
        "conv": ("conv", (c.hidden, 1, c.conv_taps), c.conv_bias),
        "conv_out": ("matrix", (c.hidden, c.hidden), c.conv_bias),
    }


def _latent(c: DecoderConfig, i: int) -> Projections:
    d = c.latent
    assert d is not None
    q, kv = c.heads * d.key, c.heads * (d.plain + d.value)
    made: Projections = {"q": ("matrix", (q, c.hidden), False)}
    if d.query_rank:
        made = {
            "q_a": ("matrix", (d.query_rank, c.hidden), c.qkv_bias),
            "q_a_norm": ("norm", (d.query_rank,), False),
            "q_b": ("matrix", (q, d.query_rank), False),
        }
    made["kv_a"] = ("matrix", (d.rank + d.turned, c.hidden), c.qkv_bias)
    made["kv_a_norm"] = ("norm", (d.rank,), False)
    if d.absorbed:
        made["k_b"] = ("matrix", (c.heads * d.rank, d.plain), False)
        made["v_b"] = ("matrix", (c.heads * d.value, d.rank), False)
    else:
        made["kv_b"] = ("matrix", (kv, d.rank), False)
    return made | {"o": ("matrix", (c.hidden, c.heads * d.value), c.out_bias)}


def _delta(c: DecoderConfig, i: int) -> Projections:
    d = c.delta
    assert d is not None
    fused = {"qkvz": d.channels + d.values} if d.fused_qkvz else {"qkv": d.channels, "z": d.values}
    gates = {"ba": 2 * d.value_heads} if d.fused_ba else dict.fromkeys("ba", d.value_heads)
    made: Projections = {}
    made |= {f"delta_{part}": ("matrix", (n, c.hidden), False) for part, n in fused.items()}
    made |= {f"delta_{part}": ("gate", (n, c.hidden), False) for part, n in gates.items()}
    return made | {"delta_out": ("matrix", (c.hidden, d.values), False)}


def delta_vectors(c: DecoderConfig, b: LayoutBuilder, i: int, at: str) -> None:
    d = c.delta
    assert d is not None
    b.add("conv", f"{i}.conv.w", f"{at}conv1d.weight", d.channels, 1, c.conv_taps)
    b.add("decay", f"{i}.decay", f"{at}A_log", d.value_heads)
    b.add("bias", f"{i}.decay_bias", f"{at}dt_bias", d.value_heads)
    b.add("norm", f"{i}.delta_norm.w", f"{at}norm.weight", d.value_dim)


def _space(c: DecoderConfig, i: int) -> Projections:
    """Returns the projections of Mamba and Mamba 2."""
    s = c.space
    assert s is not None
    wide = 2 * s.inner if s.rank else sum(s.projected)
    made: Projections = {"ssm_in": ("matrix", (wide, c.hidden), s.bias)}
    if s.rank:
        made["ssm_x"] = ("matrix", (s.rank + 2 * s.state, s.inner), False)
        made["ssm_dt"] = ("gate", (s.inner, s.rank), False)
    return made | {"ssm_out": ("matrix", (c.hidden, s.inner), s.bias)}


def space_vectors(c: DecoderConfig, b: LayoutBuilder, i: int, at: str) -> None:
    s = c.space
    assert s is not None
    each = s.inner if s.rank else s.heads
    b.both("conv", f"{i}.conv", f"{at}conv1d", s.kept.channels, 1, c.conv_taps, biased=c.conv_bias)
    shape = (s.state, s.inner) if s.rank else (s.heads,)
    b.add("decay", f"{i}.decay", f"{at}A_log", *shape, turned=bool(s.rank))
    b.add("bias", f"{i}.decay_bias", f"{at}dt_proj.bias" if s.rank else f"{at}dt_bias", each)
    b.add("scale", f"{i}.ssm_skip", f"{at}D", each)
    if s.norm:
        b.add("norm", f"{i}.ssm_norm.w", f"{at}norm.weight", s.inner)
    if s.norms == "weighted":
        for role, size in (("dt", s.rank), ("b", s.state), ("c", s.state)):
            b.add("norm", f"{i}.ssm_{role}_norm.w", f"{at}{role}_layernorm.weight", size)


def _none(c: DecoderConfig, i: int) -> Projections:
    return {}


MIXERS = {
    "attention": _attention, "conv": _conv, "delta": _delta, "latent": _latent, "mamba": _space,
    "mamba2": _space, "none": _none,
}  # fmt: skip
