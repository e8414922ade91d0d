"""Prompts, options, devices and templates that make no sense: from Python and the command line."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from robust_kit import fails, said, tiny, weft as command
from rows import few

import weft
from weft.backends import registry
from weft.backends.interp import InterpDevice
from weft.cli.main import invoke
from weft.core import notices
from weft.core.caps import Caps
from weft.core.dtypes import float16
from weft.core.errors import (
    DeviceError,
    DTypeError,
    LimitError,
    ModelError,
    OutOfMemoryError,
    UsageError,
    WeftError,
)
from weft.models.text.chat import ChatTemplate

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def model(llama: Path) -> Any:
    return weft.load(llama, device="cpu")


# -- prompts and options --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "prompt",
    ["", [], [[]], [[1], []], [[1], "x", 3], [-1], [260], [2**70], [1.5], ["a", 1], None, 7, b"abc",
     {1: 2}, {1}, [[1, [2]]], [[[1]]], "\ud800", np.zeros((1, 2, 3), int), np.array("x"), [None]],
    ids=repr,
)  # fmt: skip
def test_prompts_that_are_none(model: Any, prompt: Any) -> None:
    with pytest.raises(UsageError):
        model.generate(prompt, max_new_tokens=2)


def test_a_prompt_longer_than_the_context(model: Any, llama: Path, capfd: Capture) -> None:
    with pytest.raises(LimitError, match="49 tokens; the context holds 48"):
        model.generate("x" * 49)
    with pytest.raises(LimitError, match="48"):
        model.logits(list(range(49)))
    assert model.generate("x" * 48, max_new_tokens=5).finish_reason == "length"
    assert "context" in fails(capfd, "run", str(llama), "y" * 500, "--device", "cpu")


@pytest.mark.parametrize(
    "options",
    [{"temperature": float("nan")}, {"temperature": -1}, {"temperature": "hot"},
     {"temperature": float("inf")}, {"top_k": -1}, {"top_k": 1.5},
     {"top_p": 0}, {"top_p": 1.01}, {"top_p": float("nan")}, {"repetition_penalty": 0},
     {"repetition_penalty": float("inf")}, {"seed": -1}, {"seed": 2**64}, {"seed": 1.5},
     {"seed": "x"}, {"seed": [1, 2]}, {"seed": True}, {"stop": ""}, {"stop": [""]},
     {"stop": [None]}, {"stop": ["a", ""]}, {"stop": 3}, {"max_new_tokens": -1},
     {"max_new_tokens": 1.5}, {"max_new_tokens": True}, {"max_new_tokens": "8"}],
    ids=repr,
)  # fmt: skip
def test_options_that_make_no_sense(model: Any, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        model.generate("hello", **options)


@pytest.mark.parametrize(
    ("options", "status"),
    [(["--temperature", "nan"], 2), (["--temperature", "-1"], 2), (["--temperature", "x"], 2),
     (["--seed", "-1"], 2), (["--seed", str(2**64)], 2), (["--stop", ""], 2),
     (["--max-new-tokens", "0"], 2), (["--top-p", "0"], 2), (["--top-p", "nan"], 2),
     (["--dtype", "int8"], 2), (["--dtype", "float31"], 2), (["--dtype", ""], 2),
     (["--context", "0"], 2), (["--context", "49"], 1), (["--context", str(10**30)], 1),
     (["--act-dtype", "int8"], 2), (["--nosuch"], 2),
     (["--device", "abacus"], 2), (["--device", ""], 2),
     (["--device", "cpu:7"], 2), (["--device", "cpu:x"], 2), (["--device", "interp:moon"], 2),
     (["--device", "x" * 5000], 2), (["--device", "cuda:9"], 1), (["--device", "gpu:99"], 1)],
    ids=lambda v: " ".join(v)[:30] if isinstance(v, list) else "",
)  # fmt: skip
def test_options_of_run(llama: Path, capfd: Capture, options: list[str], status: int) -> None:
    device = [] if "--device" in options else ["--device", "cpu"]
    fails(capfd, "run", str(llama), "hello", *device, *options, status=status)


def test_an_empty_prompt(llama: Path, capfd: Capture) -> None:
    assert "empty" in fails(capfd, "run", str(llama), "", "--device", "cpu", status=2)


@pytest.mark.parametrize(
    "args",
    [("bench", "ops", "--sizes", "x"), ("bench", "ops", "--sizes", "-4"), ("bench", "x"),
     ("bench", "ops", "--sizes", "99999999999"), ("bench", "ops", "--repeats", "0"),
     ("bench", "ops", "--threads", "0"), ("check", "--level", "none"), ("devices", "x"),
     ("embed", "."), ("explain",), ("explain", "m", "--show", "x")],
)  # fmt: skip
def test_wrong_usage_of_other_commands(capfd: Capture, args: tuple[str, ...]) -> None:
    fails(capfd, *args, status=2)


def test_commands_given_the_other_kind_of_model(llama: Path, bert: Path, capfd: Capture) -> None:
    cpu = ("--device", "cpu")
    assert "embed" in fails(capfd, "run", str(bert), "x", *cpu, status=2)
    assert "weft run" in fails(capfd, "embed", str(llama), "x", *cpu, status=2)
    fails(capfd, "bench", "model", str(bert), *cpu, "--repeats", "1", status=2)
    assert invoke(["explain", str(bert), *cpu]) == 0
    assert "bert" in capfd.readouterr().out
    fails(capfd, "explain", str(bert), *cpu, "--step", "decode", status=2)
    fails(capfd, "explain", str(llama), *cpu, "--show", "kernels", "--kernel", "nosuch", status=2)


def test_files_that_cannot_be_read_or_written(bert: Path, capfd: Capture, tmp_path: Path) -> None:
    cpu = ("--device", "cpu")
    fails(capfd, "embed", str(bert), "--text", str(tmp_path / "no.txt"), *cpu, status=2)
    fails(capfd, "embed", str(bert), "--text", str(tmp_path), *cpu, status=2)
    (tmp_path / "latin").write_bytes(b"caf\xe9")
    assert "UTF-8" in fails(capfd, "embed", str(bert), "--text", str(tmp_path / "latin"), *cpu)


def test_bytes_that_are_not_utf8(llama: Path, bert: Path) -> None:
    cpu = ("--device", "cpu")
    for args, stdin, status in (
        (("run", str(llama), b"caf\xe9", *cpu), b"", 2),
        (("run", str(llama), "-", *cpu), b"\xff\xfe", 1),
        (("embed", str(bert), b"\xc3", *cpu), b"", 2),
        (("embed", str(bert), "--text", "-", *cpu), b"\xc3", 1),
        (("run", b"/nowhere/\xff", "x", *cpu), b"", 1),
    ):
        done = command(*args, stdin=stdin)
        said(done.returncode, done.stdout.decode(), done.stderr.decode(), status)


# -- devices --------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["nonsense", "cpu:x", "gpu:99", "x" * 3000, "cuda:5", ":", "ü"])
def test_weft_device_nonsense(
    monkeypatch: pytest.MonkeyPatch, value: str, llama: Path, capfd: Capture
) -> None:
    monkeypatch.setenv("WEFT_DEVICE", value)
    for spec in (None, "auto"):
        with pytest.raises(DeviceError, match="WEFT_DEVICE"):
            registry.get(spec)
    absent = value in ("gpu:99", "cuda:5")  # a name that is right, of what is not here
    assert "WEFT_DEVICE" in fails(capfd, "run", str(llama), "x", status=1 if absent else 2)


@pytest.mark.parametrize("value", ["x", "0", "-3", "1e9", "²"])
def test_weft_num_threads_nonsense(value: str) -> None:
    done = command("bench", "ops", "--only", "nosuchcase", env={"WEFT_NUM_THREADS": value})
    said(done.returncode, done.stdout.decode(), done.stderr.decode(), 2)


def _without_f16() -> InterpDevice:
    caps = Caps("small", max_threads=64)
    return InterpDevice(Caps("small", max_threads=64, dtypes=caps.dtypes - {float16}))


def test_a_device_without_f16(tmp_path: Path) -> None:
    folder = tiny(tmp_path / "half", dtype="float16")
    with pytest.raises(DTypeError, match=r"float16.*dtype='float32'"):
        weft.load(folder, device=_without_f16())
    with pytest.raises(DTypeError, match="float16"):
        weft.load(tiny(tmp_path / "full"), device=_without_f16(), dtype="float16")
    got = weft.load(folder, device=_without_f16(), dtype="float32", context=8)
    assert len(got.generate([1, 2], max_new_tokens=1).ids) <= 1


def test_a_device_too_small_for_the_model(llama: Path) -> None:
    device = InterpDevice(Caps("small", max_threads=64, max_buffer_bytes=512))
    with pytest.raises(LimitError, match="allows 512 per buffer"):
        weft.load(llama, device=device).generate([1], max_new_tokens=1)


def test_allocations_beyond_any_memory() -> None:
    device = registry.get("cpu")
    for nbytes in (1 << 45, 1 << 62, 1 << 70):
        with pytest.raises(OutOfMemoryError, match="MiB"):
            device.alloc(nbytes)


def test_vulkan_refuses_what_it_cannot_hold_and_survives(llama: Path) -> None:
    line = registry.probe("vulkan")[0]
    if not line.available:
        pytest.skip(line.reason)
    device = registry.get("vulkan")
    for nbytes in (1 << 36, 1 << 45, 1 << 63):
        with pytest.raises(LimitError):
            device.alloc(nbytes)
    model = weft.load(llama, device=device)
    want = model.generate([1, 2], max_new_tokens=4)
    for delay in (0.01, 0.1):
        timer = threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            timer.start()
            while True:
                model.generate([1, 2], max_new_tokens=40)
        timer.join()
        assert model.generate([1, 2], max_new_tokens=4) == want


def test_tensors_on_unknown_devices() -> None:
    for name in ("abacus", "", "cuda:x", "cpu:1", ":0"):
        with pytest.raises(DeviceError):
            weft.tensor([1.0]).to(name)
        with pytest.raises(DeviceError):
            weft.compile(lambda x: x + 1, device=name)(weft.tensor([1.0]))


def test_a_cache_beyond_any_memory(tmp_path: Path) -> None:
    folder = tiny(tmp_path / "m", max_position_embeddings=1 << 24, num_key_value_heads=2)
    with pytest.raises((LimitError, OutOfMemoryError)):
        weft.load(folder, device="cpu", context=1 << 40)
    with pytest.raises(UsageError):
        weft.load(folder, device="cpu", context=0)
    with pytest.raises(UsageError):
        weft.load(folder, device="cpu", max_batch=10**9)


@pytest.mark.parametrize("device", ["interp", "interp:cuda", "null"])
def test_checking_devices_run_models(llama: Path, capfd: Capture, device: str) -> None:
    """`null` is a device like others: the interpreter without its checks."""
    args = ("run", str(llama), "hi", "--max-new-tokens", "2", "--context", "8", "--json")
    answers = []
    for name in (device, "cpu"):
        assert invoke([*args, "--device", name]) == 0
        answers.append(json.loads(capfd.readouterr().out)["ids"])
    assert answers[0] == answers[1]
    assert invoke(["check", "--device", device, "--level", "device"]) == 0


# -- chat templates -------------------------------------------------------------------------------

MESSAGES = [{"role": "user", "content": "hi"}]
_LOOP = "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    "source",
    ["{{ raise_exception('no') }}", "{% for", "{{ 1 / 0 }}", "{{ messages.a.b.c }}",
     "{{ ''.__class__.__mro__[1].__subclasses__() }}", "{{ messages.__init__.__globals__ }}",
     "{% set x = messages.append({}) %}", "{{ cycler.__init__.__globals__.os.system('true') }}",
     "{{ lipsum.__globals__.os }}", "{% include '/etc/passwd' %}", "{% import 'os' as os %}",
     "{{ self._TemplateReference__context }}{{ nosuch() }}", "{{ 'x' * 10**11 }}",
     "{{ 9 ** 9 ** 9 }}", "{{ range(10 ** 9) }}", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
     "{{" + "(" * 5000 + ")" * 5000 + "}}", "{% if 1 %}" * 200,
     "{% for i in [1] %}" * 50 + "{% endfor %}" * 50, "{{ 5 | items | first.x }}",
     "{{ messages | map('nosuch') | list }}", "{{ strftime_now(5) }}", "{{ [1] | join(2, 3, 4) }}",
     "{% set ns = namespace(s='x' * 1000000) %}{% for i in range(100) %}{{ ns.s }}{% endfor %}"],
    ids=lambda s: s[:30],
)  # fmt: skip
def test_templates_that_misbehave(source: str) -> None:
    with pytest.raises(WeftError, match="chat template") as e:
        ChatTemplate(source).render(MESSAGES, True, {}, {})
    assert len(str(e.value).splitlines()) == 1


@pytest.mark.parametrize(
    "source", few([_LOOP, "{% macro f(n) %}" + _LOOP + "{% endmacro %}{{ f(1) }}"], _LOOP)
)
def test_templates_that_never_end(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.models.text.chat.MAX_SECONDS", 1)
    with pytest.raises(ModelError, match="ran for more than 1 s"):
        ChatTemplate(source).render(MESSAGES, True, {}, {})


def test_chat_on_the_command_line(tmp_path: Path, capfd: Capture) -> None:
    folder = tiny(tmp_path / "m")
    done = command("chat", str(folder), "--device", "cpu", stdin=b"hello\n")
    said(done.returncode, done.stdout.decode(), done.stderr.decode(), 2)  # no template
    (folder / "chat_template.jinja").write_text("{{ raise_exception('roles') }}")
    done = command("chat", str(folder), "--device", "cpu", stdin=b"hello\n")
    assert "roles" in said(done.returncode, done.stdout.decode(), done.stderr.decode(), 2)
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
    done = command("chat", str(folder), "--device", "cpu", stdin=b"\xff\n")
    said(done.returncode, done.stdout.decode(), done.stderr.decode(), 1)
    done = command("chat", str(folder), "--device", "cpu", "--max-new-tokens", "3", stdin=b"hi\n")
    assert done.returncode == 0 and done.stdout


# -- what --json prints ---------------------------------------------------------------------------


def _args(name: str) -> Callable[[Path, Path], list[str]]:
    table: dict[str, Callable[[Path, Path], list[str]]] = {
        "devices": lambda llama, bert: ["devices"],
        "run": lambda llama, bert: ["run", str(llama), "hi", "--max-new-tokens", "3"],
        "embed": lambda llama, bert: ["embed", str(bert), "a", "b"],
        "search": lambda llama, bert: ["embed", str(bert), "a", "b", "--query", "a"],
        "check": lambda llama, bert: ["check", "--device", "cpu", "--level", "device"],
        "ops": lambda llama, bert: [
            "bench", "ops", "--only", "matmul", "--sizes", "16", "--budget", "0.01",
        ],
        "model": lambda llama, bert: [
            "bench", "model", str(llama), "--prompt-tokens", "4", "--max-new-tokens", "2",
            "--repeats", "1",
        ],
        "explain": lambda llama, bert: ["explain", str(llama)],
    }  # fmt: skip
    return table[name]


OBJECTS = ["devices", "run", "embed", "search", "check", "model", "explain"]


@pytest.mark.usefixtures("small_roofline")
@pytest.mark.parametrize("name", few([*OBJECTS, "ops"], *OBJECTS))
def test_json_is_one_object(
    name: str, llama: Path, bert: Path, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    notices.say.cache_clear()  # they are printed again
    monkeypatch.setenv("WEFT_CACHE", os.environ.get("WEFT_CACHE", ""))
    assert invoke([*_args(name)(llama, bert), "--json"]) == 0
    out = capfd.readouterr().out
    assert isinstance(json.loads(out), dict) and out.endswith("\n")
    assert out.count("\n") == 1
