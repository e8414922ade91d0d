"""`weft classify` and `weft rerank`."""

from __future__ import annotations

import json
from typing import Any

import click
import numpy as np

from weft.cli import options
from weft.cli.embed import read_corpus, read_pictures
from weft.cli.loading import Loading, loads
from weft.core import text
from weft.core.errors import UsageError
from weft.core.hints import command


def _short(line: str) -> str:
    return line if len(line) <= 72 else line[:69] + "..."


@click.command(
    epilog="""\b
Example:  weft classify MODEL 'what a fine loom' --top 2
          weft classify CLIP --images photos --label 'a cat' --label 'a dog'
"""
)
@click.argument("model", type=click.Path())
@click.argument("texts", nargs=-1)
@options.text("Judge each non-empty line of this file ('-': standard input).", old=[])
@click.option("--pair", help="The second text of each pair, for models that judge pairs.")
@options.top("Number of labels of each text to print.")
@click.option(
    "--tokens", is_flag=True, help="Label each token by itself, where a model labels tokens."
)
@click.option("--no-truncate", is_flag=True, help="Reject texts that are too long, never cut them.")
@click.option(
    "--images", metavar="PATH", type=click.Path(),
    help="Label pictures instead, with CLIP or SigLIP: this one, or those in a folder.",
)  # fmt: skip
@click.option("--label", "labels", multiple=True, help="With --images: a label. May be repeated.")
@click.option("--template", help="With --images: how a label is said [default: 'a photo of {}.'].")
@loads("device", "dtype", "quant")
@options.as_json
def classify(
    model: str,
    texts: tuple[str, ...],
    source: str | None,
    pair: str | None,
    top: int,
    tokens: bool,
    no_truncate: bool,
    images: str | None,
    labels: tuple[str, ...],
    template: str | None,
    loading: Loading,
    as_json: bool,
) -> None:
    """Label each of TEXTS with the classifier MODEL, a folder or ORG/NAME, with probabilities. A
    model for tokens labels parts of each text, which are printed. With --images, CLIP and SigLIP
    label pictures by texts of your own."""
    from weft.models.run.judge import Judge

    if images is not None:
        if texts or source or pair or tokens or no_truncate:
            raise click.UsageError("--images goes with --label, --template and --top alone")
        _label_pictures(model, images, labels, template, top, loading, as_json)
        return
    if labels or template:
        raise click.UsageError("--label and --template are for --images")
    corpus = read_corpus(texts, source, "text")
    loaded = loading.load(loading.path(model))
    if not isinstance(loaded, Judge):
        raise UsageError(f"{model} is not a classifier: it lacks labels")
    if loaded.judging.tokens:
        entities = loaded.entities(corpus, not tokens, not no_truncate)
        _print_entities(corpus, entities, as_json)
        return
    judged: list[Any] = corpus if pair is None else [(one, pair) for one in corpus]
    found = loaded.classify(judged, top, not no_truncate)
    if as_json:
        click.echo(json.dumps({"labels": [[x._asdict() for x in row] for row in found]}))
        return
    _print_labels("text", corpus, [[(x.label, x.score) for x in row] for row in found])


def _label_pictures(
    model: str, images: str, labels: tuple[str, ...], template: str | None, top: int,
    loading: Loading, as_json: bool,
) -> None:  # fmt: skip
    from weft.models.run.picture_encoder import TEMPLATE, PictureEncoder

    if not labels:
        raise click.UsageError("give at least one --label")
    corpus = read_pictures(images)
    loaded = loading.load(loading.path(model))
    if not isinstance(loaded, PictureEncoder):
        raise UsageError(f"{model} labels no pictures by texts; CLIP and SigLIP do")
    scores = loaded.classify(corpus, labels, template or TEMPLATE)
    order = np.argsort(-scores, axis=1, kind="stable")[:, :top]
    found = [[(labels[k], float(row[k])) for k in best] for row, best in zip(scores, order)]
    if as_json:
        said = [[{"label": name, "score": score} for name, score in row] for row in found]
        click.echo(json.dumps({"images": corpus, "labels": said}))
        return
    _print_labels("picture", corpus, found)


def _print_labels(kind: str, corpus: list[str], found: list[list[tuple[str, float]]]) -> None:
    rows = [
        [_short(line) if i == 0 else "", label, f"{score:.4f}"]
        for line, labels in zip(corpus, found)
        for i, (label, score) in enumerate(labels)
    ]
    click.echo(text.table([kind, "label", "score"], rows, right="c"))


def _print_entities(corpus: list[str], found: Any, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"entities": [[x._asdict() for x in row] for row in found]}))
        return
    rows = [
        [_short(line) if i == 0 else "", x.text, x.label, f"{x.score:.4f}"]
        for line, entities in zip(corpus, found)
        for i, x in enumerate(entities)
    ]
    click.echo(text.table(["in", "text", "label", "score"], rows, right="d"))


@click.command(epilog="Example:  weft rerank MODEL 'how to brew tea' --text notes.txt --top 3")
@click.argument("model", type=click.Path())
@click.argument("query")
@click.argument("documents", nargs=-1)
@options.text("Rank each non-empty line of this file ('-': standard input).", old=[])
@options.top("Number of results to print.")
@click.option("--instruction", help="What to look for, for language models that say yes or no.")
@click.option(
    "--no-truncate", is_flag=True, help="Reject documents that are too long, never cut them."
)
@loads("device", "dtype", "quant", "context")
@options.as_json
def rerank(
    model: str,
    query: str,
    documents: tuple[str, ...],
    source: str | None,
    top: int,
    instruction: str | None,
    no_truncate: bool,
    loading: Loading,
    as_json: bool,
) -> None:
    """Rank DOCUMENTS by how well they match QUERY, with the reranker MODEL: a cross-encoder, or a
    language model trained to say yes or no, such as Qwen3-Reranker."""
    from weft.models.run.embedder import Encoder
    from weft.models.run.judge import Judge

    corpus = read_corpus(documents, source, "document")
    loaded = loading.load(loading.path(model))
    if isinstance(loaded, Encoder):
        ranks = command("embed", model, "TEXT", "--query", "QUERY")
        raise UsageError(f"{model} gives vectors; to rank by vectors: {ranks}")
    if isinstance(loaded, Judge):
        if instruction is not None:
            raise UsageError(f"--instruction: {model} is not a language model; leave it out")
        found = loaded.rerank(query, corpus, top, not no_truncate)
    else:
        more = {"top": top, "truncate": not no_truncate, "instruction": instruction}
        found = loaded.rerank(query, corpus, **more)
    if as_json:
        hits = [{"index": x.index, "score": x.score, "text": corpus[x.index]} for x in found]
        click.echo(json.dumps({"query": query, "hits": hits}))
        return
    rows = [[f"{x.score:.4f}", _short(corpus[x.index])] for x in found]
    click.echo(text.table(["score", "text"], rows, right="a"))
