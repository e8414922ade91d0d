"""Files that earlier versions wrote: read as they were, or the format's number has to go up.

model-2.weft.gz: a random llama of one layer, by `weft compile --device cpu-neon --context 8`.
model-2.json: ids, the logits that it gave then, and the ids that it wrote.
"""

from __future__ import annotations

import gzip
import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

import weft
from weft.core.errors import FileFormatError

HERE = Path(__file__).parent


@pytest.mark.parametrize("device", ["cpu", "interp:cpu-neon"])
def test_a_compiled_model_of_format_2(tmp_path: Path, device: str) -> None:
    path = tmp_path / "model.weft"
    path.write_bytes(gzip.decompress((HERE / "model-2.weft.gz").read_bytes()))
    then = json.loads((HERE / "model-2.json").read_text())
    model = weft.load(path, device=device)
    logits = model.logits(then["ids"])
    np.testing.assert_allclose(logits, np.array(then["logits"], np.float32), atol=1e-5, rtol=1e-5)
    assert model.generate("def", max_new_tokens=4).ids == tuple(then["written"])


@pytest.mark.parametrize("other", [1, 9])
def test_another_format(tmp_path: Path, other: int) -> None:
    raw = gzip.decompress((HERE / "model-2.weft.gz").read_bytes())
    path = tmp_path / "model.weft"
    with zipfile.ZipFile(io.BytesIO(raw)) as old, zipfile.ZipFile(path, "w") as new:
        for info in old.infolist():
            data = old.read(info)
            new.writestr(info.filename, data.replace(b'{"format":2,', b'{"format":%d,' % other, 1))
    with pytest.raises(FileFormatError, match=f"format {other}; this weft reads 2: compile again"):
        weft.load(path, device="cpu")
