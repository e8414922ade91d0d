"""The program aider changes a file, once by blocks of text and once by whole files."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

OPTIONS = (
    "--model openai/box --openai-api-key x --no-git --yes-always --map-tokens 0 --no-auto-lint "
    "--no-show-model-warnings --no-check-update --analytics-disable --no-show-release-notes "
    "--no-detect-urls --no-gitignore"
)


def said(url: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.py"
        path.write_text("x = 1\n")
        for form, text in (("diff", "x = 2\n"), ("whole", "x = 3\n")):
            done = subprocess.run(
                [sys.executable, "-m", "aider", *OPTIONS.split(), "--openai-api-base", f"{url}/v1",
                 "--edit-format", form, "--message", "Change x.", "a.py"],
                cwd=folder, text=True, capture_output=True, check=False, stdin=subprocess.DEVNULL,
                env={**os.environ, "HOME": folder},
            )  # fmt: skip
            assert path.read_text() == text, done.stdout + done.stderr
