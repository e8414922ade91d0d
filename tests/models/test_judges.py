"""Classifiers, rerankers and taggers against transformers and sentence-transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_zoo import DECODERS, ENCODERS
from rows import covering, few

from weft.core.errors import LimitError, ModelError, UsageError
from weft.models import load
from weft.models.run.judge import Judge

TEXTS = [
    "the quick brown fox",
    "a loom",
    "weaving needs a warp and a weft, and a loom to hold them",
    "",
]
PAIRS = [(TEXTS[0], TEXTS[2]), (TEXTS[1], TEXTS[0]), (TEXTS[2], "a"), ("", TEXTS[1])]
LONG = [("fox " * 60, "a loom"), ("a loom", "fox " * 60), ("dog " * 50, "fox " * 40)]
ENCODER_JUDGES = [
    "bert", "roberta", "distilbert", "electra", "albert", "mpnet", "modernbert", "nomic", "gte",
    "jina-v3", "deberta", "deberta-v3",
]  # fmt: skip
DECODER_JUDGES = ["qwen3", "llama2", "gemma2", "mistral", "gpt2"]


TYPED = {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}


def write_pair_tokenizer(folder: Path, **config: Any) -> None:
    """One token per letter; a pair is <s> A </s> B </s>, the second part of type 1."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = ["<s>", "</s>", "<unk>"]
    letters = [chr(n) for n in range(32, 127)]
    table = {token: i for i, token in enumerate(special + letters)}
    raw = Tokenizer(models.WordLevel(table, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    raw.add_special_tokens(special)
    raw.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B:1 </s>:1",
        special_tokens=[("<s>", 0), ("</s>", 1)],
    )  # fmt: skip
    PreTrainedTokenizerFast(
        tokenizer_object=raw, bos_token="<s>", eos_token="</s>", unk_token="<unk>",
        pad_token="</s>", model_max_length=100, **config,
    ).save_pretrained(folder)  # fmt: skip


def written(
    name: str, folder: Path, kind: str = "SequenceClassification", labels: int = 3, **changed: Any
) -> Any:
    """Writes a judge of a family with random weights; transformers' model."""
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    made, arguments = (DECODERS | ENCODERS)[name]
    more = {"num_labels": labels, "pad_token_id": 1, **changed}
    typed = name in ("bert", "nomic", "gte", "electra")
    more |= {"type_vocab_size": 2} if typed else {}
    config = getattr(transformers, made)(**arguments | more)
    torch.manual_seed(0)
    auto = getattr(transformers, f"AutoModelFor{kind}")
    model = auto.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * (0.1 if parameter.ndim == 1 else 0.15))
    model.save_pretrained(folder)
    write_pair_tokenizer(folder, **(TYPED if typed else {}))
    return model


def ours(folder: Path, device: str = "oracle") -> Judge:
    found = load(folder, device=device)
    assert isinstance(found, Judge)
    return found


def logits_of(model: Any, folder: Path, texts: list[Any]) -> np.ndarray:
    """transformers' logits, text by text."""
    import torch
    from transformers import AutoTokenizer

    tokenizer, out = AutoTokenizer.from_pretrained(folder), []
    for text in texts:
        given = (text,) if isinstance(text, str) else text
        inputs = tokenizer(*given, truncation=True, max_length=100, return_tensors="pt")
        with torch.no_grad():
            out.append(model(**inputs).logits[0].float().numpy())
    return np.stack(out)


def close(got: Any, want: Any) -> None:
    np.testing.assert_allclose(got, want, atol=3e-5, rtol=3e-4)


@pytest.mark.parametrize("device", few(["oracle", "cpu"], "oracle"))
@pytest.mark.parametrize("name", [*ENCODER_JUDGES, *DECODER_JUDGES])
def test_texts_and_pairs(name: str, device: str, tmp_path: Path) -> None:
    reference = written(name, tmp_path)
    model = ours(tmp_path, device)
    texts = [*TEXTS, *PAIRS, *LONG]
    close(model.logits_of(texts), logits_of(reference, tmp_path, texts))
    assert model.labels == ("LABEL_0", "LABEL_1", "LABEL_2")


@pytest.mark.parametrize(
    ("labels", "problem"),
    [(3, None), (1, None), (3, "multi_label_classification"), (1, "regression"), (2, None)],
)
def test_labels_as_the_pipeline_gives_them(labels: int, problem: Any, tmp_path: Path) -> None:
    from transformers import pipeline

    names = {i: f"name {i}" for i in range(labels)}
    written("bert", tmp_path, labels=labels, problem_type=problem, id2label=names)
    theirs = pipeline("text-classification", model=str(tmp_path), device="cpu")
    want = theirs(TEXTS[:3], top_k=None)
    got = ours(tmp_path).classify(TEXTS[:3])
    for one, other in zip(got, want):
        assert [x.label for x in one] == [x["label"] for x in other]
        close([x.score for x in one], [x["score"] for x in other])
    assert [len(x) for x in ours(tmp_path).classify(TEXTS, top=1)] == [1] * 4


@pytest.mark.parametrize(
    "name, function",
    covering(["bert", "roberta", "modernbert", "qwen3"], [None, "Identity", "Tanh", "old"]),
)
def test_rerankers_as_sentence_transformers(
    name: str, function: str | None, tmp_path: Path
) -> None:
    """From folders of transformers, and from those that the library saves or saved."""
    from sentence_transformers import CrossEncoder
    from torch import nn

    written(name, tmp_path, labels=1)
    theirs = CrossEncoder(str(tmp_path), device="cpu")
    if function == "old":
        path = tmp_path / "config.json"
        said = {"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}
        path.write_text(json.dumps(json.loads(path.read_text()) | said))
    elif function is not None:
        theirs.activation_fn = getattr(nn, function)()
        tmp_path /= "saved"
        theirs.save_pretrained(str(tmp_path))
    theirs, model = CrossEncoder(str(tmp_path), device="cpu"), ours(tmp_path)
    close(model.score(PAIRS), theirs.predict(PAIRS))
    documents = [*TEXTS[:3], "foxes", "warp"]
    want = theirs.rank("a fox", documents, top_k=4)
    got = model.rerank("a fox", documents, top=4)
    assert [x.index for x in got] == [x["corpus_id"] for x in want]
    close([x.score for x in got], [x["score"] for x in want])


TAGS = ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]


@pytest.mark.parametrize("name", ["bert", "roberta", "distilbert", "modernbert", "deberta-v3",
                                  "electra", "llama2"])  # fmt: skip
def test_taggers_as_the_pipeline(name: str, tmp_path: Path) -> None:
    from transformers import pipeline

    named = {"id2label": dict(enumerate(TAGS))}
    written(name, tmp_path, "TokenClassification", labels=5, **named)
    model = ours(tmp_path)
    for grouped, strategy in ((True, "simple"), (False, "none")):
        theirs = pipeline("token-classification", model=str(tmp_path), device="cpu",
                          aggregation_strategy=strategy)  # fmt: skip
        for text in TEXTS[:3]:
            (got,) = model.entities(text, grouped=grouped)
            want = theirs(text)
            kind = "entity_group" if grouped else "entity"
            assert [(x.label, x.start, x.end) for x in got] == [
                (x[kind], x["start"], x["end"]) for x in want
            ]
            close([x.score for x in got], [float(x["score"]) for x in want])


def test_wrong_use(tmp_path: Path) -> None:
    written("bert", tmp_path)
    model = ours(tmp_path)
    with pytest.raises(UsageError, match=r"has 3 labels; a reranker has one: use classify"):
        model.rerank("a", ["b"])
    with pytest.raises(UsageError, match=r"labels whole texts: use classify"):
        model.entities("a")
    with pytest.raises(LimitError, match=r"text 1 has 162 tokens; the model takes 100"):
        model.classify(["a", "b" * 160], truncate=False)
    for top in (0, -1, True, 1.5):
        with pytest.raises(UsageError, match="top is"):
            model.classify("a", top=top)  # type: ignore[arg-type]
    for wrong in ([5], [("a", "b", "c")], [("a", 5)], ["\ud800"]):
        with pytest.raises(UsageError):
            model.classify(wrong)  # type: ignore[arg-type]
    assert model.classify([]) == [] and len(model.classify(("a", "b"))) == 1
    for call in (model.generate, model.embed, model.logits, model.chat_ids):
        with pytest.raises(UsageError, match="is a judge of texts: use classify"):
            call([1])


def test_a_reranker_of_nothing_and_of_ten_thousand(tmp_path: Path) -> None:
    """Documents of all lengths go through in batches of a few shapes, each once."""
    written("bert", tmp_path, labels=1)
    model = ours(tmp_path)
    assert model.rerank("a", []) == []
    with pytest.raises(UsageError, match="documents is one text"):
        model.rerank("a", "b c")
    seen: list[tuple[int, ...]] = []
    inner = model._hidden

    def counted(ids: np.ndarray, *rest: np.ndarray) -> np.ndarray:
        seen.append(ids.shape)
        return np.zeros((*ids.shape, 32), np.float32)

    model._hidden = counted
    documents = ["x" * (i * i % 190) for i in range(10_000)]
    assert len(model.rerank("a", documents)) == 10_000
    assert max(a * b for a, b in seen) <= 2048 and len(set(seen)) <= 10
    model._hidden = inner


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"id2label": {"0": "a", "2": "b"}}, "id2label does not name 0 to 1"),
        ({"id2label": {"0": 5}}, "id2label does not name 0 to 0"),
        ({"id2label": {"0": "a"}}, r"'classifier.weight' has shape \[3, 32\]"),
        ({"id2label": None, "num_labels": 0}, "num_labels is 0"),
        ({"sbert_ce_default_activation_function": "os.system"}, "os.system"),
        ({"architectures": ["T5ForSequenceClassification"], "model_type": "t5"}, "d_model|no head"),
        ({"model_type": "opt"}, "weft judges texts with bert"),
    ],
)
def test_hostile_configs(config: dict[str, Any], said: str, tmp_path: Path) -> None:
    written("bert", tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    with pytest.raises(ModelError, match=said):
        ours(tmp_path)


TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'system' %}<s>{{ m.content }}{% endif %}"
    "{% if m.role == 'query' %}Q: {{ m.content }} {% endif %}"
    "{% if m.role == 'document' %}D: {{ m.content }}{% endif %}{% endfor %}</s>answer "
)


def write_yes_no(folder: Path, name: str = "qwen3", template: str | None = TEMPLATE) -> None:
    """A decoder that answers, with a tokenizer of letters and the tokens yes, no, <|im_start|>."""
    from model_zoo import write_model
    from tokenizers import Tokenizer

    write_model(name, folder, changed={"pad_token_id": 1, "max_position_embeddings": 1024})
    write_pair_tokenizer(folder)
    path = folder / "tokenizer.json"
    raw = Tokenizer.from_file(str(path))
    raw.add_special_tokens(["yes", "no", "<|im_start|>", "<|im_end|>"])
    raw.save(str(path))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    more = {"chat_template": template} if template else {}
    kept = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 1024}
    (folder / "tokenizer_config.json").write_text(json.dumps(config | more | kept))


@pytest.mark.parametrize("false", [True, False])
@pytest.mark.parametrize("prompt", [None, "find foxes"])
def test_a_language_model_that_says_yes_or_no(
    false: bool, prompt: str | None, tmp_path: Path
) -> None:
    """As sentence-transformers' LogitScore, through a chat template of queries and documents."""
    from sentence_transformers import CrossEncoder
    from sentence_transformers.cross_encoder.modules import LogitScore, Transformer

    write_yes_no(tmp_path)
    body = Transformer(str(tmp_path), transformer_task="text-generation")
    yes, no = (body.tokenizer.convert_tokens_to_ids(x) for x in ("yes", "no"))
    head = LogitScore(yes, no if false else None)
    prompts = {"prompts": {"find": prompt}, "default_prompt_name": "find"} if prompt else {}
    saved = tmp_path / "saved"
    CrossEncoder(modules=[body, head], device="cpu", **prompts).save_pretrained(str(saved))
    theirs, model = CrossEncoder(str(saved), device="cpu"), load(saved, device="oracle")
    close(model.score(PAIRS[:3]), theirs.predict(PAIRS[:3]))
    want = theirs.rank("a fox", TEXTS[:3])
    assert [x.index for x in model.rerank("a fox", TEXTS[:3])] == [x["corpus_id"] for x in want]


def test_qwens_reranker(tmp_path: Path) -> None:
    """The prompt and the probability of yes as Qwen3-Reranker's model card computes them."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    write_yes_no(tmp_path, template=None)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    reference = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    model = load(tmp_path, device="cpu", context=1024)
    prefix = (
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query "
        'and the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
        "<|im_start|>user\n"
    )
    suffix = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    for query, document in PAIRS[:2]:
        text = f"<Instruct>: judge\n<Query>: {query}\n<Document>: {document}"
        ids = tokenizer.encode(prefix + text + suffix, add_special_tokens=False)
        with torch.no_grad():
            logits = reference(torch.tensor([ids])).logits[0, -1]
        no, yes = (tokenizer.convert_tokens_to_ids(x) for x in ("no", "yes"))
        want = torch.nn.functional.log_softmax(logits[[no, yes]], 0)[1].exp()
        close(model.score([(query, document)], instruction="judge")[0], want.item())
    assert model.rerank("a", []) == []
    with pytest.raises(LimitError, match="the context holds 1024"):
        model.score([("a", "b" * 2000)], truncate=False)
    assert np.isfinite(model.score([("a", "b" * 2000)])).all()
    with pytest.raises(LimitError, match="the query and the prompt"):
        model.score([("a" * 2000, "b")])


def test_a_model_that_does_not_answer(tmp_path: Path) -> None:
    from model_zoo import write_model, write_tokenizer

    write_model("llama2", tmp_path)
    write_tokenizer(tmp_path)
    model = load(tmp_path, device="oracle")
    with pytest.raises(UsageError, match=r"not single tokens"):
        model.rerank("a", ["b"])
    with pytest.raises(UsageError, match="is not a classifier"):
        model.classify(["a"])
