"""Tokenizer, streaming decoder and chat templates, against transformers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from model_zoo import CORPUS, VOCAB, write_tokenizer

from weft.core.errors import ModelError, UsageError
from weft.models.text.tokenizer import Tokenizer

TEXTS = [*CORPUS[:4], "", " ", "  leading", "a\tb\r\n", "日本語", "👩‍🚀", "e\u0301", "\x00\x7f"]
KINDS = ["bytes", "fallback"]


@pytest.fixture(scope="module", params=KINDS)
def both(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    return write_tokenizer(folder, request.param), Tokenizer(folder, VOCAB)


def test_ids_and_text_equal_transformers(both) -> None:
    theirs, ours = both
    for text in TEXTS:
        ids = ours.encode(text)
        assert ids == theirs(text)["input_ids"]
        assert (
            ours.encode(text, special=False) == theirs(text, add_special_tokens=False)["input_ids"]
        )
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=30))
def test_streamed_pieces_join_to_the_text(both, text: str) -> None:
    """Each piece is whole UTF-8, and together they are what decoding all at once gives."""
    _, ours = both
    ids = ours.encode(text, special=False)
    stream = ours.stream()
    pieces = [stream.push(i) for i in ids]
    assert "\ufffd" not in "".join(pieces) or "\ufffd" in text
    assert "".join(pieces) + stream.flush() == ours.decode(ids)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(0, VOCAB - 40), max_size=25))
def test_streaming_any_ids(both, ids: list[int]) -> None:
    """Broken byte sequences come out as U+FFFD in the end, and are never held for ever."""
    theirs, ours = both
    stream = ours.stream()
    text = "".join(stream.push(i) for i in ids)
    rest = stream.flush()
    if "<0x00>" not in theirs.get_vocab():  # that kind decodes a run of bytes all or nothing
        assert len(rest) <= 3
        assert text + rest == ours.decode(ids)


def test_an_emoji_is_held_back_until_whole(both) -> None:
    _, ours = both
    stream = ours.stream()
    ids = ours.encode("a😀b", special=False)
    pieces = [stream.push(i) for i in ids]
    assert "😀" in pieces
    assert all("\ufffd" not in p for p in pieces)


def test_lone_surrogates_are_refused(both) -> None:
    with pytest.raises(UsageError, match="not valid UTF-8"):
        both[1].encode("bad \udc80 text")


def test_tokenizer_of_another_model(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    with pytest.raises(ModelError, match="belongs to another model"):
        Tokenizer(tmp_path, 50)


@pytest.mark.parametrize("content", [b"", b"{}", b"[1,2]", b"\xff", b'{"model":{"type":"BPE"}}'])
def test_broken_tokenizer_files(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(ModelError, match="cannot be read"):
        Tokenizer(tmp_path, VOCAB)


# -- chat -----------------------------------------------------------------------------------------

TEMPLATES = {
    "chatml": (
        "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + "
        "'<|im_end|>' + '\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    ),
    "llama": (
        "{{ bos_token }}\n{%- for m in messages %}\n"
        "    {%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}\n"
        "        {{- raise_exception('roles must alternate') }}\n    {%- endif %}\n"
        "    {%- if loop.index > 5 %}{%- break %}{%- endif %}\n"
        "    {%- if m.role == 'user' %}{{- '[INST] ' + m.content | trim + ' [/INST]' }}\n"
        "    {%- else %}{% generation %}{{- m.content + eos_token }}{% endgeneration %}\n"
        "    {%- endif %}\n"
        "{%- endfor %}"
    ),
    "tools": (
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}"
        "{{ m | tojson }}{{ m.content.split(' ')[0] }}{{ messages[::-1][0].role }}"
        "{% endfor %}{{ ns.n }}{% if tools is none %}no tools{% endif %}"
        "{{ strftime_now('%Y') | length }}"
    ),
}
MESSAGES = [
    {"role": "user", "content": " Hello <you> & 'me' "},
    {"role": "assistant", "content": "Grüß dich! 👋"},
    {"role": "user", "content": "Weave."},
]


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("prompt", [True, False])
@pytest.mark.parametrize("where", ["config", "file"])
def test_chat_equals_apply_chat_template(
    tmp_path: Path, name: str, prompt: bool, where: str
) -> None:
    theirs = write_tokenizer(tmp_path)
    theirs.chat_template = TEMPLATES[name]
    (tmp_path / "chat_template.jinja").unlink(missing_ok=True)
    if where == "file":
        (tmp_path / "chat_template.jinja").write_text(TEMPLATES[name])
    else:
        path = tmp_path / "tokenizer_config.json"
        path.write_text(
            json.dumps(json.loads(path.read_text()) | {"chat_template": TEMPLATES[name]})
        )
    ours = Tokenizer(tmp_path, VOCAB)
    assert ours.has_chat
    want = theirs.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=prompt)
    assert ours.chat(MESSAGES, prompt) == want


@pytest.mark.parametrize(
    ("template", "kind", "said"),
    [
        ("{{ raise_exception('no system') }}", UsageError, "no system"),
        ("{{ ''.__class__.__mro__ }}", UsageError, "unsafe"),
        ("{{ messages.append(1) }}", UsageError, "refuses"),
        ("{{ messages[0].clear() }}", UsageError, "refuses"),
        ("{% for i in range(10**9) %}x{% endfor %}", UsageError, "failed"),
        ("{{ 1 / 0 }}", UsageError, "division"),
        ("{% if %}", ModelError, "does not compile"),
        ("{% include '/etc/passwd' %}", UsageError, "failed|refuses"),
    ],
)
def test_hostile_templates(tmp_path: Path, template: str, kind: type, said: str) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(template)
    with pytest.raises(kind, match=said):
        Tokenizer(tmp_path, VOCAB).chat(MESSAGES)


def test_no_template_and_bad_messages(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    ours = Tokenizer(tmp_path, VOCAB)
    assert not ours.has_chat
    with pytest.raises(UsageError, match="lacks a chat template"):
        ours.chat(MESSAGES)
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}")
    with pytest.raises(UsageError, match="role"):
        Tokenizer(tmp_path, VOCAB).chat([{"content": "x"}])
