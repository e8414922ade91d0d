"""A Hub on loopback with a tiny model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_server import Hub, serving

from weft.core.errors import HubError, WeftError
from weft.hub.resolve import resolve
from weft.models.run.entry import runnable

TINY = {
    "model_type": "llama", "vocab_size": 32, "hidden_size": 32, "intermediate_size": 32,
    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2,
    "max_position_embeddings": 32, "rms_norm_eps": 1e-5, "rope_theta": 10_000.0,
    "tie_word_embeddings": True,
}  # fmt: skip
SHARED = os.environ.get("WEFT_CACHE", "off")  # the tests' own, which holds kernels
MODEL = {"config.json": json.dumps(TINY).encode(), "model.safetensors": b"w" * 70_000}
OTHERS = {"README.md": b"#", "pytorch_model.bin": b"p", "model.py": b"import os", "tf.h5": b"h"}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "weft"))
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_TOKEN", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    with serving() as made:
        monkeypatch.setenv("HF_ENDPOINT", made.url)
        yield made


def refused(model: str, kind: type[WeftError] = HubError) -> str:
    """The message of what `resolve` raises: one or two lines."""
    with pytest.raises(kind) as caught:
        resolve(model, check=runnable)
    text = str(caught.value)
    assert type(caught.value) is kind and len(text.splitlines()) <= 2 and "\x1b" not in text
    return text


def pull(hub: Hub, *args: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", "from weft.cli.main import main; main()", "pull", *args]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
