"""In the tracing process: what a model does where its caller says nothing.

A traced model is given its positions. That is right only if they mean what the model itself assumes
without them: some count from 0, some from the padding's id on. The model runs once with and once
without positions. Weights are empty, but ids, positions and the values computed from them alone are
real. The runs agree if all such values that meet weights are equal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from weft.models.zoo.operators import HOST, Refused, checked_masks

TOKENS = 5  # tokens of a run; more than one, so that positions show
FIRST = 11  # the first id, so that none is padding or another special token
OFFSETS = (0, 1, 2, 3)
PROBED = 2051  # tokens of a run that shows masks
SHORTEST = 16


class Numbers(TorchDispatchMode):
    """Computes numbers where all operands have them, and else shapes. `met` lists the numbers that
    met operands without content. `lost` has tensors into which such operands were written."""

    def __init__(self, notes: bool = True) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.notes = notes
        self.met: list[tuple[str, list[Any]]] = []
        self.lost: dict[int, torch.Tensor] = {}  # by place in memory, which it keeps

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        known: list[Any] = []
        unknown = False

        def look(x: torch.Tensor) -> torch.Tensor:
            nonlocal unknown
            if x.device.type == "meta" or x.untyped_storage().data_ptr() in self.lost:
                unknown = True
            else:
                known.append(x)
            return x

        tree_map_only(torch.Tensor, look, (args, kwargs))
        if not unknown:
            if "device" in kwargs:
                kwargs["device"] = HOST
            return func(*args, **kwargs)
        if known and self.notes:
            self.met.append((str(func), [x.detach().clone().squeeze() for x in known]))
        for given, wanted in zip(args, func._schema.arguments):
            if wanted.is_write and isinstance(given, torch.Tensor) and not given.is_meta:
                self.lost[given.untyped_storage().data_ptr()] = given
        if "device" in kwargs:
            kwargs["device"] = torch.device("meta")
        args, kwargs = tree_map_only(torch.Tensor, lambda x: x.to("meta"), (args, kwargs))
        return func(*args, **kwargs)


def position_offset(logits: Callable[..., Any], vocab: int) -> int:
    """Returns the number to add to positions from 0, for logits(ids, positions). Raises Refused if
    none gives what logits(ids) does."""
    ids, counted = torch.arange(FIRST, FIRST + TOKENS)[None] % vocab, torch.arange(TOKENS)[None]
    with checked_masks():
        alone = _met(logits, ids)
    for offset in OFFSETS:
        if _equal(alone, _met(logits, ids, counted + offset)):
            return offset
    raise Refused("its own positions are not those that it can be given")


def probe(logits: Any, config: Any, longest: int) -> None:
    """Finds the kinds of attention that a model writes out (`eager.Eager`), on a text as long as a
    mask may show, with special tokens in it. Raises Refused."""
    length = min(longest - max(OFFSETS), PROBED)
    if length < SHORTEST:
        raise Refused(f"it takes {longest} tokens, too few to look at its attention")
    for name, n in config.to_dict().items():
        far = isinstance(n, int) and 2 * n >= length and n < longest
        if far and any(word in name for word in ("window", "chunk", "local")):
            raise Refused(f"its {name} of {n} is too long for a look at its attention")
    ids = torch.arange(FIRST, FIRST + length) % int(config.vocab_size)
    for i, name in enumerate(("pad_token_id", "bos_token_id", "eos_token_id")):
        special = getattr(config, name, None)
        ids[3 + i] = special if isinstance(special, int) and special >= 0 else ids[3 + i]
    with torch.no_grad(), logits.eager.probe(), Numbers(notes=False):
        logits(ids[None], torch.arange(length)[None])


def _met(logits: Callable[..., Any], *given: Any) -> list[tuple[str, list[Any]]]:
    mode = Numbers()
    with torch.no_grad(), mode:
        logits(*given)
    return mode.met


def _equal(one: list[tuple[str, list[Any]]], other: list[tuple[str, list[Any]]]) -> bool:
    return len(one) == len(other) and all(
        a == b and len(x) == len(y) and all(map(torch.equal, x, y))
        for (a, x), (b, y) in zip(one, other)
    )
