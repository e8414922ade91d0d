"""`weft port`."""

from __future__ import annotations

from pathlib import Path

import click

from weft.cli import options
from weft.core.errors import UsageError


@click.command(epilog="Example:  weft port train.py -o train_weft.py")
@click.argument("file", type=click.Path(dir_okay=False))
@click.option("-o", "--output", type=click.Path(dir_okay=False),
              help="Write the script with its imports from weft.torch to this file.")  # fmt: skip
@options.as_json
def port(file: str, output: str | None, as_json: bool) -> None:
    """Say line by line which names of PyTorch in the script FILE weft.torch has.

    The script is read, not run. Methods are known by their names alone."""
    import json
    from dataclasses import asdict

    from weft.host.files import write_bytes
    from weft.torch import porting

    source = read_script(Path(file))
    used = porting.names_in(source, file)
    if output is not None:
        write_bytes(Path(output), porting.ported(source, file).encode())
    if as_json:
        click.echo(json.dumps({"file": file, "names": [asdict(one) for one in used]}))
        return
    for line in porting.summary(used):
        click.echo(line)
    if output is not None:
        click.echo(f"wrote {output}")


def read_script(path: Path) -> str:
    """The text of a file. Raises UsageError."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as e:
        raise UsageError(f"{path}: {e.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not Python: it is not UTF-8") from None
