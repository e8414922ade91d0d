"""Small models of PyTorch, with random weights, and inputs of theirs: what `from_torch` is held to.

Each builder returns (module in eval mode, args, kwargs, dynamic shapes or None).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.export import Dim
from torch.nn import functional as F

Built = tuple[nn.Module, tuple[Any, ...], dict[str, Any], Any]


class Block(nn.Module):
    def __init__(self, i: int, o: int, stride: int):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(i, o, 3, stride, 1, bias=False), nn.BatchNorm2d(o)
        self.conv2, self.bn2 = nn.Conv2d(o, o, 3, 1, 1, bias=False), nn.BatchNorm2d(o)
        self.relu = nn.ReLU(inplace=True)
        self.down = None
        if stride != 1 or i != o:
            self.down = nn.Sequential(nn.Conv2d(i, o, 1, stride, bias=False), nn.BatchNorm2d(o))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += x if self.down is None else self.down(x)
        return self.relu(out)


class ResNet(nn.Module):
    """Basic blocks, as torchvision's resnet18 has them, with its in-place ReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8)
        self.relu, self.pool = nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        self.layers = nn.Sequential(Block(8, 8, 1), Block(8, 16, 2), Block(16, 24, 2))
        self.average, self.fc = nn.AdaptiveAvgPool2d((1, 1)), nn.Linear(24, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layers(self.pool(self.relu(self.bn1(self.conv1(x)))))
        return self.fc(torch.flatten(self.average(x), 1))


def _running(model: nn.Module) -> nn.Module:
    """Running statistics that are not 0 and 1."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean, 0, 0.1)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
    return model


def resnet() -> Built:
    x = torch.randn(2, 3, 64, 64)
    return _running(ResNet()).eval(), (x,), {}, {"x": {0: Dim("batch", min=1, max=16)}}


class Attention(nn.Module):
    """Of an image's places to a text's, as in latent diffusion."""

    def __init__(self, c: int, context: int, heads: int):
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(c)
        self.q, self.k = nn.Linear(c, c, bias=False), nn.Linear(context, c, bias=False)
        self.v, self.out = nn.Linear(context, c, bias=False), nn.Linear(c, c)

    def forward(self, x: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        b, c, h, w = x.shape
        flat = x.flatten(2).transpose(1, 2)
        heads = lambda t: t.view(b, -1, self.heads, c // self.heads).transpose(1, 2)  # noqa: E731
        q, k, v = heads(self.q(self.norm(flat))), heads(self.k(context)), heads(self.v(context))
        found = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, h * w, c)
        return (flat + self.out(found)).transpose(1, 2).reshape(b, c, h, w)


class Res(nn.Module):
    def __init__(self, i: int, o: int, t: int):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(4, i), nn.Conv2d(i, o, 3, padding=1)
        self.time, self.norm2 = nn.Linear(t, o), nn.GroupNorm(4, o)
        self.conv2 = nn.Conv2d(o, o, 3, padding=1)
        self.skip = nn.Conv2d(i, o, 1) if i != o else nn.Identity()

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        h = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(t))[:, :, None, None]
        return self.skip(x) + self.conv2(F.silu(self.norm2(h)))


class UNet(nn.Module):
    """One level down and up with cross attention and a sinusoidal embedding of the time."""

    def __init__(self, c: int = 16, context: int = 12):
        super().__init__()
        self.c, t = c, 4 * c
        self.time = nn.Sequential(nn.Linear(c, t), nn.SiLU(), nn.Linear(t, t))
        self.head, self.res1 = nn.Conv2d(4, c, 3, padding=1), Res(c, c, t)
        self.down, self.res2 = nn.Conv2d(c, 2 * c, 3, 2, 1), Res(2 * c, 2 * c, t)
        self.attention, self.up = Attention(2 * c, context, 4), nn.Conv2d(2 * c, c, 3, padding=1)
        self.res3, self.norm = Res(2 * c, c, t), nn.GroupNorm(4, c)
        self.out = nn.Conv2d(c, 4, 3, padding=1)

    def forward(self, x: torch.Tensor, time: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        half = self.c // 2
        rates = torch.exp(-4.0 * torch.arange(half, dtype=torch.float32) / half)
        angles = time.float()[:, None] * rates[None]
        t = self.time(torch.cat([angles.sin(), angles.cos()], dim=-1))
        first = self.res1(self.head(x), t)
        deep = self.attention(self.res2(self.down(first), t), context)
        deep = self.up(F.interpolate(deep, scale_factor=2.0, mode="nearest"))
        return self.out(F.silu(self.norm(self.res3(torch.cat([deep, first], dim=1), t))))


def unet() -> Built:
    args = (torch.randn(2, 4, 16, 16), torch.tensor([3, 500]), torch.randn(2, 5, 12))
    return UNet().eval(), args, {}, None


class Conv(nn.Module):
    def __init__(self, i: int, o: int, k: int = 1, s: int = 1):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(i, o, k, s, k // 2, bias=False), nn.BatchNorm2d(o)
        self.act = nn.SiLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.bn(self.conv(x)))


class C2f(nn.Module):
    def __init__(self, i: int, o: int):
        super().__init__()
        self.cv1, self.cv2 = Conv(i, o), Conv(3 * o // 2, o)
        self.m = nn.Sequential(Conv(o // 2, o // 2, 3), Conv(o // 2, o // 2, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b = self.cv1(x).chunk(2, 1)
        return self.cv2(torch.cat([a, b, b + self.m(b)], 1))


class Yolo(nn.Module):
    """C2f, SPPF, a head whose boxes are expectations (DFL) and anchors made in the graph."""

    def __init__(self, classes: int = 3, bins: int = 4):
        super().__init__()
        self.classes, self.bins = classes, bins
        self.stem, self.c2f = nn.Sequential(Conv(3, 8, 3, 2), Conv(8, 16, 3, 2)), C2f(16, 16)
        self.down, self.pre, self.post = Conv(16, 32, 3, 2), Conv(32, 16), Conv(64, 32)
        self.mix, self.out = (
            C2f(48, 16),
            nn.ModuleList(nn.Conv2d(c, 4 * bins + classes, 1) for c in (16, 32)),
        )
        self.register_buffer("steps", torch.arange(bins, dtype=torch.float32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        small = self.c2f(self.stem(x))
        y = self.pre(self.down(small))
        pools = [y]
        for _ in range(3):
            pools.append(F.max_pool2d(pools[-1], 5, 1, 2))
        deep = self.post(torch.cat(pools, 1))
        near = self.mix(torch.cat([F.interpolate(deep, scale_factor=2), small], 1))
        found, anchors, strides = [], [], []
        for level, (head, stride) in enumerate(zip(self.out, (4, 8))):
            t = head((near, deep)[level])
            b, c, h, w = t.shape
            found.append(t.view(b, c, h * w))
            ys, xs = torch.meshgrid(torch.arange(h) + 0.5, torch.arange(w) + 0.5, indexing="ij")
            anchors.append(torch.stack([xs, ys]).view(2, -1))
            strides.append(torch.full((1, h * w), float(stride)))
        box, scores = torch.cat(found, 2).split([4 * self.bins, self.classes], 1)
        anchor, stride = torch.cat(anchors, 1), torch.cat(strides, 1)
        b, _, n = box.shape
        box = box.view(b, 4, self.bins, n).softmax(2)
        low, high = (box * self.steps.view(1, 1, -1, 1)).sum(2).chunk(2, 1)
        low, high = anchor - low, anchor + high
        boxes = torch.cat([(low + high) / 2, high - low], 1) * stride
        return torch.cat([boxes, scores.sigmoid()], 1)


def yolo() -> Built:
    return _running(Yolo()).eval(), (torch.randn(2, 3, 64, 64),), {}, None


# -- transformers, from their configs


TINY: dict[str, Any] = dict(  # noqa: C408
    hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4
)
DECODER = {**TINY, "num_key_value_heads": 2, "vocab_size": 96, "max_position_embeddings": 64}


def _ids(vocab: int, *shape: int) -> torch.Tensor:
    return torch.randint(3, vocab, shape, generator=torch.Generator().manual_seed(1))


def vit() -> Built:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(**TINY, image_size=32, patch_size=8, num_labels=7)
    x = torch.randn(2, 3, 32, 32)
    shapes = {"pixel_values": {0: Dim("batch", max=16)}}
    return ViTForImageClassification(config).eval(), (), {"pixel_values": x}, shapes


def bert() -> Built:
    from transformers import BertConfig, BertModel

    config = BertConfig(**TINY, vocab_size=96, max_position_embeddings=64)
    ids = _ids(96, 2, 12)
    mask = torch.ones_like(ids)
    mask[1, 8:] = 0
    axes = {0: Dim.AUTO, 1: Dim.AUTO}
    kwargs = {"input_ids": ids, "attention_mask": mask}
    return BertModel(config).eval(), (), kwargs, {"input_ids": axes, "attention_mask": axes}


def gpt2() -> Built:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_embd=32, n_layer=2, n_head=4, vocab_size=96, n_positions=64, use_cache=False
    )
    return GPT2LMHeadModel(config).eval(), (_ids(96, 2, 12),), {}, None


def _decoder(model: Any, config: Any) -> Built:
    ids = _ids(96, 2, 12)
    axes = {0: Dim.AUTO, 1: Dim.AUTO}
    kwargs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    built = model(config).eval()
    return built, (), kwargs, {"input_ids": axes, "attention_mask": axes}


def llama() -> Built:
    from transformers import LlamaConfig, LlamaForCausalLM

    return _decoder(LlamaForCausalLM, LlamaConfig(**DECODER, use_cache=False))


def qwen2() -> Built:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(**DECODER, use_cache=False, tie_word_embeddings=True)
    return _decoder(Qwen2ForCausalLM, config)


def qwen3() -> Built:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    return _decoder(Qwen3ForCausalLM, Qwen3Config(**DECODER, head_dim=8, use_cache=False))


def whisper() -> Built:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        vocab_size=96, num_mel_bins=8, d_model=32, encoder_layers=2, decoder_layers=2,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=64,
        decoder_ffn_dim=64, max_source_positions=16, max_target_positions=32, use_cache=False,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip
    kwargs = {"input_features": torch.randn(2, 8, 32), "decoder_input_ids": _ids(96, 2, 6)}
    shapes = {"input_features": None, "decoder_input_ids": {1: Dim.AUTO}}
    return WhisperForConditionalGeneration(config).eval(), (), kwargs, shapes


def clip() -> Built:
    from transformers import CLIPConfig, CLIPModel

    text = {**TINY, "vocab_size": 96, "max_position_embeddings": 16, "projection_dim": 24}
    text |= {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    vision = {**TINY, "image_size": 32, "patch_size": 8, "projection_dim": 24}
    config = CLIPConfig(text_config=text, vision_config=vision, projection_dim=24)
    ids = _ids(96, 2, 8)
    ids[:, -1] = 2
    kwargs = {
        "input_ids": ids, "pixel_values": torch.randn(2, 3, 32, 32),
        "attention_mask": torch.ones_like(ids),
    }  # fmt: skip
    return CLIPModel(config).eval(), (), kwargs, None


MODELS: dict[str, Callable[[], Built]] = {
    f.__name__: f for f in (resnet, unet, yolo, vit, bert, gpt2, llama, qwen2, qwen3, whisper, clip)
}


def exported(name: str, seed: int = 0) -> tuple[torch.export.ExportedProgram, Built]:
    """The model's exported program, and what it was built of."""
    torch.manual_seed(seed)
    built = MODELS[name]()
    module, args, kwargs, shapes = built
    return torch.export.export(module, args, kwargs, dynamic_shapes=shapes), built
