"""Arguments of operators that move, make and index tensors."""

from __future__ import annotations

import numpy as np
import torch
from aten_draw import Draw, case

# fmt: off
# -- movement
case("view reshape _unsafe_view _reshape_copy view_copy", lambda d: (d.f(), [-1]),
     lambda d: (d.f(), [d.shape[0], -1]))
case("view_as reshape_as", lambda d: (d.f(), d.f(int(np.prod(d.shape)))))
case("permute permute_copy", lambda d: (d.f(), list(d.rng.permutation(len(d.shape)))))
case("transpose.int swapaxes swapdims", lambda d: (d.f(), d.dim, 0))
case("t", lambda d: (d.f(3, d.n),))
case("numpy_T", lambda d: (d.f(3, d.n),))
case("mT", lambda d: (d.f(2, 3, d.n),))
case("movedim.int moveaxis.int", lambda d: (d.f(), d.dim, 0))
case("movedim.intlist moveaxis.intlist", lambda d: (d.f(2, 3, 4), [0, 1], [1, 2]))
case(
    "expand broadcast_to expand_copy",
    lambda d: (d.f(), [3, *d.shape]),
    lambda d: (d.f(1, 4), [5, -1]),
)
case("expand_as", lambda d: (d.f(d.shape[-1]), d.f()))
case("broadcast_tensors", lambda d: ([d.f(), d.f(d.shape[-1])],))
case("unsqueeze", lambda d: (d.f(), d.dim))
case("squeeze", lambda d: (d.f(1, *d.shape, 1),))
case("squeeze.dim", lambda d: (d.f(1, *d.shape), d.part(0, 1)))
case("squeeze.dims", lambda d: (d.f(1, *d.shape, 1), [0, -1]))
case("flatten.using_ints", lambda d: (d.f(2, 3, 4), 0, 1), lambda d: (d.f(),))
case("unflatten.int", lambda d: (d.f(*d.shape, 6), -1, [2, 3]))
case("slice.Tensor slice_copy.Tensor", lambda d: (d.f(), d.dim, 1, 2**63 - 1),
     lambda d: (d.f(), d.dim, 0, -1), lambda d: (d.f(), d.dim, 0, 9, 2), lambda d: (d.f(),),
     lambda d: (d.f(), d.dim, -2, None))
case("narrow", lambda d: (d.f(), d.dim, 0, d.n))
case("select.int select_copy.int", lambda d: (d.f(), d.dim, d.part(0, -1)))
case("split.Tensor split_copy.Tensor", lambda d: (d.f(), 2, d.dim))
case("split.sizes split_with_sizes split_with_sizes_copy", lambda d: (d.f(*d.shape, 5), [2, 3], -1))
case("chunk", lambda d: (d.f(), 2, d.dim))
case("unbind.int unbind_copy.int", lambda d: (d.f(), d.dim))
case("cat concat concatenate", lambda d: ([d.f(), d.f()], d.dim), lambda d: ([d.f(), d.i()], 0),
     lambda d: ([d.f(0), d.f(), d.f()], d.dim))
case("stack", lambda d: ([d.f(), d.f()], d.dim))
case("repeat tile", lambda d: (d.f(), [2, *[1] * (len(d.shape) - 1), 3]))
case("repeat_interleave.self_int", lambda d: (d.f(), 2, d.part(None, d.dim)))
case("flip", lambda d: (d.f(), [d.dim]))
case("roll", lambda d: (d.f(), [1], [d.dim]), lambda d: (d.f(), [2]))
case(
    "diagonal diagonal_copy",
    lambda d: (d.f(4, 3), d.part(0, 1, -2)),
    lambda d: (d.f(2, 3, 5), 1, -2, -1),
)
case("meshgrid", lambda d: ([d.f(3), d.f(d.n)],))
case("meshgrid.indexing", lambda d: ([d.f(3), d.f(d.n)], {"indexing": d.part("ij", "xy")}))
case("tril triu", lambda d: (d.f(*d.shape, 3, 4), d.part(0, 1, -1)))
case(
    "clone contiguous alias alias_copy lift_fresh_copy lift_fresh detach detach_copy",
    lambda d: (d.any(),),
)
case("_to_copy", lambda d: (d.any(), {"dtype": d.part(torch.float32, torch.int64, torch.bool)}))
case("to.dtype", lambda d: (d.any(), d.part(torch.float32, torch.int32, torch.bool)))
case("to.dtype_layout", lambda d: (d.any(), {"dtype": torch.float32}))
case("to.device", lambda d: (d.any(), torch.device("cpu"), torch.float32))
case("to.other type_as", lambda d: (d.any(), d.f()))
case("copy", lambda d: (d.f(), d.i()), lambda d: (d.f(), d.f(d.shape[-1])))
case("constant_pad_nd", lambda d: (d.f(), [1, 2], 0.5), lambda d: (d.f(3, 4), [1, -1, -1, 2]))
case("reflection_pad1d", lambda d: (d.f(2, 3, 5), [2, 1]))
case("reflection_pad2d", lambda d: (d.image(), [2, 1, 0, 3]))
case("reflection_pad3d", lambda d: (d.image(3), [2, 1, 0, 3, 1, 1]))
case("replication_pad1d", lambda d: (d.f(2, 3, 4), [2, 5]))
case("replication_pad2d", lambda d: (d.image(), [2, 1, 0, 3]))
case("replication_pad3d", lambda d: (d.image(3), [2, 1, 0, 3, 1, 1]))
case(
    "pad", lambda d: (d.f(2, 3, 5), [2, 1], d.part("constant", "reflect", "replicate", "circular"))
)
case("slice_scatter", lambda d: (d.f(6, 3), d.f(3, 3), 0, d.part(0, 1), 6, 2),
     lambda d: (d.f(6, 3), d.f(2, 3), 0, 2, 4), lambda d: (d.f(6, 3), d.f(6, 3)))
case("select_scatter", lambda d: (d.f(6, 3), d.f(6), 1, d.part(0, -1)))
case("pixel_shuffle", lambda d: (d.f(2, 8, 3, 4), 2))
case("pixel_unshuffle", lambda d: (d.f(2, 3, 4, 6), 2))
case("channel_shuffle", lambda d: (d.f(2, 6, 4, 4), 3))
case("one_hot", lambda d: (d.i(low=0, high=5), 6))

# -- making
for _name in ("zeros", "ones", "empty.memory_format"):
    case(_name, lambda d: (list(d.shape), {"dtype": d.part(torch.float32, torch.int64)}))
case("full", lambda d: (list(d.shape), d.part(2, 1.5, True)))
case("scalar_tensor", lambda d: (d.part(2.0, 3.5),), lambda d: (2, {"dtype": torch.int64}))
case("full_like", lambda d: (d.any(), 1), lambda d: (d.f(), 2, {"dtype": torch.int64}))
case("zeros_like ones_like zero empty_like", lambda d: (d.any(),))
case("fill.Scalar", lambda d: (d.any(), 1))
case("fill.Tensor", lambda d: (d.f(), d.scalar()))
case("new_full", lambda d: (d.any(), [2, 3], 1))
case("new_zeros new_ones new_empty", lambda d: (d.any(), [2, 3]))
case("empty_strided", lambda d: ([2, 3], [3, 1]))
case("arange", lambda d: (d.part(5, 4.5),))
case("arange.start", lambda d: (d.part(2, 1.5), 7))
case("arange.start_step", lambda d: (1, 9, d.part(2, 3, 0.5)), lambda d: (9, 1, -2))
case("linspace", lambda d: (-1, 2, d.n + 1))
case("eye", lambda d: (d.n,))
case("randint.low", lambda d: (3, 7, [2, 3]))
case("randint", lambda d: (7, [2, 3]))
case("randperm", lambda d: (5,))
case("tril_indices triu_indices", lambda d: (4, d.n, d.part(0, 1, -1)))
case("eye.m", lambda d: (d.n, 3))

# -- indexing
case("index.Tensor", lambda d: (d.f(), [d.i(4, low=-d.shape[0], high=d.shape[0])]),
     lambda d: (d.f(3, 4, 5), [None, d.i(2, 2, low=0, high=4), d.i(2, low=0, high=5)]),
     lambda d: (d.f(3, 4, 5), [d.i(2, low=0, high=3), None, d.i(2, low=0, high=5)]),
     lambda d: (d.f(3, 4), [d.b(3, 4)]))
case("index_select", lambda d: (d.f(), d.dim, d.i(4, low=0, high=d.n)))
case("embedding", lambda d: (d.f(7, 3), d.i(low=0, high=7)))
case("gather", lambda d: (d.f(), d.dim, d.i(low=0, high=d.n)),
     lambda d: (d.f(4, 5), 1, d.i(3, 2, low=0, high=5)))
case("take_along_dim", lambda d: (d.f(), d.i(low=0, high=d.n), d.dim))


def _unique(d: Draw, count: int, n: int) -> torch.Tensor:
    return torch.from_numpy(d.rng.permutation(n)[:count].astype(np.int64))


case("index_copy", lambda d: (d.f(6, 3), 0, _unique(d, 2, 6), d.f(2, 3)),
     lambda d: (d.f(2, 6, 3), 1, _unique(d, 4, 6), d.f(2, 4, 3)))
case("index_add", lambda d: (d.f(2, 6), 1, d.i(4, low=0, high=6), d.f(2, 4), {"alpha": 2}))
case("index_fill.int_Scalar", lambda d: (d.f(2, 6), 1, d.i(3, low=0, high=6), 1.5))
case("index_put _unsafe_index_put",
     lambda d: (d.f(6, 3), [_unique(d, 2, 6)], d.f(2, 3)),
     lambda d: (d.f(2, 6, 3), [None, _unique(d, 2, 6)], d.f(2, 2, 3)),
     lambda d: (d.f(6, 3), [d.i(4, low=0, high=6)], d.f(4, 3), True),
     lambda d: (d.f(6, 3), [_unique(d, 2, 6), _unique(d, 2, 3)], d.f(2)),
     lambda d: (d.f(6, 3), [d.b(6, 3)], d.scalar()),
     lambda d: (d.f(6, 3), [d.b(6)], d.scalar()))
case("scatter.src", lambda d: (d.f(5, 4), 1, _unique(d, 3, 4).expand(2, 3), d.f(3, 4)))
case("scatter.value", lambda d: (d.f(5, 4), 1, d.i(5, 2, low=0, high=4), 2.5))
case("scatter_add", lambda d: (d.f(5, 4), 0, d.i(3, 4, low=0, high=5), d.f(3, 4)))
case("masked_scatter", lambda d: (d.f(), d.b(), d.f()))
case("scatter_reduce.two",
     lambda d: (d.part(d.f(5, 4), d.i(5, 4)), d.part(0, 1), d.i(3, 4, low=0, high=4), d.f(4, 4),
                d.part("sum", "amax", "amin"), {"include_self": bool(d.part(0, 1))}),
     lambda d: (d.f(7), 0, d.i(9, low=0, high=7), d.f(9), d.part("mean", "sum", "amax")))
case("index_reduce", lambda d: (d.f(2, 6), 1, d.i(4, low=0, high=6), d.f(2, 4),
                                d.part("mean", "amax", "amin"),
                                {"include_self": bool(d.part(0, 1))}))
case("_embedding_bag",
     lambda d: (d.f(7, 3), d.i(6, low=0, high=7), torch.tensor([0, 2, 2]), False, d.part(0, 1, 2)),
     lambda d: (d.f(7, 3), d.i(6, low=0, high=7), torch.tensor([0, 4]), False, 0, False, d.f(6)))
case("unfold", lambda d: (d.f(*d.shape, 7), -1, d.part(1, 3), d.part(1, 2)),
     lambda d: (d.f(6, 4), 0, 2, 2))
# fmt: on
