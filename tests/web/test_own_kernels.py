"""Kernels of one's own in a page: the player runs their WGSL and their WebAssembly."""

import numpy as np
import pytest
from own_kernels import double, normal, product, softmax, softmax_of
from page_device import PageDevice

import weft
from weft.errors import DeviceError


@pytest.mark.parametrize("target", ["wasm", "webgpu"])
def test_the_player_runs_them(target):
    try:
        device = PageDevice(target)
    except DeviceError as error:
        pytest.skip(str(error))
    a, w = normal(5, 12), normal(12, 9)
    compiled = weft.compile(lambda a, w: softmax(product(double(a), w)), device=device)
    got = compiled(a, w).numpy()
    np.testing.assert_allclose(got, softmax_of(2 * a.astype(np.float64) @ w), rtol=2e-5, atol=1e-7)
