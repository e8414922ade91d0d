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


ENDS = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff")  # of pictures' names


def read_pictures(path: str) -> list[str]:
    """Returns the paths of the pictures in a folder, by name, or the one that is a file. Raises
    UsageError if there are none."""
    found = Path(path)
    if found.is_file():
        return [path]
    if not found.is_dir():
        raise UsageError(f"{path} is neither a picture nor a folder of pictures")
    pictures = sorted(str(p) for p in found.iterdir() if p.suffix.lower() in ENDS and p.is_file())
    if not pictures:
        raise UsageError(f"{path} holds no pictures ({', '.join(ENDS)})")
    return pictures


@click.command(
    epilog="""\b
Example:  weft embed MODEL --text notes.txt --query 'how to brew tea' --top 3
          weft embed CLIP --images photos --query 'a red car'
"""
)
@click.argument("model", type=click.Path())
@click.argument("texts", nargs=-1)
@options.text("Embed each non-empty line of this file ('-': standard input).", old=["--file"])
@click.option(
    "--images", metavar="PATH", type=click.Path(),
    help="Embed pictures instead, with CLIP, SigLIP, DINOv2 or 3: this one, or those in a folder.",
)  # fmt: skip
@click.option("--query", help="Rank the texts, or the pictures, by cosine similarity to this one.")
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
    images: str | None,
    query: str | None,
    top: int,
    prompt: str | None,
    prompt_name: str | None,
    truncate_dim: int | None,
    normalize: bool,
    loading: Loading,
    as_json: bool,
) -> None:
    """Compute the embedding of each of TEXTS with the encoder MODEL, a folder or ORG/NAME, or with
    --images of pictures. With --query, rank them by similarity instead."""
    from weft.models.run.embedder import Encoder
    from weft.models.run.judge import Judge
    from weft.models.run.picture_encoder import PictureEncoder

    corpus = read_pictures(images) if images else read_corpus(texts, source, "text")
    loaded = loading.load(loading.path(model))
    if isinstance(loaded, PictureEncoder):
        if images and (texts or source):
            raise click.UsageError("--images goes without texts; --query finds pictures by a text")
        made = loaded.embed_images(corpus) if images else loaded.embed(corpus)
        near = loaded.embed([query])[0] if query else None
        _show(corpus, made, near, query, top, as_json, "image" if images else "text")
        return
    if images:
        raise UsageError(
            f"{model} reads no pictures for vectors; CLIP, SigLIP, DINOv2 and DINOv3 do"
        )
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
    target = None
    if query is not None:
        target = loaded.embed([query], prompt_name="query", truncate_dim=truncate_dim)[0]
    _show(corpus, vectors, target, query, top, as_json)


def _show(
    corpus: list[str], vectors: np.ndarray, target: np.ndarray | None, query: str | None,
    top: int, as_json: bool, kind: str = "text",
) -> None:  # fmt: skip
    """Prints vectors; with the `target` of a query, those nearest to it."""
    if query is None or target is None:
        _print_vectors(corpus, vectors, as_json)
        return
    norms = np.linalg.norm(vectors, axis=1) * np.linalg.norm(target)
    scores = vectors @ target / np.maximum(norms, 1e-12)
    order = np.argsort(-scores, kind="stable")[:top]
    if as_json:
        hits = [{"index": int(i), "score": float(scores[i]), kind: corpus[i]} for i in order]
        click.echo(json.dumps({"query": query, "hits": hits}))
        return
    rows = [[f"{scores[i]:.4f}", corpus[i]] for i in order]
    click.echo(text.table(["score", kind], rows, right="a"))


def _print_vectors(corpus: list[str], vectors: np.ndarray, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"dim": int(vectors.shape[1]), "embeddings": vectors.tolist()}))
        return
    rows = [
        [t if len(t) <= 48 else t[:45] + "...", " ".join(f"{v:+.4f}" for v in row[:6]) + " ..."]
        for t, row in zip(corpus, vectors)
    ]
    click.echo(text.table(["text", f"first 6 of {vectors.shape[1]}"], rows))
