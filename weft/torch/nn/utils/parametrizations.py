"""Weight norm, spectral norm and orthogonal matrices as parametrizations.

Sources: Salimans and Kingma, arXiv:1602.07868; Miyato et al., arXiv:1802.05957; Lezcano-Casado,
arXiv:1909.09501 (a base with a map of skew-symmetric matrices).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.core.errors import DTypeError, ShapeError, UsageError
from weft.host.boundary import guard_calls
from weft.tensor.autograd import no_grad
from weft.torch import linalg
from weft.torch.creation import eye, tensor, zeros
from weft.torch.diagonals import diagonal
from weft.torch.joining import cat
from weft.torch.matrices import matrix_exp
from weft.torch.nn.functional import normalize
from weft.torch.nn.modules import Module
from weft.torch.nn.utils.parametrize import register_parametrization
from weft.torch.randomness import randn
from weft.torch.tensor import Tensor


def norm_except_dim(v: Any, dim: int | None) -> Any:
    """The norm over all axes but `dim`, which stay with size 1; of the whole for dim None or -1."""
    if dim is None or dim == -1:
        return (v * v).sum().sqrt()
    over = [a for a in range(v.ndim) if a != dim % v.ndim]
    return (v * v).sum(over, keepdim=True).sqrt() if over else v.abs()


class _WeightNorm(Module):
    def __init__(self, dim: int | None = 0) -> None:
        super().__init__()
        self.dim = -1 if dim is None else dim

    def forward(self, weight_g: Any, weight_v: Any) -> Any:
        return weight_v * (weight_g / norm_except_dim(weight_v, self.dim))

    def right_inverse(self, weight: Any) -> Any:
        return norm_except_dim(weight, self.dim), weight


def weight_norm(module: Any, name: str = "weight", dim: int | None = 0) -> Any:
    """Splits a weight into its length along `dim` (original0) and its direction (original1);
    returns the module."""
    return register_parametrization(module, name, _WeightNorm(dim), unsafe=True)


class _SpectralNorm(Module):
    def __init__(
        self, weight: Any, n_power_iterations: int = 1, dim: int = 0, eps: float = 1e-12
    ) -> None:
        super().__init__()
        if not -weight.ndim <= dim < weight.ndim:
            raise ShapeError(f"spectral_norm: dim {dim} of {list(weight.shape)}")
        if n_power_iterations < 1:
            raise UsageError(f"spectral_norm: {n_power_iterations} iterations; at least 1")
        self.dim, self.n_power_iterations, self.eps = dim % weight.ndim, n_power_iterations, eps
        if weight.ndim > 1:
            rows = self._matrix(weight.detach())
            h, w = rows.shape
            self.register_buffer("_u", normalize(randn(h).cast(rows.dtype), dim=0, eps=eps))
            self.register_buffer("_v", normalize(randn(w).cast(rows.dtype), dim=0, eps=eps))
            self._iterate(rows, 15)

    def _matrix(self, weight: Any) -> Any:
        if self.dim:
            order = [self.dim, *(a for a in range(weight.ndim) if a != self.dim)]
            weight = weight.permute(*order)
        return weight.flatten(1)

    def _iterate(self, rows: Any, count: int) -> None:
        with no_grad():
            u, v = self._u, self._v
            for _ in range(count):
                u = normalize(rows.mv(v), dim=0, eps=self.eps)
                v = normalize(rows.mT.mv(u), dim=0, eps=self.eps)
            self._u.copy_(u)
            self._v.copy_(v)

    def forward(self, weight: Any) -> Any:
        if weight.ndim == 1:
            return normalize(weight, dim=0, eps=self.eps)
        rows = self._matrix(weight)
        if self.training:
            self._iterate(rows.detach(), self.n_power_iterations)
        return weight / self._u.clone().dot(rows.mv(self._v.clone()))

    def right_inverse(self, value: Any) -> Any:
        return value


def spectral_norm(
    module: Any, name: str = "weight", n_power_iterations: int = 1, eps: float = 1e-12,
    dim: int | None = None,
) -> Any:  # fmt: skip
    """Divides a weight by its largest singular value, which power iterations in training follow;
    returns the module."""
    weight = getattr(module, name, None)
    if not isinstance(weight, Tensor):
        raise UsageError(f"spectral_norm: {type(module).__name__} has no tensor {name!r}")
    if dim is None:
        dim = 1 if "ConvTranspose" in type(module).__name__ else 0
    made = _SpectralNorm(weight, n_power_iterations, dim, eps)
    return register_parametrization(module, name, made)


class _Orthogonal(Module):
    """Q = base map(A), for a map of skew-symmetric matrices or of reflections."""

    base: Any

    def __init__(self, shape: Any, orthogonal_map: str, use_trivialization: bool = True) -> None:
        super().__init__()
        self.shape, self.orthogonal_map = tuple(shape), orthogonal_map
        self.trivial = use_trivialization
        if use_trivialization:
            n = max(self.shape[-2:])
            self.register_buffer("base", eye(n).expand(*self.shape[:-2], n, n).clone())

    def forward(self, X: Any) -> Any:
        wide = X.shape[-2] < X.shape[-1]
        X = X.mT if wide else X
        Q = self._reflected(X) if self.orthogonal_map == "householder" else self._turned(X)
        Q = self.base @ Q if self.trivial else Q
        return Q.mT if wide else Q

    def _turned(self, X: Any) -> Any:
        n, k = X.shape[-2:]
        X = X.tril()
        if n != k:
            X = cat([X, zeros(*X.shape[:-1], n - k, dtype=X.dtype)], -1)
        A = X - X.mT
        if self.orthogonal_map == "matrix_exp":
            return matrix_exp(A)[..., :k]
        one = eye(n, dtype=A.dtype)
        return linalg.solve(one - A * 0.5, one + A * 0.5)[..., :k]

    def _reflected(self, X: Any) -> Any:
        """The product of the reflections by the columns of X below its diagonal, whose signs it
        takes."""
        n, k = X.shape[-2:]
        one = eye(n, k, dtype=X.dtype)
        V = X.tril(-1) + one
        Q = one.expand(*X.shape[:-2], n, k)
        for i in reversed(range(k)):
            v = V[..., i : i + 1]
            Q = Q - v * (2 / (v * v).sum(-2, keepdim=True)) @ (v.mT @ Q)
        return Q * diagonal(X.detach(), 0, -2, -1).trunc().unsqueeze(-2)

    def right_inverse(self, Q: Any) -> Any:
        if tuple(Q.shape) != self.shape:
            raise ShapeError(f"orthogonal: {list(Q.shape)} for a weight of {list(self.shape)}")
        wide = Q.shape[-2] < Q.shape[-1]
        T = Q.mT if wide else Q
        n, k = T.shape[-2:]
        if self.trivial:
            full = T if n == k else cat([T, randn(*T.shape[:-1], n - k).cast(T.dtype)], -1)
            self.base.copy_(_orthogonal_of(full))
            return -eye(*Q.shape[-2:], dtype=Q.dtype).expand(*Q.shape).clone()
        if self.orthogonal_map != "householder":
            raise NotImplementedError(
                f"orthogonal: nothing can be assigned to {self.orthogonal_map} without "
                "use_trivialization"
            )
        packed, tau = np.linalg.qr(T.numpy(), mode="raw")
        packed = np.swapaxes(packed, -1, -2).copy()
        line = np.arange(k)
        signs = np.where(packed[..., line, line] < 0, -1.0, 1.0)
        packed[..., line, line] = np.where(tau == 0, -signs, signs)
        found = tensor(packed.astype(Q.dtype.numpy))
        return found.mT if wide else found


def _orthogonal_of(A: Any) -> Any:
    """The orthogonal factor of a matrix whose triangular one has a positive diagonal; itself if it
    is orthogonal."""
    n = A.shape[-1]
    off = (A.mT @ A - eye(n, dtype=A.dtype)).abs().max()
    if off.item() < 10 * n * np.finfo(A.dtype.numpy).eps:
        return A.clone()
    Q, R = linalg.qr(A)
    return Q * diagonal(R, 0, -2, -1).sign().unsqueeze(-2)


def orthogonal(
    module: Any, name: str = "weight", orthogonal_map: str | None = None, *,
    use_trivialization: bool = True,
) -> Any:  # fmt: skip
    """Keeps a matrix (or a batch of them) orthogonal: its columns, or its rows where it has fewer.
    `orthogonal_map` is "matrix_exp" or "cayley", which run on the host and not inside
    weft.compile, or "householder"; returns the module."""
    weight = getattr(module, name, None)
    if not isinstance(weight, Tensor) or weight.ndim < 2:
        raise UsageError(f"orthogonal: {type(module).__name__} has no matrix {name!r}")
    if not weight.dtype.is_float or weight.dtype.itemsize < 4:
        raise DTypeError(f"orthogonal: {weight.dtype.name} weight; cast it to float32")
    square = weight.shape[-2] == weight.shape[-1]
    wanted = orthogonal_map or ("matrix_exp" if square else "householder")
    if wanted not in ("matrix_exp", "cayley", "householder"):
        raise UsageError(f"orthogonal_map {wanted!r}; use matrix_exp, cayley or householder")
    made = _Orthogonal(weight.shape, wanted, use_trivialization)
    return register_parametrization(module, name, made, unsafe=True)


_NAMES = ["orthogonal", "spectral_norm", "weight_norm"]
guard_calls(globals(), _NAMES)


def __dir__() -> list[str]:
    return _NAMES
