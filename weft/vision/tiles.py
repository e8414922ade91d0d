"""The choice of sizes and tiles by each kind of processor."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import field, replace

import numpy as np

from weft.core.errors import UsageError
from weft.core.records import dataclass
from weft.vision.sizes import RULES, plain
from weft.vision.steps import BILINEAR, Steps, floats, resized, thinned

LARGEST = 4096  # pixels of a side, in Idefics 3
_NARROW = 10  # pixels that Phi-4 wants at least of a side


@dataclass(frozen=True)
class Prepared:
    """A tower's input for one picture: `pixels`, float32 [3, H, W] each, one or several tiles.
    `rows` and `columns` count the tiles of a grid (0: none)."""

    pixels: tuple[np.ndarray, ...]
    rows: int = 0
    columns: int = 0
    original: tuple[int, int] = field(default=(0, 0))  # height and width before all steps
    filled: tuple[tuple[int, int], ...] = ()  # rows and columns of patches in each tile; (): all


def prepare(steps: Steps, image: np.ndarray) -> Prepared:
    """Returns the pixels of a decoded picture, uint8 [H, W, 3]."""
    return KINDS[steps.kind](steps, image)


def _squared(steps: Steps, image: np.ndarray) -> Prepared:
    """LLaVA: a picture may be padded to a square in the mean colour first."""
    squared = _square(steps, image) if steps.more["do_pad"] else image
    return Prepared((floats(steps, plain(steps, squared).image),), original=image.shape[:2])


def _square(steps: Steps, image: np.ndarray) -> np.ndarray:
    height, width, _ = image.shape
    if height == width or steps.mean is None:
        return image
    side = max(height, width)
    square = np.full((side, side, 3), [int(x * 255) for x in steps.mean], np.uint8)
    y, x = (side - height) // 2, (side - width) // 2
    square[y : y + height, x : x + width] = image
    return square


def _framed(steps: Steps, image: np.ndarray) -> Prepared:
    """LLaVA-OneVision, of several pictures: each padded to a square."""
    made = floats(steps, plain(steps, _square(steps, image)).image)
    return Prepared((made,), original=image.shape[:2])


def together(steps: Steps) -> Steps:
    """Returns the steps of a picture that is not the only one of its prompt."""
    return replace(steps, kind="framed") if steps.kind == "anyres" else steps


def _crops(steps: Steps, image: np.ndarray) -> Prepared:
    """Gemma 3: the whole picture, and if wanted cuts of one that is long."""
    size = steps.size["height"], steps.size["width"]
    parts = [image, *(_panned(steps, image) if steps.more.get("do_pan_and_scan") else ())]
    made = [floats(steps, resized(p, size, steps.filter) if steps.resizes else p) for p in parts]
    return Prepared(tuple(made), columns=len(made) - 1, original=image.shape[:2])


def _panned(steps: Steps, image: np.ndarray) -> list[np.ndarray]:
    height, width, _ = image.shape
    least = int(steps.more["pan_and_scan_min_crop_size"])
    most = int(steps.more["pan_and_scan_max_num_crops"])
    ratio = float(steps.more["pan_and_scan_min_ratio_to_activate"])
    long, short = max(width, height), min(width, height)
    if long / short < ratio:
        return []
    count = min(math.floor(long / least), math.floor(long / short + 0.5))
    count = min(most, max(2, count))
    step = math.ceil(long / count)
    if min(step, short) < least:
        return []
    starts = [step * i for i in range(count)]
    if width >= height:
        return [image[:, x : x + step] for x in starts]
    return [image[y : y + step] for y in starts]


def _tiles(steps: Steps, image: np.ndarray) -> Prepared:
    """Idefics 3 and SmolVLM: tiles of a picture whose sides are multiples of theirs, then all of
    it."""
    height, width, _ = original = image.shape
    side = int(steps.more["max_image_size"]["longest_edge"])
    if steps.resizes and "longest_edge" in steps.size:
        image = resized(image, _longest(height, width, steps.size["longest_edge"]), steps.filter)
    elif steps.resizes:
        image = resized(image, (steps.size["height"], steps.size["width"]), steps.filter)
    if not steps.more.get("do_image_splitting"):
        image = resized(image, (side, side), steps.filter)
        return Prepared((floats(steps, image),), original=original[:2])
    height, width, _ = image.shape
    image = resized(image, _multiple(height, width, side), steps.filter)
    height, width, _ = image.shape
    if height <= side and width <= side:
        return Prepared((floats(steps, image),), original=original[:2])
    rows, columns = height // side, width // side
    cuts = [
        image[r * side : (r + 1) * side, c * side : (c + 1) * side]
        for r in range(rows)
        for c in range(columns)
    ]
    cuts.append(resized(image, (side, side), steps.filter))
    made = tuple(floats(steps, cut) for cut in cuts)
    return Prepared(made, rows, columns, original[:2])


def _longest(height: int, width: int, longest: int) -> tuple[int, int]:
    """Returns the size with the longer side `longest`, the other even; at most LARGEST."""
    ratio = width / height
    if width >= height:
        width, height = longest, int(longest / ratio)
        height += height % 2
    else:
        height, width = longest, int(longest * ratio)
        width += width % 2
    height, width = max(height, 1), max(width, 1)
    ratio = width / height
    if width >= height and width > LARGEST:
        width, height = LARGEST, int(LARGEST / ratio)
    elif height > width and height > LARGEST:
        height, width = LARGEST, int(LARGEST * ratio)
    return max(height, 1), max(width, 1)


def _multiple(height: int, width: int, side: int) -> tuple[int, int]:
    ratio = width / height
    if width >= height:
        width = math.ceil(width / side) * side
        height = math.ceil(int(width / ratio) / side) * side
    else:
        height = math.ceil(height / side) * side
        width = math.ceil(int(height * ratio) / side) * side
    return height, width


def smart_size(height: int, width: int, factor: int, least: int, most: int) -> tuple[int, int]:
    """Returns Qwen-VL's size: multiples of `factor` with `least` to `most` pixels, near the same
    proportion."""
    tall, wide = round(height / factor) * factor, round(width / factor) * factor
    if tall * wide > most:
        by = math.sqrt(height * width / most)
        tall = max(factor, math.floor(height / by / factor) * factor)
        wide = max(factor, math.floor(width / by / factor) * factor)
    elif tall * wide < least:
        by = math.sqrt(least / (height * width))
        tall = math.ceil(height * by / factor) * factor
        wide = math.ceil(width * by / factor) * factor
    return tall, wide


def _smart(steps: Steps, image: np.ndarray) -> Prepared:
    """Qwen-VL: any size that its patches fill."""
    height, width, _ = image.shape
    if steps.resizes:
        factor = int(steps.more["patch_size"]) * int(steps.more["merge_size"])
        least = int(steps.more.get("min_pixels", steps.size.get("shortest_edge", 56 * 56)))
        most = int(steps.more.get("max_pixels", steps.size.get("longest_edge", 28 * 28 * 1280)))
        size = smart_size(height, width, factor, least, most)
        image = resized(image, size, steps.filter)
    return Prepared((floats(steps, image),), original=(height, width))


def budget_size(height: int, width: int, patch: int, block: int, most: int) -> tuple[int, int]:
    """Returns Gemma 4's size: multiples of `block` patches, `most` blocks or fewer, nearly as many
    as that, in nearly the same proportion."""
    side = block * patch
    by = math.sqrt(most * side * side / (height * width))
    tall, wide = math.floor(by * height / side) * side, math.floor(by * width / side) * side
    if tall == 0:
        return side, min(width // height, most) * side
    if wide == 0:
        return min(height // width, most) * side, side
    return tall, wide


def _budget(steps: Steps, image: np.ndarray) -> Prepared:
    """Gemma 4: any size within a budget of patches."""
    height, width, _ = image.shape
    if steps.resizes:
        numbers = (int(steps.more[k]) for k in
                   ("patch_size", "pooling_kernel_size", "max_soft_tokens"))  # fmt: skip
        image = resized(image, budget_size(height, width, *numbers), steps.filter)
    return Prepared((floats(steps, image),), original=(height, width))


def _patches(steps: Steps, image: np.ndarray) -> Prepared:
    """Pixtral: at most so long, in whole patches."""
    height, width, _ = image.shape
    patch = steps.more["patch_size"]
    tall, wide = (patch, patch) if isinstance(patch, int) else (patch["height"], patch["width"])
    size = steps.size
    top = (size["longest_edge"],) * 2 if "longest_edge" in size else (size["height"], size["width"])
    by = max(height / top[0], width / top[1])
    new = (math.floor(height / by), math.floor(width / by)) if by > 1 else (height, width)
    whole = (-(-new[0] // tall) * tall, -(-new[1] // wide) * wide)
    made = resized(image, whole, steps.filter) if steps.resizes else image
    return Prepared((floats(steps, made),), original=(height, width))


def _mosaic(steps: Steps, image: np.ndarray) -> Prepared:
    """InternVL: the grid of square tiles nearest in proportion, then all of the picture."""
    height, width, _ = original = image.shape
    size = steps.size["height"], steps.size["width"]
    if not steps.more.get("crop_to_patches") or int(steps.more["max_patches"]) < 2:
        made = floats(steps, resized(image, size, steps.filter))
        return Prepared((made,), original=original[:2])
    columns, rows = mosaic_size(
        height, width, size, int(steps.more["min_patches"]), int(steps.more["max_patches"])
    )
    large = resized(image, (size[0] * rows, size[1] * columns), steps.filter)
    cuts = [
        large[r * size[0] : (r + 1) * size[0], c * size[1] : (c + 1) * size[1]]
        for r in range(rows)
        for c in range(columns)
    ]
    if len(cuts) != 1:
        cuts.append(resized(image, size, steps.filter))
    return Prepared(tuple(floats(steps, cut) for cut in cuts), rows, columns, original[:2])


def mosaic_size(
    height: int, width: int, size: tuple[int, int], least: int, most: int
) -> tuple[int, int]:
    """Returns InternVL's (columns, rows): the grid of at least `least` and at most `most` tiles
    whose proportion is nearest; of equals the larger, if the picture fills half of it."""
    grids = [(c, r) for c in range(1, most + 1) for r in range(1, most + 1)]
    grids = sorted((g for g in grids if least <= g[0] * g[1] <= most), key=lambda g: g[0] * g[1])
    best, found, area, ratio = math.inf, (1, 1), height * width, width / height
    for columns, rows in grids:
        off = abs(ratio - columns / rows)
        if off < best:
            best, found = off, (columns, rows)
        elif off == best and area > 0.5 * size[0] * size[1] * columns * rows:
            found = columns, rows
    return found


def _sheet(steps: Steps, image: np.ndarray) -> Prepared:
    """Phi-4-multimodal: all of a sheet of square tiles, then the tiles; the picture fills the sheet
    from its upper left corner, and the rest is white."""
    height, width, _ = image.shape
    side, most = steps.size["height"], int(steps.more["dynamic_hd"])
    columns, rows = math.ceil(width / side), math.ceil(height / side)
    if columns * rows > most:
        columns, rows = mosaic_size(height, width, (side, side), 1, most)
    tall, wide = rows * side, columns * side
    across, down = wide / width, tall / height
    if across < down:
        new = int(height * across), wide
    else:
        new = tall, int(width * down)
    patch = int(steps.more["patch_size"])
    inner = [(whole // patch) - (whole - n) // patch for whole, n in zip((tall, wide), new)]
    if min(new) < _NARROW or min(inner) < 1:
        raise UsageError(
            f"a picture of {width} x {height} pixels is too long for this model; crop it"
        )
    whole = np.full((tall, wide, 3), 255, np.uint8)
    whole[: new[0], : new[1]] = resized(image, new, BILINEAR)
    pixels, n = floats(steps, whole), side // patch
    places = [(r, c) for r in range(rows) for c in range(columns)]
    cuts = [pixels[:, r * side : (r + 1) * side, c * side : (c + 1) * side] for r, c in places]
    filled = [tuple(min(max(inner[k] - at[k] * n, 0), n) for k in (0, 1)) for at in places]
    return Prepared(
        (thinned(pixels, (side, side)), *cuts), rows, columns, (height, width), ((n, n), *filled)
    )  # fmt: skip


def best_grid(height: int, width: int, grids: list[list[int]]) -> tuple[int, int]:
    """Returns LLaVA-NeXT's choice among sizes (height, width): the one that shows most pixels, of
    equals the one that wastes least."""
    found, most, least = (0, 0), 0, math.inf
    for tall, wide in grids:
        by = min(wide / width, tall / height)
        shown = min(int(width * by) * int(height * by), width * height)
        waste = wide * tall - shown
        if shown > most or (shown == most and waste < least):
            found, most, least = (tall, wide), shown, waste
    return found


def fitted(height: int, width: int, tall: int, wide: int) -> tuple[int, int]:
    """Returns the largest size within (tall, wide) in the same proportion."""
    if wide / width < tall / height:
        return min(math.ceil(height * (wide / width)), tall), wide
    return tall, min(math.ceil(width * (tall / height)), wide)


def _grid(steps: Steps, image: np.ndarray) -> Prepared:
    """LLaVA-NeXT: all of the picture, then tiles of it, padded to one of several sizes."""
    height, width, _ = image.shape
    grids = [[int(a), int(b)] for a, b in steps.more["image_grid_pinpoints"]]
    tall, wide = best_grid(height, width, grids)
    side = steps.crop[0] if steps.crop is not None else steps.size.get(
        "shortest_edge", steps.size.get("height", 0))  # fmt: skip
    new = fitted(height, width, tall, wide)
    inner, whole = resized(image, new, steps.filter), np.zeros((tall, wide, 3), np.uint8)
    y, x = (tall - new[0]) // 2, (wide - new[1]) // 2
    whole[y : y + new[0], x : x + new[1]] = inner
    size = steps.size
    square = (size["shortest_edge"],) * 2 if "shortest_edge" in size else (
        size["height"], size["width"])  # fmt: skip
    cuts = [resized(image, square, steps.filter)]
    cuts += [
        whole[r : r + side, c : c + side]
        for r in range(0, tall, side)
        for c in range(0, wide, side)
    ]
    made = [floats(steps, plain(steps, cut).image) for cut in cuts]
    return Prepared(tuple(made), tall // side, wide // side, (height, width))


def _net(steps: Steps, image: np.ndarray) -> Prepared:
    made = RULES[steps.kind](steps, image).image
    return Prepared((floats(steps, made),), original=image.shape[:2])


KINDS: Mapping[str, Callable[[Steps, np.ndarray], Prepared]] = {
    "plain": _net, "squared": _squared, "crops": _crops, "tiles": _tiles, "smart": _smart,
    "budget": _budget, "anyres": _grid, "framed": _framed,
    "patches": _patches, "mosaic": _mosaic, "grid": _grid, "sheet": _sheet,
    "bounded": _net, "multiple": _net, "margin": _net, "boxed": _net,
}  # fmt: skip


def patched(pixels: np.ndarray, patch: int) -> np.ndarray:
    """Returns the patches of pixels float32 [3, H, W] in rows, each as a convolution's weights are
    laid out: [H / patch * W / patch, 3 * patch * patch]."""
    channels, height, width = pixels.shape
    rows, columns = height // patch, width // patch
    cut = pixels[:, : rows * patch, : columns * patch]
    cut = cut.reshape(channels, rows, patch, columns, patch).transpose(1, 3, 0, 2, 4)
    return np.ascontiguousarray(cut.reshape(rows * columns, channels * patch * patch))
