"""`weft embed`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click
import numpy as np

from weft.cli import options
from weft.cli.loading import Loading, loads
from weft.core import text
from weft.core.errors import FileFormatError, UsageError
from weft.core.hints import command


def read_corpus(texts: tuple[str, ...], source: str | None, what: str) -> list[str]:
    """Returns the texts, and the lines of the file `source`. Raises UsageError if there are none;
    `what` names one."""
    corpus = [*texts, *(_read_lines(source) if source else [])]
    if not corpus:
        raise click.UsageError(f"give at least one {what}, or --text FILE")
    return corpus


def _read_lines(path: str) -> list[str]:
    """The non-empty lines of a UTF-8 text file ("-" is standard input)."""
    try:
        data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
        lines = data.decode("utf-8").splitlines()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise FileFormatError(
            f"{path} is not UTF-8 text (byte {error.start}); convert it with iconv -t UTF-8"
        ) from None
    return [line.strip() for line in lines if line.strip()]


@click.command(
    epilog="Example:  weft embed MODEL --text notes.txt --query 'how to brew tea' --top 3"
)
@click.argument("model", type=click.Path())
@click.argument("texts", nargs=-1)
@options.text("Embed each non-empty line of this file ('-': standard input).", old=["--file"])
@click.option("--query", help="Rank the texts by cosine similarity to this one.")
@options.top("Number of results to print.")
@click.option(
    "--prompt",
    help="Text to put before each text, like 'query: ' (default: as the model's files say).",
)
@click.option(
    "--prompt-name",
    help="Put the prompt that the model's files define under this name before each text.",
)
@click.option(
    "--truncate-dim",
    type=click.IntRange(1),
    help="Keep the first numbers of each vector, as models of nested sizes allow.",
)
@click.option("--normalize", is_flag=True, help="Give each vector the length 1, after cutting.")
@loads("device")
@options.as_json
def embed(
    model: str,
    texts: tuple[str, ...],
    source: str | None,
    query: str | None,
    top: int,
    prompt: str | None,
    prompt_name: str | None,
    truncate_dim: int | None,
    normalize: bool,
    loading: Loading,
    as_json: bool,
) -> None:
    """Compute the embedding of each of TEXTS with the encoder MODEL, a folder or ORG/NAME. With
    --query, rank the texts by similarity instead."""
    from weft.models.run.embedder import Encoder
    from weft.models.run.judge import Judge

    corpus = read_corpus(texts, source, "text")
    loaded = loading.load(loading.path(model))
    if isinstance(loaded, Judge):
        raise UsageError(
            f"{model} judges texts; it does not embed: {command('classify', model, 'TEXT')}"
        )
    if not isinstance(loaded, Encoder):
        raise UsageError(
            f"{model} writes text; it does not embed: {command('run', model, 'PROMPT')}"
        )
    named = prompt_name or (None if query is None else "document")
    vectors = loaded.embed(corpus, prompt, named, truncate_dim, normalize)
    if query is None:
        _print_vectors(corpus, vectors, as_json)
        return
    target = loaded.embed([query], prompt_name="query", truncate_dim=truncate_dim)[0]
    norms = np.linalg.norm(vectors, axis=1) * np.linalg.norm(target)
    scores = vectors @ target / np.maximum(norms, 1e-12)
    order = np.argsort(-scores, kind="stable")[:top]
    if as_json:
        hits = [{"index": int(i), "score": float(scores[i]), "text": corpus[i]} for i in order]
        click.echo(json.dumps({"query": query, "hits": hits}))
        return
    rows = [[f"{scores[i]:.4f}", corpus[i]] for i in order]
    click.echo(text.table(["score", "text"], rows, right="a"))


def _print_vectors(corpus: list[str], vectors: np.ndarray, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"dim": int(vectors.shape[1]), "embeddings": vectors.tolist()}))
        return
    rows = [
        [t if len(t) <= 48 else t[:45] + "...", " ".join(f"{v:+.4f}" for v in row[:6]) + " ..."]
        for t, row in zip(corpus, vectors)
    ]
    click.echo(text.table(["text", f"first 6 of {vectors.shape[1]}"], rows))
