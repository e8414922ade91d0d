"""The names of a Fast Conformer's weights in a Hugging Face checkpoint, and their shapes."""

from __future__ import annotations

from weft.models.arch.config import Layout
from weft.models.arch.conformer_config import ConformerConfig
from weft.models.weights.layout_builder import LayoutBuilder
from weft.models.weights.tensor_names import INERT

_COUNT = {r"\.num_batches_tracked$": "a count of the training"}


def conformer_layout(c: ConformerConfig) -> Layout:
    """Returns names and shapes of the weights."""
    b, sub = LayoutBuilder(), "encoder.subsampling."
    number = 0
    for i in range(c.halvings):
        shape = (c.channels, 1, c.reach, c.reach)
        b.both("conv", f"sub.{i}", f"{sub}layers.{number}", *shape)
        if i:
            b.both("conv", f"mix.{i}", f"{sub}layers.{number + 1}", c.channels, c.channels, 1, 1)
        number += 3 if i else 2
    wide = c.channels * (c.mels >> c.halvings)
    b.both("matrix", "sub.linear", f"{sub}linear", c.hidden, wide)
    for i in range(c.layers):
        _layer(c, b, i)
    b.both("conv", "ctc", "ctc_head", c.vocab, c.hidden, 1)
    return Layout(b.weights, {}, ("",), "ctc_head.weight", INERT | _COUNT, "")


def _layer(c: ConformerConfig, b: LayoutBuilder, i: int) -> None:
    at = f"encoder.layers.{i}."
    for role, name in (("first", "feed_forward1"), ("second", "feed_forward2")):
        b.both("norm", f"{i}.{role}.norm", f"{at}norm_{name}", c.hidden)
        b.both("matrix", f"{i}.{role}.up", f"{at}{name}.linear1", c.ffn, c.hidden, biased=c.biased)
        b.both("matrix", f"{i}.{role}.down", f"{at}{name}.linear2", c.hidden, c.ffn,
               biased=c.biased)  # fmt: skip
    for role in "qkvo":
        name = f"{at}self_attn.{role}_proj"
        b.both("matrix", f"{i}.{role}", name, c.hidden, c.hidden, biased=c.biased)
    b.both("matrix", f"{i}.far", f"{at}self_attn.relative_k_proj", c.hidden, c.hidden, biased=False)
    for which in "uv":
        b.add("bias", f"{i}.lean.{which}", f"{at}self_attn.bias_{which}", c.heads, c.head_dim)
    conv = f"{at}conv."
    shapes = {
        "in": ("pointwise_conv1", 2 * c.hidden, c.hidden, 1),
        "taps": ("depthwise_conv", c.hidden, 1, c.kernel),
        "out": ("pointwise_conv2", c.hidden, c.hidden, 1),
    }
    for role, (name, *shape) in shapes.items():
        b.both("conv", f"{i}.{role}", conv + name, *shape, biased=c.conv_biased)
    b.both("norm", f"{i}.batch", f"{conv}norm", c.hidden)
    for role in ("mean", "var"):
        b.add("norm", f"{i}.batch.{role}", f"{conv}norm.running_{role}", c.hidden)
    for role, name in (("attn_norm", "norm_self_att"), ("conv_norm", "norm_conv"),
                       ("last", "norm_out")):  # fmt: skip
        b.both("norm", f"{i}.{role}", at + name, c.hidden)
