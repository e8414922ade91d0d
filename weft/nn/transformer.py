"""PyTorch's transformer: layers of an encoder and of a decoder, stacks of them, and both as one."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np

from weft.core.errors import UsageError
from weft.nn import init
from weft.nn.attention import MultiheadAttention
from weft.nn.containers import ModuleList
from weft.nn.dropout import Dropout, keep_key
from weft.nn.layers import Linear
from weft.nn.module import Module
from weft.nn.norm import LayerNorm
from weft.tensor import functional as F
from weft.tensor.core import Tensor

Activation = str | Callable[[Tensor], Tensor]
Mask = Tensor | None


def _activation(owner: Module, given: Activation) -> Callable[[Tensor], Tensor]:
    named: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu}
    found = named.get(given) if isinstance(given, str) else given
    if found is None:
        raise UsageError(
            f"{type(owner).__name__}: activation {given!r:.40}; expected relu, gelu or a function"
        )
    return found


class _Layer(Module):
    """The base of both kinds of layers: parts, each with a norm and a sum around it, the last one a
    feed-forward net."""

    _attentions: tuple[str, ...] = ("self_attn",)
    self_attn: MultiheadAttention

    def __init__(
        self, d_model: int, nhead: int, dim_feedforward: int = 2048, dropout: float = 0.1,
        activation: Activation = "relu", layer_norm_eps: float = 1e-5, batch_first: bool = False,
        norm_first: bool = False, bias: bool = True,
    ):  # fmt: skip
        for name in self._attentions:
            part = MultiheadAttention(d_model, nhead, dropout, bias, batch_first=batch_first)
            setattr(self, name, part)
        self.norm_first, self.activation = norm_first, _activation(self, activation)
        self.linear1 = Linear(d_model, dim_feedforward, bias)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias)
        count = len(self._attentions) + 2
        for i in range(1, count):
            setattr(self, f"norm{i}", LayerNorm(d_model, layer_norm_eps, bias=bias))
        for i in range(1, count):
            setattr(self, f"dropout{i}", Dropout(dropout))

    def _around(self, x: Tensor, part: Callable[[Tensor], Tensor], number: int) -> Tensor:
        """x plus a part of the layer, normalised before (norm_first) or after."""
        norm, drop = getattr(self, f"norm{number}"), getattr(self, f"dropout{number}")
        out: Tensor
        if self.norm_first:
            out = x + drop(part(norm(x)))
        else:
            out = norm(x + drop(part(x)))
        return out

    def _feed_forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.linear2(self.dropout(self.activation(self.linear1(x))))
        return made


class TransformerEncoderLayer(_Layer):
    """Self-attention and a feed-forward net, each with a sum and a LayerNorm (Vaswani et al.
    2017), with PyTorch's parameters. x is [T, B, d_model], or [B, T, d_model] with batch_first.
    `norm_first` normalises before each part, not after the sum. Masks are those of
    MultiheadAttention. Raises ShapeError, and UsageError for an unknown activation.

    >>> nn.TransformerEncoderLayer(8, 2, 16)(weft.ones((5, 1, 8))).shape
    (5, 1, 8)
    """

    def forward(
        self, src: Tensor, src_mask: Mask = None, src_key_padding_mask: Mask = None,
        is_causal: bool = False,
    ) -> Tensor:  # fmt: skip
        def attend(x: Tensor) -> Tensor:
            out: Tensor = self.self_attn(
                x, x, x, src_key_padding_mask, attn_mask=src_mask, is_causal=is_causal
            )[0]
            return out

        x = self._around(src, attend, 1)
        return self._around(x, self._feed_forward, 2)


class TransformerDecoderLayer(_Layer):
    """Self-attention, attention to an encoder's results, and a feed-forward net, each with a sum
    and a LayerNorm (Vaswani et al. 2017), with PyTorch's parameters. Shapes and options are those
    of TransformerEncoderLayer; `memory` is the encoder's result, [S, B, d_model].

    >>> x, memory = weft.ones((5, 1, 8)), weft.ones((3, 1, 8))
    >>> nn.TransformerDecoderLayer(8, 2, 16)(x, memory).shape
    (5, 1, 8)
    """

    _attentions = ("self_attn", "multihead_attn")
    multihead_attn: MultiheadAttention

    def forward(
        self, tgt: Tensor, memory: Tensor, tgt_mask: Mask = None, memory_mask: Mask = None,
        tgt_key_padding_mask: Mask = None, memory_key_padding_mask: Mask = None,
        tgt_is_causal: bool = False, memory_is_causal: bool = False,
    ) -> Tensor:  # fmt: skip
        def attend(x: Tensor) -> Tensor:
            out: Tensor = self.self_attn(
                x, x, x, tgt_key_padding_mask, attn_mask=tgt_mask, is_causal=tgt_is_causal
            )[0]
            return out

        def consult(x: Tensor) -> Tensor:
            out: Tensor = self.multihead_attn(
                x, memory, memory, memory_key_padding_mask, attn_mask=memory_mask,
                is_causal=memory_is_causal,
            )[0]  # fmt: skip
            return out

        x = self._around(self._around(tgt, attend, 1), consult, 2)
        return self._around(x, self._feed_forward, 3)


class _Stack(Module):
    """Copies of a layer one after the other, then a norm."""

    def __init__(self, layer: Module, num_layers: int, norm: Module | None):
        if not isinstance(layer, Module):
            kind = type(layer).__name__
            raise UsageError(f"{type(self).__name__}: the layer is {kind}; expected a Module")
        self.layers = ModuleList(copy.deepcopy(layer) for _ in range(num_layers))
        for module in self.layers.modules():
            if "key" in module._buffers:
                keep_key(module)  # copies of one key would drop the same elements in every layer
        self.num_layers, self.norm = num_layers, norm

    def _run(self, x: Tensor, *args: Any, **options: Any) -> Tensor:
        for layer in self.layers:
            x = layer(x, *args, **options)
        return x if self.norm is None else self.norm(x)


class TransformerEncoder(_Stack):
    """`num_layers` copies of a TransformerEncoderLayer, then `norm`. `enable_nested_tensor` and
    `mask_check` change nothing.

    >>> layer = nn.TransformerEncoderLayer(8, 2, 16)
    >>> nn.TransformerEncoder(layer, 2)(weft.ones((5, 1, 8))).shape
    (5, 1, 8)
    """

    def __init__(
        self, encoder_layer: Module, num_layers: int, norm: Module | None = None,
        enable_nested_tensor: bool = True, mask_check: bool = True,
    ):  # fmt: skip
        super().__init__(encoder_layer, num_layers, norm)

    def forward(
        self, src: Tensor, mask: Mask = None, src_key_padding_mask: Mask = None,
        is_causal: bool | None = None,
    ) -> Tensor:  # fmt: skip
        return self._run(src, mask, src_key_padding_mask, is_causal=bool(is_causal))


class TransformerDecoder(_Stack):
    """`num_layers` copies of a TransformerDecoderLayer, then `norm`.

    >>> layer, x = nn.TransformerDecoderLayer(8, 2, 16), weft.ones((5, 1, 8))
    >>> nn.TransformerDecoder(layer, 2)(x, x).shape
    (5, 1, 8)
    """

    def __init__(self, decoder_layer: Module, num_layers: int, norm: Module | None = None):
        super().__init__(decoder_layer, num_layers, norm)

    def forward(
        self, tgt: Tensor, memory: Tensor, tgt_mask: Mask = None, memory_mask: Mask = None,
        tgt_key_padding_mask: Mask = None, memory_key_padding_mask: Mask = None,
        tgt_is_causal: bool | None = None, memory_is_causal: bool = False,
    ) -> Tensor:  # fmt: skip
        masks = (tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask)
        causal = {"tgt_is_causal": bool(tgt_is_causal), "memory_is_causal": memory_is_causal}
        return self._run(tgt, memory, *masks, **causal)


class Transformer(Module):
    """An encoder and a decoder (Vaswani et al. 2017), with PyTorch's parameters: src [S, B, E] and
    tgt [T, B, E] -> [T, B, E]. With batch_first they are [B, S, E] and [B, T, E]. Matrices start as
    `nn.init.xavier_uniform_`. `custom_encoder` and `custom_decoder` replace the stacks. Raises
    ShapeError for sizes that do not fit.

    >>> net = nn.Transformer(8, 2, 1, 1, 16)
    >>> net(weft.ones((5, 1, 8)), weft.ones((3, 1, 8))).shape
    (3, 1, 8)
    """

    def __init__(
        self, d_model: int = 512, nhead: int = 8, num_encoder_layers: int = 6,
        num_decoder_layers: int = 6, dim_feedforward: int = 2048, dropout: float = 0.1,
        activation: Activation = "relu", custom_encoder: Module | None = None,
        custom_decoder: Module | None = None, layer_norm_eps: float = 1e-5,
        batch_first: bool = False, norm_first: bool = False, bias: bool = True,
    ):  # fmt: skip
        layer = (d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first)
        norms = [LayerNorm(d_model, layer_norm_eps, bias=bias) for _ in range(2)]
        self.encoder = custom_encoder or TransformerEncoder(
            TransformerEncoderLayer(*layer, norm_first, bias), num_encoder_layers, norms[0]
        )
        self.decoder = custom_decoder or TransformerDecoder(
            TransformerDecoderLayer(*layer, norm_first, bias), num_decoder_layers, norms[1]
        )
        self.d_model, self.nhead, self.batch_first = d_model, nhead, batch_first
        for p in self.parameters():
            if p.ndim > 1:
                init.xavier_uniform_(p)

    def forward(
        self, src: Tensor, tgt: Tensor, src_mask: Mask = None, tgt_mask: Mask = None,
        memory_mask: Mask = None, src_key_padding_mask: Mask = None,
        tgt_key_padding_mask: Mask = None, memory_key_padding_mask: Mask = None,
        src_is_causal: bool | None = None, tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Tensor:  # fmt: skip
        memory = self.encoder(src, src_mask, src_key_padding_mask, is_causal=src_is_causal)
        masks = (tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask)
        out: Tensor = self.decoder(
            tgt, memory, *masks, tgt_is_causal=tgt_is_causal, memory_is_causal=memory_is_causal
        )
        return out

    @staticmethod
    def generate_square_subsequent_mask(sz: int) -> Tensor:
        """A mask [sz, sz] for causal attention: 0 up to the diagonal, -inf above."""
        return Tensor(np.triu(np.full((sz, sz), -np.inf, np.float32), 1))
