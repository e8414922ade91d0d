"""Help texts fit the terminal, and their descriptions have room to be read."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest

from weft.cli.main import cli, invoke


def commands(group: click.Group = cli, before: tuple[str, ...] = ()) -> Iterator[list[str]]:
    yield [*before]
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command, (*before, name))
        else:
            yield [*before, name]


ALL = list(commands())


@pytest.mark.parametrize("columns", [60, 80, 100])
@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_help_fits(
    words: list[str], columns: int, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("COLUMNS", str(columns))
    assert invoke([*words, "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    wide = [line for line in lines if len(line) > columns]
    assert not [line for line in wide if " " in line.strip()], wide  # a word alone may stand out
    body = lines[lines.index("Options:") + 1 :]
    indents = [len(line) - len(line.lstrip()) for line in body]
    assert body and max(indents) <= columns - 28  # descriptions are not columns of single words


def test_help_names_every_kind_of_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["--help"]) == 0
    said = capsys.readouterr().out
    for name in ("CPU", "CUDA", "HIP", "Vulkan", "Metal", "DX12", "WebGPU"):
        assert name in said
