"""Videos as frames: animated pictures, folders and lists of frames, and the frames that a model
looks at."""

from __future__ import annotations

import io
import math
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from weft.core.errors import FileFormatError, LimitError, ModelError, UsageError
from weft.core.records import dataclass
from weft.vision.decode import MAX_BYTES, MAX_PIXELS, _checked, _pixels, decode, pillow
from weft.vision.steps import Steps, floats, resized
from weft.vision.tiles import smart_size

FORMATS = ("GIF", "WEBP", "PNG")  # that can be animated
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".gif")
MOST_FRAMES = 4096  # of a video
MOST_PIXELS = 4 * MAX_PIXELS  # of the frames that a model looks at
MOST_DECODED = 1 << 31  # pixels of all frames of an animation
RATE = 2.0  # frames a second of frames that have no clock
_TURN = "turn it into frames first, such as with ffmpeg -i FILE -vf fps=2 FOLDER/%05d.png"


@dataclass(frozen=True, eq=False)
class Video:
    """A video in a message. `source` is the path of a folder of frames or of an animated picture
    (GIF, WebP, APNG), its bytes, or a list of pictures, in order. With a clock, as in an
    animation, `fps` frames a second are looked at (None: as many as the model wants), or `frames`
    in all. Frames without a clock were taken at `fps` (None: 2), and all are looked at, or
    `frames` of them."""

    source: Any
    fps: float | None = None
    frames: int | None = None


@dataclass(frozen=True, eq=False)
class Film:
    """The frames of a video: their number, how many there are a second (0: it has no clock), and
    what decodes some of them, given their numbers, to uint8 [H, W, 3]."""

    count: int
    rate: float
    pick: Callable[[Sequence[int]], list[np.ndarray]]


@dataclass(frozen=True)
class Groups:
    """A video as a tower reads it: `pixels`, float32 [F, 3, H, W] for each group of F frames.
    `times` are the groups' seconds, `second` the seconds from one group to the next."""

    pixels: tuple[np.ndarray, ...]
    times: tuple[float, ...]
    second: float


def opened(source: Any, where: str = "the video") -> Film:
    """Returns the frames of a video's source (see `Video`). Raises FileFormatError for other
    files, LimitError for too much, UsageError for other values and missing files."""
    if isinstance(source, np.ndarray) and source.ndim == 4:
        source = list(source)
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        where = str(source)[:200]
        if path.is_dir():
            try:
                found = [p for p in path.iterdir() if p.suffix.lower() in SUFFIXES]
            except OSError as error:
                raise UsageError(f"cannot read the video {where}: {error.strerror}") from None
            return _listed(sorted(found, key=_order), where)
        try:
            with path.open("rb") as file:
                source = file.read(MAX_BYTES + 1)
        except (OSError, ValueError) as error:
            said = getattr(error, "strerror", None) or error
            raise UsageError(f"cannot read the video {where}: {said}") from None
    if isinstance(source, list | tuple):
        return _listed(source, where)
    if not isinstance(source, bytes | bytearray | memoryview):
        raise UsageError(
            f"a video is a folder or a list of frames, or an animated picture; got "
            f"{type(source).__name__}"
        )
    if len(source) > MAX_BYTES:
        raise LimitError(f"{where} is larger than {MAX_BYTES >> 20} MiB, as weft reads videos")
    return _animated(bytes(source), where)


def _order(path: Path) -> list[Any]:
    """Returns a key by which frame2 comes before frame10."""
    return [(int(p), "") if p.isdigit() else (0, p) for p in re.split(r"(\d{1,18})", path.name)]


def _listed(frames: Sequence[Any], where: str) -> Film:
    _check_count(len(frames), where)

    def pick(numbers: Sequence[int]) -> list[np.ndarray]:
        known: dict[int, np.ndarray] = {}
        for n in numbers:
            if n not in known:
                at = frames[n]
                name = str(at)[:200] if isinstance(at, Path) else f"frame {n + 1} of {where}"
                known[n] = decode(at, name)
        return [known[n] for n in numbers]

    return Film(len(frames), 0.0, pick)


def _animated(data: bytes, where: str) -> Film:
    images = pillow()
    try:
        with images.open(io.BytesIO(data), formats=FORMATS) as image:
            count, size = getattr(image, "n_frames", 1), (image.height, image.width)
    except images.UnidentifiedImageError:
        raise FileFormatError(
            f"{where} is not a video that weft reads ({', '.join(FORMATS)}): {_TURN}"
        ) from None
    except Exception as error:  # decoders raise errors of many kinds on damaged files
        raise FileFormatError(f"{where} is damaged: {str(error)[:200]}") from None
    _check_count(count, where)
    if count * size[0] * size[1] > MOST_DECODED:
        raise LimitError(
            f"{where} has {count} frames of {size[1]} x {size[0]}, more pixels than the "
            f"{MOST_DECODED >> 20} Mi that weft decodes: {_TURN}"
        )
    frames: dict[int, np.ndarray] = {}
    seconds = [0.0]

    def play(wanted: Sequence[int]) -> None:
        with images.open(io.BytesIO(data), formats=FORMATS) as image:
            for n in range(count):
                image.seek(n)
                if n in wanted:
                    frames[n] = _checked(_pixels(image.copy(), where), where)
                elif not wanted:
                    image.load()  # WebP says a frame's duration once it is decoded
                    seconds[0] += _duration(image.info.get("duration"))

    def pick(numbers: Sequence[int]) -> list[np.ndarray]:
        _guarded(where, lambda: play(set(numbers)))  # type: ignore[arg-type]
        return [frames[n] for n in numbers]

    _guarded(where, lambda: play(()))
    return Film(count, count / seconds[0], pick)


def _duration(said: Any) -> float:
    """Returns a frame's seconds; those of no time last a tenth, as browsers play them."""
    return float(said) / 1000 if isinstance(said, int | float) and said > 0 else 0.1


def _guarded(where: str, play: Callable[[], None]) -> None:
    import warnings

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            play()
    except (LimitError, FileFormatError):
        raise
    except Exception as error:  # decoders raise errors of many kinds on damaged files
        said = str(error).strip() or type(error).__name__
        raise FileFormatError(f"{where} is damaged: {said[:200]}") from None


def _check_count(count: int, where: str) -> None:
    if not count:
        raise FileFormatError(f"{where} has no frames; expected pictures ({', '.join(SUFFIXES)})")
    if count > MOST_FRAMES:
        raise LimitError(f"{where} has {count} frames; weft reads up to {MOST_FRAMES}: {_TURN}")


# -- what a model looks at -------------------------------------------------------------------------


def groups(steps: Steps, video: Video, where: str = "the video") -> Groups:
    """Returns a video as a tower reads it. Raises the errors of `opened`, and UsageError for `fps`
    and `frames` that do not fit."""
    film = opened(video.source, where)
    rate, numbers = chosen(steps, film, video, where)
    frames = film.pick(numbers)
    height, width, _ = frames[0].shape
    for n, frame in zip(numbers, frames):
        if frame.shape != frames[0].shape:
            raise FileFormatError(
                f"{where}: frame {n + 1} has {frame.shape[1]} x {frame.shape[0]} pixels, the first "
                f"{width} x {height}; frames are of one size"
            )
    if len(frames) * height * width > MOST_PIXELS:
        raise LimitError(
            f"{where}: {len(frames)} frames of {width} x {height} have more pixels than the "
            f"{MOST_PIXELS >> 20} Mi that weft reads: give fewer frames"
        )
    if steps.resizes:
        size = size_of(steps, len(frames), height, width)
        frames = [resized(frame, size, steps.filter) for frame in frames]
    span = _number(steps, "temporal_patch_size", 2)
    made = [floats(steps, frame) for frame in frames]
    made += made[-1:] * (-len(made) % span)
    at = [n / rate for n in numbers]
    at += at[-1:] * (-len(at) % span)
    parts = tuple(np.stack(made[k : k + span]) for k in range(0, len(made), span))
    times = tuple((at[k] + at[k + span - 1]) / 2 for k in range(0, len(at), span))
    sampled = len(numbers) / film.count * rate
    return Groups(parts, times, span / sampled)


def chosen(steps: Steps, film: Film, video: Video, where: str) -> tuple[float, list[int]]:
    """Returns the frames a second of a video, and the numbers of those to look at."""
    fps, wanted, total = video.fps, video.frames, film.count
    if fps is not None and not (math.isfinite(fps) and 0 < fps <= 1000):
        raise UsageError(f"{where}: fps is {fps}; expected more than 0, up to 1000")
    if wanted is not None and not 1 <= wanted <= total:
        raise UsageError(f"{where} has {total} frames; frames is {wanted}, expected 1 to {total}")
    if film.rate and fps is not None and wanted is not None:
        raise UsageError(f"{where}: fps and frames both say how many frames; give one")
    if film.rate:
        return film.rate, _sampled(steps, total, film.rate, fps, wanted)
    rate, most = RATE if fps is None else fps, _number(steps, "max_frames", 768)
    if wanted is None and total <= most:
        return rate, list(range(total))
    return rate, _sampled(steps, total, rate, None, min(total, most) if wanted is None else wanted)


def _sampled(
    steps: Steps, total: int, rate: float, fps: float | None, wanted: int | None
) -> list[int]:
    """Returns the numbers of frames that transformers' processor of the kind takes."""
    by = fps or float(steps.more.get("fps") or RATE)
    if not (math.isfinite(by) and by > 0):
        raise ModelError(f"the steps of videos have fps {by}; expected more than 0")
    span = _number(steps, "temporal_patch_size", 2)
    least, most = _number(steps, "min_frames", 4), _number(steps, "max_frames", 768)
    if steps.kind == "volume":
        count = wanted or min(max(int(total / rate * by), least), most, total)
        return [int(n) for n in np.linspace(0, total - 1, count).round()]
    if wanted is None:
        most = min(most, total) // span * span
        wanted = int(min(max(total / rate * by, least), most, total))
        wanted = wanted // span * span
    else:
        wanted = round(wanted / span) * span
    if not 0 < wanted < total:
        return list(range(total))
    step = total / wanted
    return [int(n) for n in (np.arange(wanted) * step).astype(np.float32)]


def size_of(steps: Steps, count: int, height: int, width: int) -> tuple[int, int]:
    """Returns the size of a video's frames, height first."""
    factor = _number(steps, "patch_size", 14) * _number(steps, "merge_size", 2)
    span = _number(steps, "temporal_patch_size", 2)
    least = _number(steps, "min_pixels", steps.size.get("shortest_edge", factor**2))
    most = _number(steps, "max_pixels", steps.size.get("longest_edge", 768 * factor**2))
    capped, tokens = steps.more.get("cap_pixels_per_frame"), steps.more.get("max_video_tokens")
    if steps.kind == "film":
        if capped:
            budget = int(int(tokens or 128000) * factor * factor * 0.9) * span // count
            most = max(min(most, budget), int(least * 1.05))
        return smart_size(height, width, factor, least, most)
    if capped:
        each = max(min(int(tokens or 768) * factor**2, most // count), int(least * 1.05))
        most = each * count
    return volume_size(max(count, span), height, width, factor, span, least, most)


def _number(steps: Steps, name: str, usual: int) -> int:
    """Returns a positive integer that the steps have. Raises ModelError for another value."""
    found = steps.more.get(name, usual)
    if isinstance(found, bool) or not isinstance(found, int) or not 0 < found <= 1 << 28:
        raise ModelError(f"the steps of videos have {name} {found!r:.40}; expected an integer")
    return found


def volume_size(
    count: int, height: int, width: int, factor: int, span: int, least: int, most: int
) -> tuple[int, int]:
    """Returns Qwen3-VL's size of `count` frames: multiples of `factor`, so that all of them have
    `least` to `most` pixels."""
    if height < factor or width < factor:
        by = max(factor / height, factor / width)
        height, width = int(height * by), int(width * by)
    tall, wide = round(height / factor) * factor, round(width / factor) * factor
    whole = round(count / span) * span * tall * wide
    if whole > most:
        scale = math.sqrt(count * height * width / most)
        tall = max(factor, math.floor(height / scale / factor) * factor)
        wide = max(factor, math.floor(width / scale / factor) * factor)
    elif whole < least:
        scale = math.sqrt(least / (count * height * width))
        tall = math.ceil(height * scale / factor) * factor
        wide = math.ceil(width * scale / factor) * factor
    return tall, wide
