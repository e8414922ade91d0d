"""Tiny model folders to be damaged, and the command line run on them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from weft.cli.main import invoke
from weft.models import random_folder

VOCAB = 260
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 48,
    "tie_word_embeddings": True,
}
BERT: dict[str, Any] = {
    "model_type": "bert",
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 32,
}


def write_tokenizer(folder: Path) -> None:
    """One token per byte."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    vocab = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    raw = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.decoder = decoders.ByteLevel()
    raw.save(str(folder / "tokenizer.json"))


def tiny(folder: Path, config: dict[str, Any] | None = None, **changed: Any) -> Path:
    """A loadable folder with a tokenizer."""
    made = random_folder(folder, {**(config or LLAMA), **changed}, scale=0.2)
    write_tokenizer(made)
    return made


def change_config(folder: Path, **fields: Any) -> None:
    """Sets fields of config.json; a value of ... removes the field."""
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), **fields}
    path.write_text(json.dumps({k: v for k, v in config.items() if v is not ...}))


def weft(
    *args: str | bytes, stdin: bytes = b"", env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    """The command in a process of its own."""
    command = [sys.executable, "-c", "from weft.cli.main import main; main()", *args]
    return subprocess.run(
        command, input=stdin, capture_output=True, timeout=240, env={**os.environ, **(env or {})}
    )


def said(status: int, out: str, err: str, expected: int = 1) -> str:
    """A failure as the command line must show it: its status, one or two lines on stderr, no
    traceback, nothing on stdout. The message."""
    assert status == expected, (status, out, err)
    assert out == "" and "Traceback" not in err
    lines = [x for x in err.strip().splitlines() if not re.match(r"weft: device \S+ \(|Usage:", x)]
    assert 1 <= len(lines) <= 2 + ("Try 'weft" in err), err
    assert max(map(len, lines)) < 900, err
    return err


def fails(capfd: pytest.CaptureFixture[str], *args: str, status: int = 1) -> str:
    """Runs the command in this process and returns what `said` checks."""
    capfd.readouterr()
    got = invoke(list(args))
    out, err = capfd.readouterr()
    return said(got, out, err, status)
