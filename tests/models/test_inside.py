"""Values inside a decoder: read against transformers, changed against its hooks."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
from adapter_kit import adapter
from present import opened
from rows import by_turns, covering, few

import weft
from weft import Edit
from weft.core.errors import UsageError
from weft.graph.text import to_text
from weft.models import load

IDS = [5, 6, 7, 8, 200, 3, 9, 40, 41, 1, 2, 3]
FAMILIES = ["llama3", "gpt2", "gemma2", "gpt_oss", "qwen3_moe", "lfm2", "gemma4", "phi"]
PLACES = ["embed", "layers.*.out", "norm", "layers.*.attn.weights"]


def reference(theirs, ids):
    import torch

    with torch.no_grad():
        out = theirs(torch.tensor([ids]), output_hidden_states=True, output_attentions=True)
    hidden = np.stack([x[0].float().numpy() for x in out.hidden_states])
    return hidden, [x[0].float().numpy() for x in out.attentions if x is not None]


@pytest.mark.parametrize(
    ("name", "device"),
    few(
        itertools.product(FAMILIES, ["oracle", "cpu"]),
        *((name, "oracle") for name in FAMILIES),
        ("llama3", "cpu"),
        ("gemma2", "cpu"),
        ("lfm2", "cpu"),
        ("gpt_oss", "cpu"),
    ),
)
def test_hidden_states_and_attention_are_transformers(pairs, name, device) -> None:
    ours, theirs = pairs(name, device)
    hidden, maps = reference(theirs, IDS)
    found = ours.inspect(IDS, PLACES)
    assert np.allclose(found.hidden_states, hidden, rtol=1e-4, atol=3e-5 * abs(hidden).max())
    assert len(found.attentions) == len(maps)
    for own, their in zip(found.attentions, maps):
        assert np.allclose(own, their, atol=1e-5)
    assert np.array_equal(found.logits, ours.logits(IDS))


def test_a_text_of_several_steps(pairs) -> None:
    """More rows than a step has, and a context that is no power of two."""
    ours, theirs = pairs("gemma2")
    ids = [(7 * i) % 290 for i in range(93)]
    hidden, maps = reference(theirs, ids)
    found = ours.inspect(ids, PLACES)
    assert np.allclose(found.hidden_states, hidden, rtol=1e-4, atol=1e-4)
    assert all(np.allclose(a, b, atol=1e-5) for a, b in zip(found.attentions, maps))
    assert np.array_equal(found.logits, ours.logits(ids))


def test_an_int8_cache_shows_what_attention_sees(pairs) -> None:
    ours, theirs = pairs("llama3", cache="int8")
    _, maps = reference(theirs, IDS)
    found = ours.inspect(IDS, "layers.*.attn.weights")
    assert all(np.allclose(a, b, atol=0.03) for a, b in zip(found.attentions, maps))
    # the same weights applied to the values give what the heads found
    named = ours.inspect(IDS, ["layers.0.attn.*"])
    v = named["layers.0.attn.v"].repeat(2, 1)
    heads = np.einsum("hqk,khd->qhd", named["layers.0.attn.weights"], v)
    assert np.allclose(heads, named["layers.0.attn.heads"], atol=0.05)


@pytest.mark.parametrize(
    "options",
    few(
        [
            {"dtype": "bfloat16"},
            {"dtype": "float16"},
            {"quant": "int4"},
            {"quant": "int8"},
            {"cache": "float16"},
        ],
        {"quant": "int4"},
        {"cache": "float16"},
    ),
    ids=str,
)
def test_narrow_and_packed_weights(pairs, options) -> None:
    ours, _ = pairs("llama3", **options)
    found = ours.inspect(IDS, [*ours.places()])
    assert np.array_equal(found.logits, ours.logits(IDS))
    last = found[f"layers.{ours.config.layers - 1}.out"]
    assert np.array_equal(ours.unembed(last), found.logits)
    for place in ("embed", "layers.0.attn.heads", "layers.1.o.in", "layers.1.attn.q"):
        nothing = Edit.add(place, 0 * found[place][0], at=slice(3, None))
        same = [Edit.replace(place, found[place]), nothing]
        for edit in same:
            assert np.array_equal(ours.inspect(IDS, (), edit).logits, found.logits), place
    edit = Edit.add("layers.1.out", np.ones(ours.config.hidden))
    ids = [*IDS, *ours.generate(IDS, 6, edits=edit).ids]
    best = ours.inspect(ids, (), edit).logits.argmax(1)[len(IDS) - 1 : -1]
    assert best.tolist() == ids[len(IDS) :]


@pytest.mark.parametrize("device", ["oracle", "cpu"])
def test_adapters(pairs, tmp_path, device) -> None:
    """The values are those under the adapter."""
    ours, _ = pairs("llama3", device)
    folder = adapter(tmp_path / "one", ours.folder, ["q_proj", "down_proj"], 2, 1)
    own = load(ours.folder, device=device, context=96, adapters={"one": folder})
    found = own.inspect(IDS, [*own.places()], adapter="one")
    plain = own.inspect(IDS, [*own.places()])
    assert np.array_equal(plain.logits, ours.logits(IDS))
    assert not np.array_equal(found["layers.0.q.out"], plain["layers.0.q.out"])
    edit = Edit.add("norm", np.zeros(own.config.hidden))
    text = own.generate(IDS, 8, adapter="one")
    assert own.generate(IDS, 8, adapter="one", edits=edit) == text
    assert found.logits[-1].argmax() == text.ids[0]


@pytest.mark.parametrize(
    "name",
    few(["llama3", "qwen3_moe", "qwen3_next", "deepseek_v3", "cohere"], "llama3", "qwen3_moe"),
)
def test_every_place_can_be_read(pairs, name) -> None:
    ours, _ = pairs(name)
    found = ours.inspect(IDS, [*ours.places()])
    assert [*found] == ["logits", *(n for n in ours.places() if n != "logits")]
    for place, shape in ours.places().items():
        if not place.endswith("attn.weights"):
            assert found[place].shape == (len(IDS), *shape), place
    assert np.array_equal(found.logits, ours.logits(IDS))
    parts = found["embed"] + found["layers.0.attn.out"]
    if name == "llama3":
        assert np.allclose(parts, found["layers.0.mid"], atol=1e-6)


def changed(theirs, layer, change):
    """Returns transformers' logits with a function applied to a layer's result."""
    import torch

    def hook(module, given, out):
        x = out[0] if isinstance(out, tuple) else out
        x = change(x)
        return (x, *out[1:]) if isinstance(out, tuple) else x

    handle = theirs.model.layers[layer].register_forward_hook(hook)
    try:
        with torch.no_grad():
            return theirs(torch.tensor([IDS])).logits[0].float().numpy()
    finally:
        handle.remove()


@pytest.mark.parametrize("device", ["oracle", "cpu"])
def test_steering_is_transformers_hook(pairs, device) -> None:
    import torch

    ours, theirs = pairs("llama3", device)
    vector = np.linspace(-1, 1, ours.config.hidden).astype(np.float32)
    expected = changed(theirs, 1, lambda x: x + torch.tensor(vector))
    found = ours.inspect(IDS, "layers.1.out", edits=[Edit.add("layers.1.out", vector)])
    assert np.allclose(found.logits, expected, rtol=1e-4, atol=1e-4)
    plain = ours.inspect(IDS, "layers.1.out")
    assert np.array_equal(found["layers.1.out"], plain["layers.1.out"] + vector)


@pytest.mark.parametrize("device", ["oracle", "cpu"])
def test_patching_is_transformers_hook(pairs, device) -> None:
    """Values of another run at two positions; the positions before keep their bits."""
    import torch

    ours, theirs = pairs("llama3", device)
    other = ours.inspect(IDS[::-1], "layers.0.out")["layers.0.out"]

    def put(x):
        x = x.clone()
        x[0, [4, 7]] = torch.tensor(other[[4, 7]].copy())
        return x

    expected = changed(theirs, 0, put)
    edit = Edit.replace("layers.0.out", other[[4, 7]], at=[4, 7])
    found = ours.inspect(IDS, edits=edit)
    assert np.allclose(found.logits, expected, rtol=1e-4, atol=1e-4)
    plain = ours.inspect(IDS)
    assert np.array_equal(found.logits[:4], plain.logits[:4])
    assert not np.array_equal(found.logits[4:], plain.logits[4:])
    rest = [i for i in range(len(IDS)) if i not in (4, 7)]
    assert np.array_equal(found["layers.0.out"][rest], plain["layers.0.out"][rest])
    assert np.array_equal(found["layers.0.out"][[4, 7]], other[[4, 7]])


@pytest.mark.parametrize("name", few(["llama3", "gemma4", "lfm2"], "llama3"))
def test_a_models_own_values_change_nothing(pairs, name) -> None:
    """Replacing any value by itself, and adding nothing, keeps every bit."""
    ours, _ = pairs(name)
    plain = ours.inspect(IDS, [*ours.places()])
    names = [n for n in ours.places() if not n.endswith("attn.weights")]
    for place in names[:: len(names) // 6]:
        found = ours.inspect(IDS, edits=[Edit.replace(place, plain[place])])
        assert np.array_equal(found.logits, plain.logits), place
    nothing = Edit.add("layers.1.attn.out", np.zeros(ours.config.hidden), at=slice(2, None))
    assert np.array_equal(ours.inspect(IDS, edits=[nothing]).logits, plain.logits)


@pytest.mark.parametrize(("name", "device"), covering(["llama3", "gemma2"], ["oracle", "cpu"]))
def test_generation_with_edits(pairs, name, device) -> None:
    """Each token is the largest logit of a whole pass with the same edits."""
    ours, _ = pairs(name, device)
    rng = np.random.default_rng(3)
    vector = rng.standard_normal(ours.config.hidden)
    edits = [
        Edit.add("layers.1.out", 3 * vector),
        Edit.replace("layers.0.attn.out", np.zeros(ours.config.hidden), at=slice(5, None)),
        Edit.add("norm", vector, at=range(3, 20)),
    ]
    plain = ours.generate([IDS, IDS[:5]], 12)
    found = ours.generate([IDS, IDS[:5]], 12, edits=edits)
    assert found != plain
    for prompt, one in zip((IDS, IDS[:5]), found):
        ids = [*prompt, *one.ids]
        logits = ours.inspect(ids, (), edits).logits
        assert one.ids == tuple(logits.argmax(1)[len(prompt) - 1 : -1].tolist())
    assert ours.generate([IDS, IDS[:5]], 12) == plain
    # other values of the same shapes, then the first again; a stream; drafts; sampling
    weaker = [Edit.add(e.place, 0.1 * e.values, e.at) for e in (edits[0], edits[2])]
    other = ours.generate(IDS, 12, edits=weaker)
    alone = ours.generate(IDS, 12, edits=edits)
    assert alone == found[0] and other != alone
    stream = ours.generate([IDS, IDS[:5]], 12, edits=edits, stream=True)
    next(stream)
    assert ours.generate(IDS, 12, edits=weaker, draft=True) == other
    assert [*stream] and stream.results == found
    drawn = ours.generate(IDS, 6, edits=edits, n=2, temperature=1.0, seed=0)
    assert drawn == ours.generate(IDS, 6, edits=edits, n=2, temperature=1.0, seed=0)


@pytest.mark.parametrize(
    ("name", "device"),
    by_turns(["llama3", "gpt2", "gemma2", "cohere", "qwen3_moe"], ["oracle", "cpu"]),
)
def test_unembedding_the_last_layer_gives_the_logits(pairs, name, device) -> None:
    ours, _ = pairs(name, device)
    ids = [(7 * i) % 200 for i in range(90)]
    last = f"layers.{ours.config.layers - 1}.out"
    assert np.array_equal(ours.unembed(ours.inspect(ids, last)[last]), ours.logits(ids))
    with pytest.raises(UsageError, match=r"expected \[N, "):
        ours.unembed(np.zeros(3))


def test_vectors_of_texts_by_layer(pairs) -> None:
    ours, theirs = pairs("llama3")
    texts = [IDS, IDS[:5]]
    hidden = [reference(theirs, ids)[0] for ids in texts]
    for layer, at in ((0, 1), (1, 2), (None, -1)):
        means = np.stack([x[at].mean(0) for x in hidden])
        assert np.allclose(ours.embed(texts, layer), means, rtol=1e-4, atol=1e-4)
        last = np.stack([x[at][-1] for x in hidden])
        assert np.allclose(ours.embed(texts, layer, "last"), last, rtol=1e-4, atol=1e-4)
    assert ours.embed(IDS, 1).shape == (1, ours.config.hidden)
    for wrong in ({"layer": 9}, {"layer": -1}, {"pooling": "max"}):
        with pytest.raises(UsageError):
            ours.embed(IDS, **wrong)


def test_on_a_gpus_driver(pairs) -> None:
    """Vulkan gives what the CPU gives, and reading keeps its bits too."""
    opened("vulkan")
    ours, _ = pairs("llama3")
    other, _ = pairs("llama3", "vulkan")
    expected, found = (model.inspect(IDS, PLACES) for model in (ours, other))
    for place, value in expected.items():
        assert np.allclose(found[place], value, atol=1e-5 * max(1, abs(value).max())), place
    assert np.array_equal(found.logits, other.logits(IDS))
    edit = Edit.add("layers.1.out", np.ones(ours.config.hidden))
    assert other.generate(IDS, 6, edits=edit).ids == ours.generate(IDS, 6, edits=edit).ids


def texts(model):
    """Returns the graphs as text, without the lines of source that made them."""
    return [re.sub(r" +# .*", "", to_text(graph)) for graph in model.graphs().values()]


def test_programs_of_untouched_models_stay(pairs) -> None:
    ours, _ = pairs("llama3")
    before = texts(ours)
    ours.inspect(IDS, "layers.*.attn.weights", Edit.add("embed", np.ones(ours.config.hidden)))
    assert texts(ours) == before


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda m: m.inspect(IDS, "layers.9.out"), "unknown place 'layers.9.out'"),
        (lambda m: m.inspect(IDS, ["embed", 3]), "unknown place 3"),
        (lambda m: m.inspect(IDS, edits=["embed"]), "expected weft.Edit.add"),
        (lambda m: m.inspect(IDS, edits=Edit.add("layer.0", [1.0])), "unknown place 'layer.0'"),
        (lambda m: m.inspect(IDS, edits=Edit.add("embed", [1.0])), "expected [32], or [K, 32]"),
        (lambda m: Edit.add("embed", "x"), "not an array of numbers"),
        (lambda m: Edit.add("embed", [np.nan] * 32), "NaN"),
        (lambda m: Edit.add("embed", np.ones(32), at=-1), "positions -1"),
        (lambda m: Edit.add("embed", np.ones(32), at=[1, 1]), "name one twice"),
        (lambda m: Edit.add("embed", np.ones(32), at=slice(-3, None)), "positions slice"),
        (
            lambda m: m.generate(IDS, 2, edits=Edit.add("embed", np.ones((2, 32)), at=[1, 2, 3])),
            "2 values at embed for 3 positions",
        ),
        (
            lambda m: m.inspect(IDS, edits=Edit.replace("layers.0.attn.weights", np.ones(4))),
            "can be read only",
        ),
        (lambda m: m.generate(IDS, 2, num_beams=2, edits=Edit.add("embed", np.ones(32))), "edits"),
        (lambda m: m.inspect(IDS)["layers.0.attn.in"], "was not read"),
        (lambda m: m.inspect([]), "empty"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(pairs, make, words) -> None:
    ours, _ = pairs("llama3")
    with pytest.raises(UsageError) as caught:
        make(ours)
    assert words in str(caught.value)


def test_compiled_files_are_refused(tmp_path) -> None:
    from weft.models.run.saved import save

    box = weft.load("box", device="cpu", context=64, max_batch=1)
    save(box, tmp_path / "box.weft", "cpu", box.device.caps, {}, False)
    fixed = weft.load(tmp_path / "box.weft", device="cpu")
    with pytest.raises(UsageError, match="the file fixes its Programs"):
        fixed.places()
