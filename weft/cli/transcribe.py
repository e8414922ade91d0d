"""`weft transcribe`."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click

from weft.cli.loading import Loading, loads
from weft.core.errors import UsageError

if TYPE_CHECKING:
    from weft.models.run.transcript import Segment

FORMATS = ("text", "srt", "vtt", "json")


@click.command(epilog="Example:  weft transcribe MODEL talk.wav --format srt")
@click.argument("model", type=click.Path())
@click.argument("sound", type=click.Path())
@click.option("--language", help="Code of the language, like 'de' (default: detected).")
@click.option("--translate", is_flag=True, help="Translate to English.")
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    default="text",
    show_default=True,
    help="Text with times, subtitles, or all that is known.",
)
@click.option("--words", is_flag=True, help="Give each word its times too (in JSON).")
@click.option("--prompt", help="Text that came before, with names as they are spelled.")
@click.option(
    "--condition", is_flag=True, help="Let each window of 30 seconds read the text so far."
)
@click.option(
    "--batch",
    type=click.IntRange(1, 64),
    help="Cut the sound at quiet moments and hear so many passages at once.",
)
@click.option("--vad", is_flag=True, help="Leave out what is too quiet to be speech.")
@loads("device", "dtype", "quant")
def transcribe(
    model: str,
    sound: str,
    language: str | None,
    translate: bool,
    form: str,
    words: bool,
    prompt: str | None,
    condition: bool,
    batch: int | None,
    vad: bool,
    loading: Loading,
) -> None:
    """Write what is said in the file SOUND with MODEL, a folder or ORG/NAME of Whisper, Moonshine
    or Parakeet. WAV files need nothing more; MP3, FLAC and OGG need the extra "audio"."""
    from weft.audio.sound import open_sound
    from weft.audio.subtitles import srt, vtt
    from weft.models.run.transcriber import Transcriber
    from weft.models.run.transcript import Transcript

    open_sound(sound)  # refuses what is no sound before a model is loaded
    loaded = loading.load(loading.path(model))
    if not isinstance(loaded, Transcriber):
        raise UsageError(f"{model} does not hear; expected a model of speech")
    loaded.need_tokenizer("writing text needs one")
    task = "translate" if translate else "transcribe"
    more: dict[str, Any] = {"prompt": prompt, "condition_on_previous": condition}
    more |= {"batch": batch, "vad": vad}
    heard = loaded.listen(sound, language=language, task=task, words=words, **more)
    if form == "json":
        found = list(heard)
        text = "".join(piece.text for piece in found).strip()
        whole = Transcript(text, heard.language, heard.duration, found, task)
        click.echo(json.dumps(whole.as_json(), ensure_ascii=False))
        return
    if form == "text" and batch is None and sys.stdout.isatty():
        heard.show = _growing
    for part in {"text": _lines, "srt": srt, "vtt": vtt}[form](heard):
        click.echo(part, nl=False)


def _growing(text: str) -> None:
    """Shows the end of a window's text on a terminal's last line, which the next one replaces."""
    most = shutil.get_terminal_size().columns - 1
    click.echo(f"\r\x1b[K{' '.join(text.split())[-most:]}", nl=False)


def _lines(pieces: Iterable[Segment]) -> Iterator[str]:
    from weft.audio.subtitles import clock

    begin = "\r\x1b[K" if sys.stdout.isatty() else ""
    for piece in pieces:
        yield f"{begin}[{clock(piece.start)} --> {clock(piece.end)}] {piece.text.strip()}\n"
