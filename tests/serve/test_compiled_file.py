"""A file of `weft compile` is served: its answers are those of the model's folder."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from serve_kit import serving

import weft
from weft.backends.presets import caps_of
from weft.models.run import saved
from weft.models.run.model import Decoder

HEAD = "import os\nimport sys\n\n\ndef walk(folder: str) -> list[str]:\n    for name in os.listdir("
HEAD = HEAD.replace("\n", "\n\n# the files of a folder, and those of all folders in it\n")
PROMPTS = [HEAD + end for end in ("folder", "path", "'.'", "folder, ", "sys", "os.path")]


def test_a_compiled_file_is_served(chatty: Path, alone: Decoder, tmp_path: Path) -> None:
    """With fewer slots than answers at once, and a prompt's pages shared between them."""
    file = tmp_path / "box.weft"
    model = weft.load(chatty, device="cpu", max_batch=4)
    saved.save(model, file, "cpu", caps_of("cpu"), {}, False)
    wanted = [alone.generate(p, max_new_tokens=12).text for p in PROMPTS]
    with serving({"box": str(file)}) as server:

        def ask(prompt: str) -> Any:
            body = {"prompt": prompt, "max_tokens": 12, "temperature": 0}
            status, said, _ = server.ask("POST", "/v1/completions", body)
            assert status == 200
            return said

        first = ask(PROMPTS[0])
        with ThreadPoolExecutor(len(PROMPTS)) as pool:
            found = list(pool.map(ask, PROMPTS))
        (served,) = server.shelf.decoders()
        assert "the file fixes how many" in " ".join(served.summary())
    assert [x["choices"][0]["text"] for x in (first, *found)] == [wanted[0], *wanted]
    cached = [x["usage"]["prompt_tokens_details"]["cached_tokens"] for x in found]
    assert min(cached) >= served.runner.page
    assert (served.runner.slots, served.runner.pages) == (4, 4 * 512 // served.runner.page)
