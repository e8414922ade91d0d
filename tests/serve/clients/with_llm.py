"""The program `llm`: a text, a stream, a schema, a tool, and vectors."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

TOOL = 'def weather(city: str) -> str:\n    "The weather of a city."\n    return "rain"\n'
MODELS = """
- model_id: box
  model_name: box
  api_base: {url}/v1
  supports_tools: true
  supports_schema: true
"""


def program(url: str, *words: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "extra-openai-models.yaml").write_text(MODELS.format(url=url))
        done = subprocess.run(
            [sys.executable, "-m", "llm", *words], text=True, capture_output=True, check=False,
            stdin=subprocess.DEVNULL, env={**os.environ, "LLM_USER_PATH": folder},
        )  # fmt: skip
        assert not done.returncode, done.stderr
        return done.stdout.strip()


def said(url: str) -> None:
    assert program(url, "-m", "box", "hello") == "Hello there."
    assert program(url, "-m", "box", "--functions", TOOL, "Weather?") == "It rains."


def free(url: str) -> None:
    schema = {"type": "object", "properties": {"size": {"enum": [1, 2]}}, "required": ["size"]}
    made = json.loads(program(url, "-m", "box", "--schema", json.dumps(schema), "A thing?"))
    assert made["size"] in (1, 2)
    assert program(url, "-m", "box", "--no-stream", "-o", "max_tokens", "8", "hello") is not None
