"""weft.linalg against NumPy, its gradients against PyTorch's, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import weft
from weft import func
from weft.errors import GradientError, ShapeError, TraceError, UsageError

L = weft.linalg
RNG = np.random.default_rng(11)
WIDE, TALL, SQUARE = (RNG.normal(size=s) for s in ((2, 3, 5), (2, 5, 3), (2, 4, 4)))
SYMMETRIC = SQUARE @ np.swapaxes(SQUARE, 1, 2) + np.eye(4)
# name: (a call of a namespace of linear algebra, operands); PyTorch computes it too
CALLS: dict[str, tuple[Callable[..., Any], list[np.ndarray]]] = {
    "inv": (lambda m, a: m.inv(a), [SQUARE]),
    "det": (lambda m, a: m.det(a), [SQUARE]),
    "logabsdet": (lambda m, a: m.slogdet(a)[1], [SQUARE]),
    "solve": (lambda m, a, b: m.solve(a, b), [SQUARE, RNG.normal(size=(2, 4, 3))]),
    "solve broadcast": (lambda m, a, b: m.solve(a, b), [SQUARE, RNG.normal(size=(4, 3))]),
    "solve vector": (lambda m, a, b: m.solve(a, b), [SQUARE[0], RNG.normal(size=4)]),
    "cholesky": (lambda m, a: m.cholesky((a + a.mT) / 2), [SYMMETRIC]),
    "cholesky upper": (lambda m, a: m.cholesky((a + a.mT) / 2, upper=True), [SYMMETRIC]),
    "Q": (lambda m, a: m.qr(a)[0], [TALL]),
    "R": (lambda m, a: m.qr(a)[1], [TALL]),
    "R square": (lambda m, a: m.qr(a)[1], [SQUARE]),
    "eigenvalues": (lambda m, a: m.eigh((a + a.mT) / 2)[0], [SYMMETRIC]),
    "eigenvectors": (lambda m, a: m.eigh((a + a.mT) / 2)[1] ** 2, [SYMMETRIC]),
    "eigvalsh": (lambda m, a: m.eigvalsh((a + a.mT) / 2), [SYMMETRIC]),
    "U": (lambda m, a: m.svd(a, full_matrices=False)[0] ** 2, [TALL]),
    "S": (lambda m, a: m.svd(a, full_matrices=False)[1], [WIDE]),
    "Vh": (lambda m, a: m.svd(a, full_matrices=False)[2] ** 2, [WIDE]),
    "U wide": (lambda m, a: m.svd(a, full_matrices=False)[0] ** 2, [WIDE]),
    "Vh square": (lambda m, a: m.svd(a, full_matrices=False)[2] ** 2, [SQUARE]),
    "svdvals": (lambda m, a: m.svdvals(a), [TALL]),
    "pinv": (lambda m, a: m.pinv(a), [TALL]),
    "pinv wide": (lambda m, a: m.pinv(a), [WIDE]),
    "matrix_power": (lambda m, a: m.matrix_power(a, 5), [SQUARE]),
    "matrix_power below": (lambda m, a: m.matrix_power(a, -2), [SQUARE]),
    "matrix_power 0": (lambda m, a: m.matrix_power(a, 0) + a, [SQUARE]),
    "matrix_power 1": (lambda m, a: m.matrix_power(a, 1), [SQUARE]),
    "cross": (lambda m, a, b: m.cross(a, b), [TALL, RNG.normal(size=(1, 5, 3))]),
    "diagonal": (lambda m, a: m.diagonal(a, offset=1), [WIDE]),
    "diagonal below": (lambda m, a: m.diagonal(a, offset=-2), [TALL]),
    "matmul": (lambda m, a, b: m.matmul(a, b), [TALL, WIDE]),
    "vecdot": (lambda m, a, b: m.vecdot(a, b), [TALL, RNG.normal(size=(1, 5, 3))]),
    "nuc": (lambda m, a: m.matrix_norm(a, ord="nuc"), [TALL]),
    **{
        f"matrix_norm {o}": (lambda m, a, o=o: m.matrix_norm(a, ord=o, keepdim=True), [WIDE])
        for o in ("fro", 1, -1, 2, -2, np.inf, -np.inf)
    },
    **{
        f"vector_norm {o}": (lambda m, a, o=o: m.vector_norm(a, ord=o, dim=(0, 2)), [WIDE])
        for o in (2, 1, 3, np.inf, -np.inf)
    },
}


@pytest.mark.parametrize("name", CALLS)
def test_values_and_gradients_are_pytorchs(name: str) -> None:
    call, arrays = CALLS[name]
    ours = [weft.tensor(a, requires_grad=True) for a in arrays]
    theirs = [torch.tensor(a, requires_grad=True) for a in arrays]
    got, want = call(L, *ours), call(torch.linalg, *theirs)
    np.testing.assert_allclose(got.numpy(), want.detach().numpy(), rtol=1e-9, atol=1e-9)
    weight = RNG.normal(size=want.shape)
    (got * weft.tensor(weight)).sum().backward()
    (want * torch.tensor(weight)).sum().backward()
    for x, y in zip(ours, theirs, strict=True):
        assert x.grad is not None and y.grad is not None
        np.testing.assert_allclose(x.grad.numpy(), y.grad.numpy(), rtol=1e-7, atol=1e-8)


def test_functions_that_pytorch_lacks_are_numpys() -> None:
    a, b = WIDE[0], TALL[0]
    for got, want in (
        (L.trace(a, offset=1), np.trace(a, 1)),
        (L.trace(np.ones((2, 2), np.int8)), np.int32(2)),
        (L.outer(a[0], b[0]), np.outer(a[0], b[0])),
        (L.tensordot(a, b, axes=1), np.tensordot(a, b, 1)),
        (L.matrix_transpose(WIDE), np.swapaxes(WIDE, 1, 2)),
        (L.matrix_rank(np.stack([np.eye(3), np.ones((3, 3)), np.zeros((3, 3))])), [3, 1, 0]),
        (L.matrix_rank(np.diag([1, 0.1, 0.01]), rtol=0.05), 2),
        (L.slogdet(SQUARE).sign, np.linalg.slogdet(SQUARE)[0]),
        (L.qr(TALL, mode="complete").R, np.linalg.qr(TALL, "complete")[1]),
        (L.svd(WIDE).S, np.linalg.svd(WIDE)[1]),
        (L.matrix_power(np.array([[1, 1], [0, 1]], np.int32), 9), [[1, 9], [0, 1]]),
        (L.pinv(np.diag([1, 1e-3]), rtol=1e-2), np.diag([1.0, 0])),
        (L.vector_norm(np.arange(4)), np.sqrt(np.float32(14))),
    ):
        np.testing.assert_allclose(
            got.numpy(), want, rtol=1e-12 if got.dtype != weft.float32 else 1e-6
        )
    u, s, vh = L.svd(WIDE)
    assert u.shape == (2, 3, 3) and vh.shape == (2, 5, 5)
    np.testing.assert_allclose(((u * s.unsqueeze(-2)) @ vh[:, :3]).numpy(), WIDE)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_results_have_the_operands_dtype_and_place(dtype: str) -> None:
    x = weft.tensor(SYMMETRIC[0]).cast(dtype).to("interp")
    for made in (L.inv(x), L.det(x), *L.eigh(x), L.solve(x, x), L.cholesky(x), *L.svd(x)):
        assert made.dtype == x.dtype and made.device == x.device
    near = L.inv(x).numpy().astype(np.float64)
    want = np.linalg.inv(x.numpy().astype(np.float64))
    np.testing.assert_allclose(near, want, rtol=0.02, atol=0.01)
    assert L.matrix_rank(x).item() == 4


def test_second_derivatives() -> None:
    """Of `eigh` its other outputs are differentiated too."""
    a = (SYMMETRIC[0] + SYMMETRIC[0].T) / 2
    w = RNG.normal(size=(4, 4))

    def penalty(grad: Any, m: Any, x: Any, weight: Any) -> Any:
        values, vectors = m.eigh((x + x.mT) / 2)
        total = (values**3).sum() + (vectors**2 * weight).sum() + m.inv(x).sum()
        return (grad(total, x) ** 2).sum()

    ours = weft.tensor(a, requires_grad=True)
    one = penalty(lambda t, x: weft.grad(t, [x], create_graph=True)[0], L, ours, weft.tensor(w))
    one.backward()
    theirs = torch.tensor(a, requires_grad=True)
    two = penalty(
        lambda t, x: torch.autograd.grad(t, x, create_graph=True)[0],
        torch.linalg, theirs, torch.tensor(w),
    )  # fmt: skip
    two.backward()
    assert ours.grad is not None and theirs.grad is not None
    np.testing.assert_allclose(one.item(), two.item(), rtol=1e-9)
    np.testing.assert_allclose(ours.grad.numpy(), theirs.grad.numpy(), rtol=1e-6, atol=1e-7)


def test_mapped_functions_and_their_derivatives() -> None:
    """All examples at once; derivatives inside a map and around it."""
    stack = weft.tensor(np.stack([SYMMETRIC[0], SYMMETRIC[1], SYMMETRIC[0] + 1]))
    b = weft.tensor(RNG.normal(size=4))

    def loss(x: Any) -> Any:
        return L.slogdet(x).logabsdet + (L.solve(x, b) ** 2).sum() + L.eigvalsh(x).max()

    def each(fn: Any) -> np.ndarray:
        return np.stack([fn(x).numpy() for x in stack])

    for fn in (L.inv, L.det, L.cholesky, L.pinv, L.svdvals, lambda x: L.qr(x).R, loss):
        np.testing.assert_allclose(func.vmap(fn)(stack).numpy(), each(fn), rtol=1e-9, atol=1e-12)
    for slope in (func.grad(loss), func.jacrev(L.inv), func.jacfwd(L.inv), func.hessian(loss)):
        np.testing.assert_allclose(func.vmap(slope)(stack).numpy(), each(slope), rtol=1e-8)
    around = func.grad(lambda s: func.vmap(loss)(s).sum())(stack)
    np.testing.assert_allclose(around.numpy(), each(func.grad(loss)), rtol=1e-8)
    x = torch.tensor(SYMMETRIC[0])
    want = torch.func.jacrev(torch.linalg.inv)(x)
    np.testing.assert_allclose(func.jacfwd(L.inv)(stack[0]).numpy(), want.numpy(), atol=1e-9)


def test_the_determinant_of_a_singular_matrix_has_a_gradient() -> None:
    a = np.outer([1.0, 2, 3], [4.0, 5, 6])
    a[0, 0] += 1
    x, y = weft.tensor(a, requires_grad=True), torch.tensor(a, requires_grad=True)
    L.det(x).backward()
    torch.linalg.det(y).backward()
    assert x.grad is not None and y.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), y.grad.numpy(), atol=1e-9)


def test_products_and_norms_compile() -> None:
    a = weft.tensor(SQUARE.astype(np.float32))

    def fn(x: Any) -> Any:
        return (
            L.matrix_norm(x), L.matrix_norm(x, ord=1), L.matrix_power(x, 3), L.trace(x),
            L.diagonal(x), L.cross(x[..., :3], x[..., 1:]), L.vector_norm(x, axis=-1, ord=3),
        )  # fmt: skip

    for got, want in zip(weft.compile(fn)(a), fn(a), strict=True):
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-4, atol=1e-5)


def test_refusals_are_named() -> None:
    square = weft.tensor(SQUARE[0], requires_grad=True)
    with pytest.raises(TraceError, match=r"linalg\.inv needs the value"):
        weft.compile(lambda x: L.inv(x))(weft.tensor(SQUARE[0].astype(np.float32)))
    for call in (L.inv, L.det, L.cholesky, L.eigh, L.slogdet):
        with pytest.raises(ShapeError, match="square"):
            call(weft.ones((2, 3)))
    with pytest.raises(ShapeError, match="expected 4 rows"):
        L.solve(square, weft.ones((3, 1)))
    for call in (L.qr, L.svd, L.diagonal, L.matrix_norm):
        with pytest.raises(ShapeError, match="matrices"):
            call(weft.ones(3))
    with pytest.raises(UsageError, match="Singular"):
        L.inv(weft.zeros((2, 2)))
    with pytest.raises(UsageError, match="positive definite"):
        L.cholesky(-weft.eye(2))
    with pytest.raises(UsageError, match="mode='raw'"):
        L.qr(square, mode="raw")
    with pytest.raises(UsageError, match="ord=3"):
        L.matrix_norm(square, ord=3)
    with pytest.raises(ShapeError, match="expected 3"):
        L.cross(weft.ones(2), weft.ones(2))
    with pytest.raises(GradientError, match="full_matrices=True"):
        L.svd(weft.tensor(TALL, requires_grad=True)).U.sum().backward()
    with pytest.raises(GradientError, match="no gradient"):
        L.qr(weft.tensor(WIDE, requires_grad=True)).R.sum().backward()
