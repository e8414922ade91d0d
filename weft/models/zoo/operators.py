"""In the tracing process: replacements of transformers' attention, masks and experts, which
transformers lets registered functions compute. Ours put one operator each into the traced graph;
the engine gives the operators their meaning (`models.arch.traced`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing
from transformers import AttentionInterface, AttentionMaskInterface, masking_utils
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

NAME, PLAIN = "weft", "sdpa"  # ways of attention: ours, and PyTorch's one function
HOST = torch.empty(0).device  # where tensors have content
FAR = 1 << 17  # a query this far on shows if a mask without a stated size sees everything
# Keyword arguments of attention functions that change no result when a whole sequence is read.
_HARMLESS = frozenset((
    "dropout", "position_ids", "cache_position", "use_cache", "output_attentions", "layer_idx",
    "output_hidden_states", "output_router_logits", "return_dict", "num_items_in_batch",
    "past_key_values", "past_key_value", "position_embeddings", "cu_seq_lens_q", "cu_seq_lens_k",
    "max_length_q", "max_length_k", "cache", "logits_to_keep",
))  # fmt: skip


class Refused(Exception):
    """The model computes something that the engine does not."""


class WrittenOut(Refused):
    """Attention does not go through transformers' interface."""


@torch.library.custom_op("weft::attention", mutates_args=())
def attention_op(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sinks: torch.Tensor | None, scale: float,
    window: int, chunk: int, softcap: float, causal: bool,
) -> torch.Tensor:  # fmt: skip
    raise NotImplementedError("traced only")


@attention_op.register_fake
def _(q: Any, k: Any, v: Any, *rest: Any) -> Any:
    batch, heads, rows, _ = q.shape
    return q.new_empty((batch, rows, heads, v.shape[-1]))


@torch.library.custom_op("weft::picked", mutates_args=())
def picked_op(x: torch.Tensor, w: torch.Tensor, chosen: torch.Tensor, turned: bool) -> torch.Tensor:
    """Rows x [N, C, K] times the matrices w[chosen [N, C]]."""
    return torch.einsum("nck,nckm->ncm" if turned else "nck,ncmk->ncm", x, w[chosen])


@picked_op.register_fake
def _(x: Any, w: Any, chosen: Any, turned: bool) -> Any:
    return x.new_empty((*chosen.shape, w.shape[2] if turned else w.shape[1]))


class _Masks:
    """The values of a model's masks for its inputs: masks of ones mask nothing."""

    def __init__(self) -> None:
        self.looking, self.ones = False, False

    def check(self, given: torch.Tensor) -> None:
        if self.looking:
            self.ones = bool((given == 1).all())
        if not self.ones:
            raise Refused("the model masks its inputs")


_CHECKED = _Masks()


@contextmanager
def checked_masks() -> Iterator[None]:
    """Looks at the masks of inputs that a model makes meanwhile, which must have content."""
    _CHECKED.looking = True
    try:
        yield
    finally:
        _CHECKED.looking = False


class Mask:
    """A mask by its kind: the last `window` keys, or those of the query's chunk; 0: all so far.
    `known` is False for another mask, which some models make and never use. Models cut and cast
    masks on their way to attention, which changes no kind."""

    def __init__(
        self, window: int = 0, chunk: int = 0, causal: bool = True, known: bool = True
    ) -> None:
        self.window, self.chunk, self.causal, self.known = window, chunk, causal, known

    def __getitem__(self, at: Any) -> Mask:
        return self

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.scaled_dot_product_attention:
            return plain_attention(*args, **(kwargs or {}))
        raise WrittenOut("its attention does not go through transformers' interface")

    def to(self, *args: Any, **kwargs: Any) -> Mask:
        return self


def met(error: Exception) -> bool:
    """Returns True for an error of code that writes attention out: it takes our mask for a tensor,
    looks our functions up where transformers' own are written out, or has one way only."""
    said = str(error)
    signs = ("'Mask'", "got (Mask,", "does not support an attention implementation")
    return isinstance(error, WrittenOut) or said == repr(NAME) or any(s in said for s in signs)


def attention(
    module: Any, query: Any, key: Any, value: Any, attention_mask: Any, scaling: Any = None,
    sliding_window: Any = None, softcap: Any = None, is_causal: Any = None, s_aux: Any = None,
    **more: Any,
) -> tuple[Any, None]:  # fmt: skip
    """transformers' attention function: q [B, H, T, D], keys and values [B, G, T, ...] ->
    [B, T, H, V]."""
    for name, given in more.items():
        if given is not None and given is not False and name not in _HARMLESS:
            raise Refused(f"attention takes {name}, which is not known here")
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    window, chunk = int(sliding_window or 0), 0
    if isinstance(attention_mask, Mask):
        if not attention_mask.known:
            raise WrittenOut("attention has a mask that is neither causal nor a window")
        window, chunk, causal = attention_mask.window, attention_mask.chunk, attention_mask.causal
    elif attention_mask is not None:
        raise Refused("attention takes a mask that the model made itself")
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    given = query, key, value, s_aux
    return attention_op(*given, scale, window, chunk, float(softcap or 0.0), bool(causal)), None


def plain_attention(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    """torch.nn.functional.scaled_dot_product_attention: [B, H, T, V]."""
    given = query, key, value, attn_mask
    return attention(None, *given, scale, is_causal=is_causal)[0].transpose(1, 2)


def mask(
    *args: Any, mask_function: Callable[..., Any] = masking_utils.causal_mask_function,
    attention_mask: Any = None, local_size: int | None = None, **more: Any,
) -> Mask:  # fmt: skip
    """transformers' mask function: the kind of the mask, found by asking it for single keys."""
    if attention_mask is not None:
        _CHECKED.check(attention_mask)
    size = FAR if local_size is None else int(local_size)
    with unset_fake_temporarily(), disable_proxy_modes_tracing(), HOST:
        kinds = [Mask(), Mask(causal=False)]
        if local_size is not None:
            kinds += [Mask(window=size), Mask(chunk=size)]
        looked = (2 * size + 3, 0, 1, size, size + 1)
        try:
            return next((kind for kind in kinds
                         if all(_shows(mask_function, kind, at) for at in looked)),
                        Mask(known=False))  # fmt: skip
        except IndexError:  # it knows what each token of this text is
            return Mask(known=False)


def _shows(function: Callable[..., Any], kind: Mask, at: int) -> bool:
    """Returns True if a mask function shows the query at a position, in the first heads, the keys
    that a mask of this kind shows."""
    keys = torch.arange(at + 8)
    wanted = (keys <= at) if kind.causal else torch.ones_like(keys, dtype=torch.bool)
    if kind.window:
        wanted &= keys > at - kind.window
    if kind.chunk:
        wanted &= keys >= at // kind.chunk * kind.chunk
    zero, q = torch.tensor(0), torch.tensor(at)
    shown = (torch.as_tensor(function(zero, torch.tensor(head), q, keys)) for head in (0, 1))
    return all(torch.equal(one.expand(keys.shape), wanted) for one in shown)


def experts(self: Any, hidden: Any, chosen: Any, weights: Any) -> Any:
    """transformers' experts function: hidden [N, K], chosen and weights [N, C] -> [N, K]."""
    if getattr(self, "has_post_expert_norm", False):
        raise Refused("experts have norms of their own")
    turned = bool(self.is_transposed)
    rows = hidden.unsqueeze(1).expand(-1, chosen.shape[1], -1)
    up = _by(self, rows, chosen, "gate_up_proj" if self.has_gate else "up_proj", turned)
    inner = self._apply_gate(up) if self.has_gate else self.act_fn(up)
    out = _by(self, inner, chosen, "down_proj", turned)
    return (out * weights.unsqueeze(-1)).sum(1).to(hidden.dtype)


def _by(self: Any, x: Any, chosen: Any, name: str, turned: bool) -> Any:
    out = picked_op(x, getattr(self, name), chosen, turned)
    return out + getattr(self, f"{name}_bias")[chosen] if self.has_bias else out


@contextmanager
def registered() -> Iterator[None]:
    """Makes the functions known to transformers, meanwhile: ours as "weft", and our masks for
    PyTorch's attention too."""
    AttentionInterface.register(NAME, attention)
    ALL_EXPERTS_FUNCTIONS.register(NAME, experts)
    before = (
        masking_utils.ALL_MASK_ATTENTION_FUNCTIONS[PLAIN],
        masking_utils.find_packed_sequence_indices,
    )
    for name in (NAME, PLAIN):
        AttentionMaskInterface.register(name, mask)
    masking_utils.find_packed_sequence_indices = lambda position_ids: None
    try:
        yield
    finally:
        AttentionMaskInterface.register(PLAIN, before[0])
        masking_utils.find_packed_sequence_indices = before[1]
