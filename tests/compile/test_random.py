"""Random graphs, compiled and run, against the oracle."""

import numpy as np
import pytest
from graphs import check, random_graph
from rows import few

from weft.backends.registry import get


@pytest.mark.parametrize("seed", few(range(40), *range(6)))
def test_random_graph_on_cpu(seed):
    check(random_graph(np.random.default_rng(seed)), get("cpu"), tol=1e-4)


@pytest.mark.parametrize("spec", ["interp:webgpu", "interp:cuda", "interp:cpu-avx2"])
@pytest.mark.parametrize("seed", range(100, 106))
def test_random_graph_on_interpreter(seed, spec):
    check(random_graph(np.random.default_rng(seed), 8), get(spec), tol=1e-4)
