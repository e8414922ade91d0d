"""Encoders to measure and compare, with random weights: ViT-B/16 (Dosovitskiy et al. 2020) and
BERT-base (Devlin et al. 2018). Written over a namespace of modules and of functions, so that the
same source builds weft's net and, given torch.nn and torch.nn.functional, its twin."""

from __future__ import annotations

from typing import Any, NamedTuple


class EncoderSizes(NamedTuple):
    """Layers, width and heads; pixels and pixels per patch of an image's side, or words that there
    are and tokens of a text."""

    layers: int = 12
    width: int = 768
    heads: int = 12
    places: int = 224
    kinds: int = 16


VIT, BERT = EncoderSizes(), EncoderSizes(places=128, kinds=30522)


def _block(nn: Any, attend: Any, size: EncoderSizes, first: bool) -> Any:
    """A layer of an encoder, whose norms stand `first` in each branch, or after the sum."""
    width, heads = size.width, size.heads

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
            self.a, self.b = nn.LayerNorm(width), nn.LayerNorm(width)
            self.wide = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU())
            self.narrow = nn.Linear(4 * width, width)

        def mixed(self, x: Any) -> Any:
            n, t, _ = x.shape
            q, k, v = (
                f(x).reshape(n, t, heads, width // heads).transpose(1, 2)
                for f in (self.q, self.k, self.v)
            )
            return self.o(attend(q, k, v).transpose(1, 2).reshape(n, t, width))

        def forward(self, x: Any) -> Any:
            if first:
                x = x + self.mixed(self.a(x))
                return x + self.narrow(self.wide(self.b(x)))
            x = self.a(x + self.mixed(x))
            return self.b(x + self.narrow(self.wide(x)))

    return Block()


def vit(nn: Any, functional: Any, cat: Any, size: EncoderSizes = VIT) -> Any:
    """x[N, 3, S, S] to logits [N, 1000]."""
    attend = functional.scaled_dot_product_attention

    class Vit(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            count = (size.places // size.kinds) ** 2
            self.patches = nn.Conv2d(3, size.width, size.kinds, size.kinds)
            self.extra = nn.Embedding(count + 2, size.width)  # positions, and the class token
            blocks = [_block(nn, attend, size, True) for _ in range(size.layers)]
            self.blocks = nn.Sequential(*blocks, nn.LayerNorm(size.width))
            self.head = nn.Linear(size.width, 1000)

        def forward(self, x: Any) -> Any:
            x = self.patches(x).flatten(2).transpose(1, 2)
            known = self.extra.weight
            x = cat([known[:1].reshape(1, 1, -1).expand(x.shape[0], 1, size.width), x], 1)
            return self.head(self.blocks(x + known[1:])[:, 0])

    return Vit().eval()


def bert(nn: Any, functional: Any, size: EncoderSizes = BERT) -> Any:
    """ids[N, T] to the states [N, T, width] and the first token's, pooled [N, width]."""
    attend = functional.scaled_dot_product_attention

    class Bert(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(size.kinds, size.width)
            self.places = nn.Embedding(size.places, size.width)
            self.norm = nn.LayerNorm(size.width)
            self.blocks = nn.Sequential(
                *[_block(nn, attend, size, False) for _ in range(size.layers)]
            )
            self.pool = nn.Sequential(nn.Linear(size.width, size.width), nn.Tanh())

        def forward(self, ids: Any) -> Any:
            x = self.words(ids) + self.places.weight[: ids.shape[1]]
            x = self.blocks(self.norm(x))
            return x, self.pool(x[:, 0])

    return Bert().eval()
