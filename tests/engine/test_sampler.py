"""The sampler against transformers' logits processors, and its random streams."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from weft.core.errors import UsageError
from weft.engine.sampler import Sampling, choose, distribution, draw, generator, penalise

LOGITS = st.lists(st.floats(-20, 20, width=32), min_size=2, max_size=40).map(
    lambda x: np.array(x, np.float32)
)


def test_greedy_takes_the_lowest_of_equals() -> None:
    assert choose(np.array([1, 3, 3, 2], np.float32), (), Sampling(), None) == 1


@settings(max_examples=100, deadline=None)
@given(LOGITS, st.integers(0, 45), st.floats(0.05, 1.0), st.floats(0.1, 3.0))
def test_distribution_equals_transformers(
    logits: np.ndarray, top_k: int, top_p: float, temperature: float
) -> None:
    import torch
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    logits = np.unique(logits)[::-1].copy()  # which of equal logits survives is ours to define
    scores = torch.tensor(logits, dtype=torch.float64)[None]
    ids = torch.zeros((1, 1), dtype=torch.long)
    scores = TemperatureLogitsWarper(temperature)(ids, scores)
    if top_k:
        scores = TopKLogitsWarper(top_k)(ids, scores)
    scores = TopPLogitsWarper(top_p)(ids, scores) if top_p < 1 else scores
    want = torch.softmax(scores, -1)[0].numpy()
    chosen, p = distribution(logits, Sampling(temperature, top_k, top_p))
    got = np.zeros(len(logits))
    got[chosen] = p / p.sum()
    np.testing.assert_allclose(got, want, atol=1e-6)


@settings(max_examples=50, deadline=None)
@given(LOGITS, st.floats(0.5, 2.0), st.data())
def test_penalty_equals_transformers(logits: np.ndarray, penalty: float, data) -> None:
    import torch
    from transformers import RepetitionPenaltyLogitsProcessor

    history = data.draw(st.lists(st.integers(0, len(logits) - 1), min_size=1, max_size=8))
    want = RepetitionPenaltyLogitsProcessor(penalty)(
        torch.tensor([history]), torch.tensor(logits)[None].clone()
    )[0].numpy()
    np.testing.assert_allclose(penalise(logits, history, penalty), want, rtol=1e-6, atol=1e-44)


def test_top_k_among_equals_keeps_the_lowest_ids() -> None:
    ids, _ = distribution(np.array([1, 2, 2, 2, 0], np.float32), Sampling(1.0, top_k=2))
    assert sorted(ids) == [1, 2]


@pytest.mark.parametrize("top_p", [0.1, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("spread", [0.0, 0.01, 3.0])
def test_large_vocabularies_give_what_a_full_sort_gives(top_p: float, spread: float) -> None:
    rng = np.random.default_rng(0)
    logits = np.round(rng.standard_normal(5000) * spread, 2).astype(np.float32)  # with ties
    ids, p = distribution(logits, Sampling(1.0, top_p=top_p))
    whole = np.exp(logits.astype(np.float64) - logits.max())
    order = np.argsort(-whole, kind="stable")
    sums = np.cumsum(whole[order])
    keep = sums - whole[order] < top_p * whole.sum()
    assert abs(len(ids) - keep.sum()) <= 1
    np.testing.assert_array_equal(ids, order[: len(ids)])
    np.testing.assert_array_equal(p, whole[ids])


SHARES = {
    "equal": lambda rng, n: np.ones(n),  # every border is a sum that is exact
    "apart": lambda rng, n: np.exp(rng.standard_normal(n) * 20),
    "few": lambda rng, n: rng.random(n) * (rng.random(n) < 0.01) + (np.arange(n) == n // 2),
    "tiny": lambda rng, n: rng.random(n) * 5e-324,
    "usual": lambda rng, n: np.exp(rng.standard_normal(n)),
}


@pytest.mark.parametrize("shares", SHARES)
@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6000), st.integers(0, 2**32), st.data())
def test_a_draw_is_what_adding_one_by_one_gives(shares: str, n: int, seed: int, data) -> None:
    p = SHARES[shares](np.random.default_rng(seed), n)
    p[0] = max(p[0], 5e-324)
    cumulative = np.cumsum(p)
    borders = st.integers(0, n - 1).map(lambda i: float(cumulative[i] / cumulative[-1]))
    uniforms = st.floats(0, 1, exclude_max=True) | borders.filter(lambda u: u < 1)
    for uniform in data.draw(st.lists(uniforms, max_size=20)):
        above = np.flatnonzero(cumulative > uniform * cumulative[-1])
        want = above[0] if len(above) else np.flatnonzero(p)[-1]
        assert draw(p, uniform) == want


def test_frequencies_follow_the_probabilities() -> None:
    logits = np.log(np.array([0.1, 0.2, 0.3, 0.4], np.float32))
    stream = generator(7, 0)
    drawn = [choose(logits, (), Sampling(1.0), stream) for _ in range(20_000)]
    counts = np.bincount(drawn, minlength=4) / len(drawn)
    np.testing.assert_allclose(counts, [0.1, 0.2, 0.3, 0.4], atol=0.015)


def test_streams_depend_on_seed_and_index_only() -> None:
    assert generator(3, 1).random() == generator(3, 1).random()
    values = {generator(s, i).random() for s in range(4) for i in range(4)}
    assert len(values) == 16


def test_nan_is_chosen_so_that_the_caller_sees_it() -> None:
    logits = np.array([1, np.nan, 5], np.float32)
    for how in (Sampling(), Sampling(1.0), Sampling(1.0, top_k=2, top_p=0.5)):
        assert choose(logits, (), how, generator(0, 0)) == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"temperature": -1}, "temperature is -1"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"temperature": float("inf")}, "temperature is inf"),
        ({"top_k": -1}, "top_k is -1"),
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"top_p": 1.5}, "top_p is 1.5"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0"),
    ],
)
def test_bad_options(options: dict, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Sampling(**options)


@pytest.mark.parametrize("seed", [-1, 1 << 64, 1.5, True, "x"])
def test_bad_seeds(seed) -> None:
    with pytest.raises(UsageError, match="seed is"):
        generator(seed, 0)


TINY, HUGE, INF = 5e-324, 1.7e308, float("inf")
NO_NUMBERS = [float("nan"), INF, -INF, -1e-320, -1, 10**400, None, "1", True]


@pytest.mark.parametrize("temperature", [TINY, 1e-320, 1e-308, 1e-30, 1e-5, 1e30, HUGE])
@pytest.mark.parametrize("top_p", [TINY, 1e-320, 0.5, 1.0])
@pytest.mark.parametrize("top_k", [0, 1, 3, 10**30])
def test_any_temperature_gives_exact_shares(temperature: float, top_p: float, top_k: int) -> None:
    """Against exact arithmetic: exp((x - max) / T) with fractions for the quotient."""
    from fractions import Fraction

    for logits in ([3.0, 1.0, 3.0, -2.0], [0.0, -0.0, 1e-45, -1e-45], [-3e38, 3e38, 0.0, 1.0]):
        x = np.array(logits, np.float32)
        how = Sampling(temperature, top_k, top_p)
        with np.errstate(all="raise", under="ignore"):
            ids, p = distribution(x, how)
            token = choose(x, (), how, generator(3, 0))
        apart = [(Fraction(float(v)) - Fraction(float(x.max()))) / Fraction(temperature) for v in x]
        share = np.array([np.exp(float(max(q, Fraction(-10000)))) for q in apart])
        np.testing.assert_allclose(p, share[ids], rtol=1e-12)
        assert share[token] > 0 and np.isfinite(p).all() and p.max() == 1.0
        if top_p < 1e-300 or top_k == 1:
            assert share[token] == 1.0


@pytest.mark.parametrize("penalty", [2.0**-126, 1e-30, 0.5, 1.0, 1e30, 2.0**126])
def test_any_penalty_keeps_the_order_of_exact_arithmetic(penalty: float) -> None:
    from fractions import Fraction

    x = np.array([3e38, 2.5e38, -3e38, 1e-40, -1e-40, 0.0, 5.0, -np.inf], np.float32)
    history = [0, 1, 2, 3, 4]
    got = penalise(x, history, penalty)
    assert np.isfinite(got[:-1]).all() and got[-1] == -np.inf
    p = Fraction(penalty)
    exact = [Fraction(float(v)) for v in x[:-1]]
    exact = [(v / p if v > 0 else v * p) if i in history else v for i, v in enumerate(exact)]
    best = max(range(7), key=lambda i: exact[i])
    assert choose(x, history, Sampling(repetition_penalty=penalty), None) == best
    hot = Sampling(TINY, repetition_penalty=penalty)
    assert choose(x, history, hot, generator(0, 0)) == best


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((n, v) for n in ("temperature", "top_p", "repetition_penalty") for v in NO_NUMBERS),
        ("repetition_penalty", 1e-320),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", 1e300),
        ("top_p", 0.0),
        ("top_p", 1.0000001),
        ("top_k", -1),
        ("top_k", 1.0),
        ("top_k", True),
        ("temperature", np.complex64(1)),
    ],
)  # fmt: skip
def test_other_values_are_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(UsageError, match=f"^{name} is ") as caught:
        Sampling(**{name: value})  # type: ignore[arg-type]
    assert len(str(caught.value)) < 200
