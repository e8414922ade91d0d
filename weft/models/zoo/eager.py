"""In the tracing process: attention that a model writes out, as softmax(q k^T * scale + bias) v.

The product of queries and keys gives `Scores`, which follow what the model does to them until they
meet the values: there one operator replaces all of it. Their summands (masks, ALiBi) are known from
numbers: the model runs once on a long text without weights (`Eager.probe`). The bias of some of its
queries must equal a mask of the last keys, or fall with the distance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from weft.models.zoo.operators import Refused, attention_op

HIDDEN = -9e3  # a bias that hides a key from a query
CLOSE = 1e-6  # difference of biases that are the same, of the largest
PERIOD = 256  # positions are written as PERIOD a + b: bfloat16 holds both below 65,536


class Kind(NamedTuple):
    """The facts about one attention of a model: heads of queries and keys, the factor on q . k,
    the window (0: none), and ALiBi's slope of each head (none: no ALiBi)."""

    heads: int
    kv_heads: int
    scale: float
    window: int
    slopes: tuple[float, ...]


class Scores:
    """The scores [..., T, T] of queries and keys, or what softmax made of them. `value` is a tensor
    of their shape. While a model is probed, `bias` has what was added, for some queries [H, R, T],
    `scale` the factor on q . k, and `lost` is True for products that were multiplied by 0."""

    def __init__(self, run: Eager, value: Any, q: Any, k: Any, bias: Any, scale: float = 1.0,
                 soft: bool = False, lost: Any = False) -> None:  # fmt: skip
        self.run, self.value, self.q, self.k = run, value, q, k
        self.bias, self.scale, self.soft, self.lost = bias, scale, soft, lost

    def but(self, value: Any, **changed: Any) -> Scores:
        return Scores(**{**vars(self), "value": value, **changed})

    def __getattr__(self, name: str) -> Any:
        if name in _PLAIN:
            return getattr(self.value, name)
        method = getattr(torch.Tensor, name)
        return lambda *args, **kwargs: self.__torch_function__(method, (), (self, *args), kwargs)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        rule = _RULES.get(func.__name__.strip("_"))
        scores = [x for x in (*args, *kwargs.values()) if isinstance(x, Scores)]
        if rule is None or len(scores) != 1:
            raise Refused(f"its attention does {func.__name__} to scores, which is not known here")
        bare = tree_map(lambda x: x.value if isinstance(x, Scores) else x, (args, kwargs))
        value = func(*bare[0], **bare[1])
        return rule(scores[0], value, args, kwargs)


_PLAIN = ("shape", "dtype", "device", "size", "dim", "ndim")


def _operator(name: str) -> Callable[..., Any]:
    method = getattr(torch.Tensor, name)
    return lambda self, other: self.__torch_function__(method, (), (self, other))


for _name in ("add", "radd", "sub", "mul", "rmul", "truediv", "matmul"):
    setattr(Scores, f"__{_name}__", _operator(f"__{_name}__"))


class Eager(TorchFunctionMode):
    """Finds attention while a model runs. `kinds` lists that of a probed model in order."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds: list[Kind] = []
        self.probing, self.count = False, 0
        self.ids: Any = None
        self.positions: Any = None

    @contextmanager
    def probe(self) -> Iterator[None]:
        """Looks at numbers meanwhile, which what scores meet must have."""
        self.probing, self.kinds = True, []
        try:
            yield
        finally:
            self.probing = False

    @contextmanager
    def over(self, ids: Any, positions: Any) -> Iterator[None]:
        """Finds attention in one run on ids and positions [B, T]."""
        self.count, self.ids, self.positions = 0, ids, positions
        with self:
            yield
        if self.kinds and not self.probing and self.count not in (0, len(self.kinds)):
            raise Refused("its calls of attention differ from run to run")

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        known = _PRODUCTS.get(func.__name__.strip("_"))
        given = known(*args, **kwargs) if known and not kwargs.get("out") else None
        if given is None or not self._meets(*given[:2]):
            return func(*args, **kwargs)
        q, k, added, factor = given
        value = func(*args, **kwargs)
        found = Scores(self, value, q, k.transpose(-1, -2), self.sampled(value, 0.0), factor)
        return found if added is None else found.but(value, bias=self.sampled(value, added))

    def _meets(self, a: Any, b: Any) -> bool:
        """Returns True for the operands of a product of queries [..., T, D] and keys
        [..., D, T]."""
        if not all(isinstance(x, torch.Tensor) and x.ndim > 2 for x in (a, b)):
            return False
        length = str(self.ids.shape[1])
        sizes = [str(n) for n in (a.shape[-2], b.shape[-1])]
        return sizes == [length] * 2 and str(a.shape[-1]) != length

    def sampled(self, like: Any, x: Any) -> Any:
        """Returns rows of a bias x, which is broadcast to the shape of `like`: [H, R, T]. None
        unless a model is probed."""
        if not self.probing:
            return None
        x = torch.as_tensor(x)
        if x.is_meta:
            raise Refused("its attention adds a bias of its own to the scores")
        whole = x.double().broadcast_to(like.shape)
        return whole[..., _queries(like.shape[-1]), :].reshape(-1, len(_queries(0)), like.shape[-1])


def _queries(length: int) -> list[int]:
    """Returns the queries whose bias is looked at."""
    return [0, 1, 2, length // 3, length // 2, length - 2, length - 1]


# -- what models do to scores ---------------------------------------------------------------------


def _kept(s: Scores, value: Any, args: Any, kwargs: Any) -> Any:
    return s.but(value)


def _dropped(s: Scores, value: Any, args: Any, kwargs: Any) -> Any:
    if kwargs.get("training") or (len(args) > 2 and args[2]):
        raise Refused("its attention drops weights")
    return s.but(value)


def _other(args: Any, kwargs: Any) -> Any:
    if len(args) != 2 or kwargs:
        raise Refused("its attention adds to scores in a way that is not known here")
    return args[1] if isinstance(args[0], Scores) else args[0]


def _added(s: Scores, value: Any, args: Any, kwargs: Any) -> Any:
    return _plus(s, value, _other(args, kwargs), 1.0)


def _plus(s: Scores, value: Any, more: Any, sign: float) -> Any:
    if s.soft:
        raise Refused("its attention adds to the weights of values")
    if not s.run.probing:
        return s.but(value)
    return s.but(value, bias=s.bias + sign * s.run.sampled(value, more))


def _less(s: Scores, value: Any, args: Any, kwargs: Any) -> Any:
    if not isinstance(args[0], Scores):
        raise Refused("its attention turns scores around")
    return _plus(s, value, _other(args, kwargs), -1.0)


def _times(s: Scores, value: Any, args: Any, kwargs: Any, divides: bool = False) -> Any:
    if s.soft or (divides and not isinstance(args[0], Scores)):
        raise Refused("its attention multiplies the weights of values")
    if not s.run.probing:
        return s.but(value)
    other = _other(args, kwargs)
    by = torch.as_tensor(other)
    if by.numel() == 1 and not by.is_meta:
        number = by.item() if isinstance(other, torch.Tensor) else float(other)
        factor = 1 / number if divides else number
        return s.but(value, bias=s.bias * factor, scale=s.scale * factor)
    rows = s.run.sampled(value, by)  # a mask of ones, and of zeros for keys that are hidden next
    if divides or not bool(((rows == 0) | (rows == 1)).all()):
        raise Refused("its attention multiplies scores by numbers of its own")
    return s.but(value, bias=torch.where(rows == 0, 0.0, s.bias), lost=(rows == 0) | s.lost)


def _over(s: Scores, value: Any, args: Any, kwargs: Any) -> Any:
    return _times(s, value, args, kwargs, divides=True)


def _chosen(s: Scores, value: Any, args: Any, kwargs: Any) -> Any:
    if len(args) != 3 or args[1] is not s:
        raise Refused("its attention chooses among scores in a way that is not known here")
    return _hidden(s, value, args[2], lambda: ~s.run.sampled(value, args[0]).bool())


def _filled(s: Scores, value: Any, args: Any, kwargs: Any) -> Any:
    return _hidden(s, value, args[2], lambda: s.run.sampled(value, args[1]).bool())


def _hidden(s: Scores, value: Any, by: Any, mask: Callable[[], Any]) -> Any:
    if not s.run.probing:
        return s.but(value)
    if s.soft or not float(by) < HIDDEN:
        raise Refused("its attention fills scores by numbers of its own")
    return s.but(value, bias=torch.where(mask(), -1e30, s.bias))


def _bounded(s: Scores, value: Any, args: Any, kwargs: Any) -> Any:
    if s.run.probing and not float(_other(args, kwargs)) < -1e30:
        raise Refused("its attention bounds scores")
    return s.but(value)


def _softened(s: Scores, value: Any, args: Any, kwargs: Any) -> Any:
    axis = kwargs.get("dim", args[1] if len(args) > 1 else None)
    if s.soft or axis not in (-1, value.ndim - 1):
        raise Refused("its attention takes the softmax over other axes than the keys'")
    return s.but(value, soft=True)


def _joined(s: Scores, value: Any, args: Any, kwargs: Any) -> Any:
    """The product with the values: one call of attention."""
    if not s.soft or args[0] is not s:
        raise Refused("its attention multiplies scores before their softmax")
    run, v = s.run, args[1]
    run.count += 1
    if run.probing:
        run.kinds.append(_kind(s, v))
    if run.probing or not run.kinds:
        return value
    kind = run.kinds[run.count - 1]
    batch = run.ids.shape[0]
    heads = (s.q, kind.heads), (s.k, kind.kv_heads), (v, kind.kv_heads)
    q, k, v = (x.reshape(batch, n, x.shape[-2], x.shape[-1]) for x, n in heads)
    if kind.slopes:
        q, k = _sloped(q, k, kind, run.positions)
    out = attention_op(q, k, v, None, kind.scale, kind.window, 0, 0.0, True)
    return out.transpose(1, 2).reshape(value.shape)


_RULES: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("view", "reshape", "to", "type", "type_as", "float", "contiguous"), _kept),
    **dict.fromkeys(("add", "radd"), _added), "sub": _less,
    **dict.fromkeys(("mul", "rmul"), _times), **dict.fromkeys(("div", "truediv"), _over),
    **dict.fromkeys(("max", "maximum"), _bounded), **dict.fromkeys(("matmul", "bmm"), _joined),
    "dropout": _dropped, "where": _chosen, "masked_fill": _filled, "softmax": _softened,
}  # fmt: skip


def _product(a: Any, b: Any) -> Any:
    return a, b, None, 1.0


def _sum_product(input: Any, batch1: Any, batch2: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    return batch1, batch2, input * beta, float(alpha)


_PRODUCTS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("matmul", "bmm"), _product), "baddbmm": _sum_product,
}  # fmt: skip


# -- what they are --------------------------------------------------------------------------------


def _kind(s: Scores, v: Any) -> Kind:
    """Returns the kind of one attention from what it added to the scores of some queries."""
    length = s.bias.shape[-1]
    at = torch.tensor(_queries(length))[:, None]
    distance = at - torch.arange(length)
    base = s.bias.gather(2, at.expand(len(s.bias), -1, 1))
    rest = s.bias - base
    shown = (rest > HIDDEN) & (s.bias > HIDDEN)
    window = int(shown[0, -1].sum()) % length
    wanted = (distance >= 0) & ((distance < window) | (window == 0))
    if bool((shown & s.lost).any()) or not torch.equal(shown, wanted.expand(shown.shape)):
        raise Refused("attention has a mask that is neither causal nor a window")
    far = (window or length) - 1
    slopes = -rest[:, -1, length - 1 - far] / max(far, 1)
    rest, fall = rest[:, wanted], -slopes[:, None] * distance[wanted]
    if bool(((rest - fall).abs() > CLOSE * (1 + s.bias[:, wanted].abs().max())).any()):
        raise Refused("its attention adds a bias that does not fall with the distance")
    q, k, v_heads = (math.prod(x.shape[:-2]) for x in (s.q, s.k, v))
    if k != v_heads or q % k:
        raise Refused("its attention has other heads of values than of keys")
    alibi = tuple(slopes.tolist()) if bool((slopes != 0).any()) else ()
    return Kind(q, k, s.scale, window, alibi)


def _sloped(q: Any, k: Any, kind: Kind, positions: Any) -> tuple[Any, Any]:
    """Returns queries and keys [B, H, T, D + 4] whose products have -slope * distance in them, less
    what is equal for all keys of a query: the slope times the key's position."""
    whole = torch.tensor(kind.slopes, dtype=torch.float64) / kind.scale
    coarse = whole.to(torch.bfloat16).double()
    columns = torch.stack((coarse, whole - coarse), 1).float()  # in 16 bits too
    columns = torch.cat((columns * PERIOD, columns), 1)[None, :, None, :]
    ones = torch.ones_like(q[..., :1])
    high = torch.div(positions, PERIOD, rounding_mode="floor")
    both = torch.stack((high, high, positions - PERIOD * high, positions - PERIOD * high), -1)
    more = both.to(k.dtype)[:, None] * torch.ones_like(k[..., :1])
    return torch.cat((q, ones * columns.to(q.device)), -1), torch.cat((k, more), -1)
