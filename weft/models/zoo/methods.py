"""In the tracing process: replacements of methods of transformers' modules whose code depends on
numbers or on the length of the text. As with `recurrent.NAMES`, a name alone proves nothing: each
is called on a small random module first, and must give what transformers' does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from weft.models.zoo.operators import HOST, Refused, picked_op
from weft.models.zoo.recurrent import CLOSE, recurrence_op, short_conv_op


class Methods(NamedTuple):
    """Replacements of methods of a class by name, and a trial: it makes a module of a class and
    yields results of calls of its methods."""

    methods: Mapping[str, Callable[..., Any]]
    trial: Callable[[Any], Iterator[Any]]


def _random(module: Any, *shapes: tuple[int, ...]) -> Any:
    """Gives a module's parameters random numbers; returns tensors of them."""
    numbers = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.randn(p.shape, generator=numbers) / 2)
    made = [torch.randn(shape, generator=numbers) for shape in shapes]
    return made[0] if len(made) == 1 else made


# -- a shift by one token (RWKV) ------------------------------------------------------------------


def _padded(self: Any, x: Any) -> Any:
    if tuple(self.padding) != (0, 0, 1, -1):
        return torch.nn.functional.pad(x, self.padding)
    one = torch.ones_like(x[0, 0])
    return short_conv_op(x, torch.stack((one, torch.zeros_like(one)), 1))


def _pad_trial(cls: Any) -> Iterator[Any]:
    module = cls((0, 0, 1, -1))
    yield module.forward(_random(module, (2, 5, 6)))


# -- real-gated linear recurrences (De et al., arXiv:2402.19427) ----------------------------------


def _rg_scan(self: Any, hidden_states: Any, recurrent_gate: Any, reset: Any, **more: Any) -> Any:
    decay = (recurrent_gate * ~reset).float()[:, :, None, None]
    rows = hidden_states.float().unsqueeze(2)
    one = torch.ones_like(rows[..., :1])
    return recurrence_op(one, one, rows, decay, None, 1.0).squeeze(2).to(hidden_states.dtype), None


def _rg_block(self: Any, input_states: Any, position_ids: Any, *args: Any, **more: Any) -> Any:
    gate = self.act_fn(self.linear_y(input_states))
    x = short_conv_op(self.linear_x(input_states), self.conv_1d.weight[:, 0]) + self.conv_1d.bias
    return self.linear_out(self.rg_lru(x, position_ids) * gate), None


def _rg_trial(cls: Any) -> Iterator[Any]:
    config = SimpleNamespace(num_attention_heads=2, lru_width=8, hidden_size=8, conv1d_width=4,
                             hidden_activation="gelu")  # fmt: skip
    block = "Block" in cls.__name__
    module = (cls(config, 0) if block else cls(config)).eval()
    x, at = _random(module, (2, 9, 8)), torch.arange(9)[None].expand(2, 9)
    yield module(x, at, None, use_cache=False)[0] if block else module(x, at)


# -- experts that each token picks (Shen et al., arXiv:2404.07413) --------------------------------


def _routed(self: Any, x: Any) -> tuple[Any, Any, Any]:
    logits = self.router.layer(x).float()
    top, chosen = logits.topk(self.router.top_k, dim=-1)
    return logits, torch.softmax(top, dim=-1).type_as(x), chosen


def _each(x: Any, chosen: Any) -> Any:
    return x.unsqueeze(1).expand(-1, chosen.shape[1], -1)


def _jet_experts(self: Any, layer_input: Any) -> Any:
    x = layer_input.reshape(-1, layer_input.shape[-1])
    _, gates, chosen = _routed(self, x)
    a, b = picked_op(_each(x, chosen), self.input_linear.weight, chosen, False).chunk(2, dim=-1)
    out = picked_op(self.activation(a) * b, self.output_linear.weight, chosen, False)
    return (out * gates.unsqueeze(-1)).sum(1).view(layer_input.shape) + self.bias


def _jet_map(self: Any, layer_input: Any) -> Any:
    x = layer_input.reshape(-1, layer_input.shape[-1])
    logits, gates, chosen = _routed(self, x)
    out = picked_op(_each(x, chosen), self.input_linear.weight, chosen, False)
    return out.view(*layer_input.shape[:2], chosen.shape[1], -1), logits, (gates, chosen)


def _jet_reduce(self: Any, layer_input: Any, topo_info: Any) -> Any:
    gates, chosen = topo_info
    rows = layer_input.reshape(-1, *layer_input.shape[2:])
    out = picked_op(rows, self.output_linear.weight, chosen, False)
    return (out * gates.unsqueeze(-1)).sum(1).view(*layer_input.shape[:2], -1) + self.bias


def _jet_trial(cls: Any) -> Iterator[Any]:
    config = SimpleNamespace(hidden_size=8, intermediate_size=6, activation_function="silu",
                             num_local_experts=4, num_experts_per_tok=2, kv_channels=4,
                             num_key_value_heads=2)  # fmt: skip
    module = cls(config)
    x = _random(module, (2, 5, 8))
    if hasattr(module, "map"):
        rows, _, topology = module.map(x)
        yield rows
        yield module.reduce(rows, topology)
    else:
        yield module(x)


# -- adapters of languages (Pfeiffer et al., arXiv:2205.06266) ------------------------------------


def _of_language(language: str) -> Callable[..., Any]:
    """Returns the method for the language of texts that name none."""

    def adapted(self: Any, lang_ids: Any, hidden_states: Any) -> Any:
        residual = hidden_states
        if self.adapter_layer_norm is not None:
            hidden_states = self.adapter_layer_norm(hidden_states)
        elif self.adapter_reuse_layer_norm:
            hidden_states = self.LayerNorm(hidden_states)
        if self.ln_before_adapter:
            residual = hidden_states
        return self.adapter_modules[language](hidden_states) + residual

    return adapted


def _language_trial(language: str) -> Callable[[Any], Iterator[Any]]:
    def trial(cls: Any) -> Iterator[Any]:
        for first in (True, False):
            config = SimpleNamespace(
                hidden_size=8, intermediate_size=6, layer_norm_eps=1e-5, hidden_dropout_prob=0.0,
                ln_before_adapter=first, adapter_layer_norm=first, adapter_reuse_layer_norm=True,
                languages=["another", language], adapter_reduction_factor=2, hidden_act="gelu",
            )  # fmt: skip
            module = cls(config).eval()
            x = _random(module, (2, 5, 8))
            yield module.lang_adapter(torch.ones(2, dtype=torch.int64), x)

    return trial


def _classes(config: Any) -> dict[str, Methods]:
    """Returns the replacements by the names of classes, for a model's config."""
    language = str(getattr(config, "default_language", None))
    return {
        "ZeroPad2d": Methods({"forward": _padded}, _pad_trial),
        "RecurrentGemmaRglru": Methods({"_rnn_scan": _rg_scan}, _rg_trial),
        "RecurrentGemmaRecurrentBlock": Methods({"forward": _rg_block}, _rg_trial),
        "JetMoeMoE": Methods({"forward": _jet_experts}, _jet_trial),
        "JetMoeMoA": Methods({"map": _jet_map, "reduce": _jet_reduce}, _jet_trial),
        "XmodOutput": Methods({"lang_adapter": _of_language(language)}, _language_trial(language)),
    }


@contextmanager
def replaced(model: Any) -> Iterator[None]:
    """Puts our methods in the places of those of a model's classes, meanwhile. Raises Refused for
    one that computes something else."""
    known = _classes(model.config)
    before: list[tuple[Any, str, Any]] = []
    if getattr(model.config, "rescale_every", 0):  # for float16: halves weights while it runs
        model.config.rescale_every = 0
    try:
        for cls in {type(module) for module in model.modules()}:
            if (made := known.get(cls.__name__)) is None:
                continue
            wanted = _results(made, cls)
            for name, method in made.methods.items():
                before.append((cls, name, getattr(cls, name)))
                setattr(cls, name, method)
            if not all(map(_same, wanted, _results(made, cls))):
                raise Refused(
                    f"its {cls.__name__} computes something else than others of this name"
                )
        yield
    finally:
        for cls, name, method in reversed(before):
            setattr(cls, name, method)


def _results(made: Methods, cls: Any) -> list[Any]:
    with torch.no_grad(), HOST:
        return list(made.trial(cls))


def _same(one: Any, other: Any) -> bool:
    return one.shape == other.shape and bool((one - other).abs().max() <= CLOSE * one.abs().max())
