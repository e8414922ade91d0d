"""lm-eval over HTTP measures what the model says in this process, to the last bit."""

from __future__ import annotations

import inspect
import json
import os
import shutil
import subprocess
import textwrap
from pathlib import Path
from typing import Any

import pytest
from serve_kit import Running

from weft.engine.logprobs import chosen
from weft.models.run.model import Decoder

LINES = [line for line in inspect.getsource(textwrap).splitlines() if len(line) > 20]
TASKS = {
    "weft_choice": """
output_type: multiple_choice
doc_to_text: "{{context}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{gold}}"
target_delimiter: "\\n"
metric_list: [{metric: acc}, {metric: acc_norm}]
""",
    "weft_rolling": """
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{context}}"
metric_list: [{metric: byte_perplexity}]
""",
    "weft_until": """
output_type: generate_until
doc_to_text: "{{context}}\\n"
doc_to_target: "{{choices[0]}}"
generation_kwargs: {until: ["\\n\\n", ":"], max_gen_toks: 24}
metric_list: [{metric: exact_match}]
""",
}


def documents(count: int) -> list[dict[str, Any]]:
    """Lines of a program, and of what may come next: the right line and three others."""
    made = []
    for n in range(count):
        at = 4 + 3 * n
        choices = [LINES[at], *(LINES[(at * k + 7) % len(LINES)] for k in (3, 5, 11))]
        made.append({"context": "\n".join(LINES[at - 4 : at]), "choices": choices, "gold": 0})
    return made


def logprobs(alone: Decoder, ids: list[int]) -> list[float]:
    """Of each token but the first, from the logits of this process."""
    logits = alone.logits(ids)
    made = [chosen(row, token, 0).logprob for row, token in zip(logits, ids[1:])]
    return [p for p in made if p is not None]


def test_logprobs_over_http_are_the_models(server: Running, alone: Decoder) -> None:
    """The requests of lm-eval's local-completions, several at once."""
    asked = [alone.encode("\n".join([d["context"], c])) for d in documents(3) for c in d["choices"]]
    body = {"model": "box", "prompt": asked, "temperature": 0, "max_tokens": 1, "logprobs": 1,
            "seed": 1234, "echo": True}  # fmt: skip
    status, made, _ = server.ask("POST", "/v1/completions", body)
    assert status == 200
    for ids, choice in zip(asked, made["choices"]):
        assert choice["logprobs"]["token_logprobs"][1:-1] == logprobs(alone, ids)


@pytest.mark.slow
def test_lm_eval(server: Running, alone: Decoder, tmp_path: Path) -> None:
    program = os.environ.get("LM_EVAL") or shutil.which("lm_eval")
    if program is None:
        pytest.skip("no lm_eval; LM_EVAL names it: docs/testing.md")
    (tmp_path / "data.json").write_text(json.dumps(documents(60)))
    for name, text in TASKS.items():
        (tmp_path / f"{name}.yaml").write_text(
            f"task: {name}\ndataset_path: json\ntest_split: test\ndataset_kwargs:\n"
            f"  data_files: {{test: {tmp_path / 'data.json'}}}\n{text}"
        )
    home = {name: str(tmp_path / "cache") for name in ("HF_HOME", "HF_DATASETS_CACHE")}
    arguments = f"model=box,base_url={server.url}/v1/completions,num_concurrent=8,max_length=512"
    subprocess.run(
        [program, "--model", "local-completions", "--model_args", arguments, "--tasks",
         ",".join(TASKS), "--include_path", tmp_path, "--output_path", tmp_path / "out",
         "--log_samples"],
        env={**os.environ, **home, "HF_DATASETS_OFFLINE": "1", "HF_HUB_OFFLINE": "1"}, check=True,
    )  # fmt: skip

    def samples(name: str) -> list[Any]:
        (path,) = (tmp_path / "out").rglob(f"samples_{name}_*.jsonl")
        return [json.loads(line) for line in path.read_text().splitlines()]

    def encode(text: str) -> list[int]:
        return alone.tokenizer.encode(text, special=False) if alone.tokenizer else []

    checked = 0
    for sample in samples("weft_choice"):
        for (context, continuation), response in arguments_of(sample):
            whole, before = encode(context + continuation), len(encode(context))
            assert float(response[0]) == sum(logprobs(alone, whole)[before - 1 :])
            checked += 1
    for sample in samples("weft_rolling"):
        ((text,), response), = arguments_of(sample)  # fmt: skip
        start = encode("<|endoftext|>")
        assert float(response[0] if isinstance(response, list) else response) == sum(
            logprobs(alone, start + encode(text))
        )
        checked += 1
    for sample in samples("weft_until"):
        ((context, _), response), = arguments_of(sample)  # fmt: skip
        made = alone.generate(encode(context), max_new_tokens=24, stop=("\n\n", ":")).text
        assert response == made
        checked += 1
    assert checked == 60 * 6


def arguments_of(sample: Any) -> list[tuple[list[Any], Any]]:
    """What lm-eval asked for a document, and what it got."""
    asked = [list(each.values()) for each in sample["arguments"].values()]
    return list(zip(asked, [r[0] for r in sample["resps"]]))
