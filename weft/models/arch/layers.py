"""The parts of layers: projections, norms, activations; and the data that layers of a pass
share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from weft import ops
from weft.core.dtypes import DType, float32
from weft.core.records import dataclass
from weft.models.arch.config import Activation, DecoderConfig
from weft.models.arch.hooks import TrainingHooks
from weft.models.arch.matrices import Matrices
from weft.models.arch.places import place_of
from weft.ops.quantize import quantize, rescale, run_of
from weft.ops.tape import Tracked, plain, pull_through, remember

Value = Any  # np.ndarray, graph Node or Tracked
Weights = Mapping[str, Value]
KeysValues = tuple[Value, Value | None]  # None: the keys are the values too


class Past(Protocol):
    """A layer's view of the tokens before each row: caches in serving, rows in training."""

    def attend(self, i: int, q: Value, kv: KeysValues | None, sinks: Value | None = None) -> Value:
        """Returns attention of layer i, [N, H, D], for q[N, H, D], keys and values[N, G, D] (None:
        those of an earlier layer), and optional sinks[H]."""
        ...

    def recent(self, i: int, z: Value, count: int) -> list[Value]:
        """Returns layer i's z[N, C] for each row and the count - 1 rows before it in its sequence,
        oldest first: float32 [N, C] each, 0 before the sequence began."""
        ...

    def recur(self, i: int, *values: Value, **params: Any) -> Value:
        """Returns what rows read of layer i's memory by a `recurrence` (see weft.ops), [N, H, V].
        Values are q and k [N, G, K], v [N, H, V], decay [N, H], [N, H, K] or [N, H, K, V], and a
        rate [N, H] for the delta rule. The memory is zeros where a sequence begins. Its size in
        serving is that of `DecoderConfig.kept`."""
        ...


@dataclass(frozen=True)
class AdapterRows:
    """The adapters that rows use, [N], or [1] for all rows. `numbers` is int32, for products of
    chosen matrices (with `first_rows`). `some` is bool: False means no adapter, and the number is
    arbitrary."""

    numbers: Value
    some: Value


@dataclass(frozen=True)
class Pass:
    """The data that the layers of one pass share. Per row: `tables` has the tables at their
    positions (`inputs.tables`, float32 [N, ...]), `past` the earlier tokens. `real` is False for
    padding (bool [N]; None: no padding); `chosen` has the adapters (None: none)."""

    c: DecoderConfig
    w: Weights
    tables: Mapping[str, Value]
    past: Past
    training: TrainingHooks
    real: Value | None = None
    inputs: Value = None  # per-layer inputs of the tokens, side by side
    # With divided columns: gathers those of all ranks.
    gather: Callable[[Value], Value] | None = None
    chosen: AdapterRows | None = None

    def project(self, role: str, x: Value) -> Value:
        """Applies the linear layer `role`. If machines divide the columns of matrices, output
        projections take the gathered results of all ranks, and their own results are gathered."""
        x = self.at(f"{role}.in", x)
        if self.gather is None or not role.endswith((".o", ".down")):
            return self.at(f"{role}.out", self._project(role, x))
        return self.gather(self._project(role, self.gather(x)))

    def at(self, part: str, x: Value) -> Value:
        """Shows a value of the model's `part` ("3.attn.out") to the hook, and returns the value to
        go on with."""
        return self.training.place(place_of(part), x)

    def _project(self, role: str, x: Value) -> Value:
        """Applies a linear layer, with its low-rank adapter if the weights hold one: x . w + b +
        scale (x A^T) B^T, A [r, K], B [M, r] (Hu et al., arXiv:2106.09685). If rows choose
        adapters, adds those."""
        c, w = self.c, self.w
        bias = w.get(f"{role}.b")
        k_first = c.transposed and bias is not None  # GPT-2's layers, which all have a bias
        out = product(c, w, f"{role}.w", rounded(c, f"{role}.w", x), bias, k_first)
        if f"{role}.lora_a" in w:
            low = (self.training.adapter_drop or keep)(x)
            low = linear(c.act_dtype, low, w[f"{role}.lora_a"])
            low = linear(c.act_dtype, low, w[f"{role}.lora_b"])
            if f"{role}.lora_m" in w:
                out = _by_row(out, bias, w[f"{role}.lora_m"])
            out = ops.add(out, ops.mul(low, c.adapter_scale))
        if self.chosen is None or f"{role}.loras_a" not in w:
            return out
        return self._adapted(self.chosen, role, x, out)

    def _adapted(self, chosen: AdapterRows, role: str, x: Value, out: Value) -> Value:
        """Adds to out[N, M] the adapters that the rows of x[N, K] chose: out m + (x A^T) B^T + c,
        with m and c where an adapter has DoRA or biases (`adapter_stack.stacked`). Rows without
        one keep their bits, because the sum is discarded there."""
        count = self.c.adapters
        n, one = ops.aval(x).shape[0], ops.aval(chosen.numbers).shape == (1,)
        low = x
        for w in (self.w[f"{role}.loras_a"], self.w[f"{role}.loras_b"]):
            if one:  # an ordinary product of rows, which may skip rows that nothing reads
                depth = ops.aval(w).shape[1]
                w = ops.gather(ops.reshape(w, (count, -1, depth)), chosen.numbers)
                low = linear(float32, low, ops.reshape(w, (-1, depth)))
            else:
                low = picked(float32, w, count, ops.reshape(low, (n, 1, -1)), chosen.numbers)
                low = ops.reshape(low, (n, -1))
        shape, rows = ops.aval(out).shape, self.w
        some, made = ops.broadcast(ops.reshape(chosen.some, (-1, 1)), shape), out
        own = {k: w for k in "mc" if (w := rows.get(f"{role}.loras_{k}")) is not None}
        own = {k: ops.broadcast(ops.gather(w, chosen.numbers), shape) for k, w in own.items()}
        made = ops.add(ops.mul(made, own["m"]) if "m" in own else made, low)
        return ops.where(some, ops.add(made, own["c"]) if "c" in own else made, out)

    def pick(self, role: str, x: Value, chosen: Value) -> Value:
        """Applies `picked` to the weight `role`, one matrix per expert (+ b[E, B])."""
        out = picked(self.c.act_dtype, self.w[f"{role}.w"], self.c.experts, x, chosen)
        bias = self.w.get(f"{role}.b")
        if bias is None:
            return out
        rows = ops.cast(ops.gather(bias, chosen), float32)
        shape = ops.aval(out).shape
        rows = ops.reshape(rows, (*shape[:-2], 1, shape[-1]))
        return ops.add(out, ops.broadcast(rows, shape))

    def rope(self, i: int, x: Value) -> Value:
        """Returns x[N, H, D] rotated by layer i's rope, as far as it turns; unchanged without
        one."""
        at = self.c.rope(i)
        if at is None:
            return x
        table = self.tables[f"rope.{at}.cos"], self.tables[f"rope.{at}.sin"]
        return rotated(x, *table, self.c.rope_pairs)

    def unit(self, x: Value) -> Value:
        """Returns the layer or RMS norm over the last axis, without a weight."""
        size = ops.aval(x).shape[-1]
        ones = ops.const(np.ones(size, np.float32))
        if self.c.norm == "layer":
            return ops.call("layer_norm", x, ones, _zeros(size), eps=self.c.norm_eps)
        return ops.call("rms_norm", x, ones, eps=self.c.norm_eps)

    def norm(self, role: str, x: Value) -> Value:
        """Returns the layer or RMS norm over the last axis."""
        c = self.c
        if not c.norm_weight:
            return self.unit(x)
        w = self.w[f"{role}.w"]
        if c.norm == "rms":
            return ops.call("rms_norm", x, w, eps=c.norm_eps, offset=c.norm_offset)
        if c.norm_offset:
            w = ops.add(ops.cast(w, float32), c.norm_offset)
        b = self.w[f"{role}.b"] if c.norm_bias else _zeros(ops.aval(w).shape[0])
        return ops.call("layer_norm", x, w, b, eps=c.norm_eps)


def _by_row(out: Value, bias: Value | None, factor: Value) -> Value:
    """Returns out[N, M], a product and its bias, with the product's columns times factor[M]."""
    by = _row(factor, out)
    if bias is None:
        return ops.mul(out, by)
    wide = _row(bias, out)
    return ops.add(ops.mul(ops.sub(out, wide), by), wide)


def _zeros(size: int) -> Value:
    return ops.const(np.zeros(size, np.float32))


def embedded(table: Value, ids: Value, scale: float, rounded: bool) -> Value:
    """Returns rows of a table times `scale` (`rounded` to the table's dtype), float32."""
    x = ops.cast(ops.gather(table, ids), float32)
    if scale == 1.0:
        return x
    kind = ops.aval(table).dtype if rounded else float32
    return ops.mul(x, float(np.float32(scale).astype(kind.numpy)))


def normed(x: Value, weight: Value | None, eps: float, groups: int = 1) -> Value:
    """Returns x[N, M] divided by the root mean square of each of `groups` parts of a row, times
    weight[M] if there is one."""
    n, wide = ops.aval(x).shape
    if groups == 1 and weight is not None:
        return ops.call("rms_norm", x, weight, eps=eps)
    ones = ops.const(np.ones(wide // groups, np.float32))
    out = ops.call("rms_norm", ops.reshape(x, (n, groups, -1)), ones, eps=eps)
    out = ops.reshape(out, (n, wide))
    return out if weight is None else ops.mul(out, _row(weight, out))


def scaled(x: Value, by: float) -> Value:
    return x if by == 1.0 else ops.mul(x, by)


def keep(x: Value) -> Value:
    """Returns x: the dropout that drops nothing."""
    return x


def rounded(
    c: DecoderConfig, role: str, x: Value, take: Callable[[Value], Value] = lambda x: x
) -> Value:
    """Returns x[..., K], or the rows that `take` selects. For a packed weight with integer codes
    they are quantised to integers with scales, as `DecoderConfig.planes_of` says."""
    form = dict(c.forms).get(role)
    planes = c.planes_of(form, role) if form and run_of(form, ops.aval(x).shape[-1]) else 0
    return rescale(*map(take, quantize(x, planes))) if planes else take(x)


def product(
    c: DecoderConfig, w: Weights, role: str, x: Value, b: Value | None = None, k_first: bool = False
) -> Value:
    """Applies `linear` with the weight `role`. If it is packed, the backward pass dequantises it
    again, instead of keeping it from the forward pass."""

    if not (isinstance(x, Tracked) and isinstance(w, Matrices) and role in w.forms):
        return linear(c.act_dtype, x, w[role], b, k_first)

    def by(x: Value, after: Value) -> Value:
        return linear(c.act_dtype, x, w.after(role, after), b, k_first)

    def rule(grad: Value, _: Value, xs: tuple[Value, ...]) -> Sequence[Any]:
        return pull_through(lambda x: by(x, plain(grad)), grad, xs)

    return remember("linear", by(plain(x), plain(x)), (x,), rule)


def rotated(x: Value, cos: Value, sin: Value, pairs: bool) -> Value:
    """Returns x[N, H, D] of which the first R elements are rotated by cos and sin [N, R / 2]: the
    two halves of them, or with `pairs` adjacent elements."""
    n, heads, depth = ops.aval(x).shape
    size = 2 * ops.aval(cos).shape[1]
    turned = x if size == depth else ops.slice_(x, (0, 0, 0), (n, heads, size))
    if pairs:
        # Keys and queries may stay in the order of halves: it changes no q . k.
        turned = ops.reshape(turned, (n, heads, size // 2, 2))
        turned = ops.reshape(ops.transpose(turned, (0, 1, 3, 2)), (n, heads, size))
    turned = ops.call("rope", turned, cos, sin)
    if size == depth:
        return turned
    return ops.concat([turned, ops.slice_(x, (0, 0, size), (n, heads, depth))], 2)


def linear(
    act_dtype: DType, x: Value, w: Value, b: Value | None = None, k_first: bool = False
) -> Value:
    """Returns x[N, K] . w -> float32 [N, M] (+ b[M]); w is [M, K], or [K, M] with `k_first`.

    Weights stay in their own dtype in memory. If that is `act_dtype`, inputs are rounded to it;
    otherwise both sides are float32 in registers.
    """
    wide = _wide(act_dtype, w)
    matrix = w if k_first else ops.transpose(w)
    out = ops.dot(ops.cast(x, wide), ops.cast(matrix, wide), float32)
    return out if b is None else ops.add(out, _row(b, out))


def picked(act_dtype: DType, w: Value, count: int, x: Value, chosen: Value) -> Value:
    """Returns x[..., M, A] times the chosen[...] of `count` matrices w[E, B, A]: float32 [..., M,
    B]. The matrices may be stacked, [E * B, A], as packed ones are."""
    w = ops.reshape(w, (count, -1, ops.aval(w).shape[-1]))
    wide = _wide(act_dtype, w)
    lead = len(ops.aval(chosen).shape)
    matrix = ops.transpose(ops.gather(w, chosen), (*range(lead), lead + 1, lead))
    return ops.dot(ops.cast(x, wide), ops.cast(matrix, wide), float32)


def _wide(act_dtype: DType, w: Value) -> DType:
    """Returns the dtype of the operands of a product with w."""
    return act_dtype if ops.aval(w).dtype is act_dtype else float32


def _row(v: Value, like: Value) -> Value:
    """Returns a vector repeated for every row of `like`, in its dtype."""
    known = ops.aval(like)
    return ops.broadcast(ops.cast(v, known.dtype), known.shape)


def columns(x: Value, sizes: Sequence[int]) -> list[Value]:
    """Cuts x[N, sum of sizes] along its second axis."""
    rows, out, start = ops.aval(x).shape[0], [], 0
    for size in sizes:
        out.append(ops.slice_(x, (0, start), (rows, start + size)))
        start += size
    return out


def weighted(rows: Sequence[Value], taps: Value) -> Value:
    """Returns the sum of rows [N, C], oldest first, each times its column of taps [C, rows]."""
    shape = ops.aval(rows[0]).shape
    out = None
    for k, row in enumerate(rows):
        tap = ops.reshape(ops.slice_(taps, (0, k), (shape[1], k + 1)), (shape[1],))
        part = ops.mul(row, ops.broadcast(tap, shape))
        out = part if out is None else ops.add(out, part)
    return out


def by_head(x: Value, heads: int, sizes: Sequence[int]) -> list[Value]:
    """Splits x[N, heads * sum of sizes], with each head's parts adjacent, into parts [N, heads,
    size]."""
    n, whole = ops.aval(x).shape[0], ops.reshape(x, (-1, heads, sum(sizes)))
    ends = np.cumsum([0, *sizes]).tolist()
    return [ops.slice_(whole, (0, 0, a), (n, heads, b)) for a, b in pairwise(ends)]


def activate(act: Activation, x: Value) -> Value:
    """Applies the activation function to each element."""
    if act == "silu":
        return ops.call("silu", x)
    if act.startswith("relu"):
        x = ops.call("relu", x)
        return ops.mul(x, x) if act == "relu2" else x
    return ops.call("gelu", x, approximate="tanh" if act == "gelu_tanh" else "none")


def gated(c: DecoderConfig, gate: Value, up: Value) -> Value:
    """Returns act(gate) * up (Shazeer, arXiv:2002.05202). With a limit it is gpt-oss's form, with
    swish and up + 1."""
    if not c.gate_limit:
        return ops.mul(activate(c.act, gate), up)
    gate = ops.minimum(gate, c.gate_limit)
    up = ops.maximum(ops.minimum(up, c.gate_limit), -c.gate_limit)
    return ops.mul(ops.swish(gate, c.gate_slope), ops.add(up, 1.0))
