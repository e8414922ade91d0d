"""The page that writes down what is said: features and tokens are Python's, in Node and in
browsers."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from page_kit import Browser, Site, export_light

import weft
from weft.audio.mel import MelConfig, log_mel
from weft.web.export import sizes

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))
from speech_zoo import whisper

SCRIPT = """
import { readFileSync } from "node:fs";
const [base, folder, sound] = process.argv.slice(1);
const { load } = await import(base + "/node.js");
const { Features } = await import(base + "/mel.js");
const { FORMS } = await import(base + "/subtitles.js");
const model = await load(folder);
const samples = new Float32Array(new Uint8Array(readFileSync(sound)).buffer);
const hear = async (given, options) => {
  const [found, at] = [[], []];
  for await (const piece of model.transcribe(given, options)) {
    if (piece.segment) found.push(piece.segment);
    at.push(piece.at, piece.language);
  }
  return { found, at: at[at.length - 2], language: at[at.length - 1] };
};
const wrong = (...given) => hear(...given).catch((error) => error.message);
const whole = await hear(samples);
console.log(JSON.stringify({
  whole, german: await hear(samples, { language: "de", task: "translate", temperature: 0 }),
  first: await hear(samples.subarray(0, 41000), { more: true, temperature: 0 }),
  none: await hear(samples.subarray(0, 1000), { more: true }),
  rows: [...new Features(samples, 80, 200).rows],
  srt: FORMS.srt(whole.found), vtt: FORMS.vtt(whole.found),
  wrong: [await wrong([1]), await wrong(new Float32Array()), await wrong(Float32Array.of(NaN)),
    await wrong(samples, { language: "xx" }), await wrong(samples, { temperature: [] })],
  written: await model.generate("a").next().catch((error) => error.message),
}));
"""


def noise(seconds: float) -> np.ndarray:
    """Loud and quiet in turns, in whole steps of 16 bits."""
    n = int(16000 * seconds)
    x = np.random.default_rng(0).standard_normal(n) * 0.1 * np.abs(np.sin(np.arange(n) / 9000))
    return (np.round(x * 32768) / 32768).astype(np.float32)


def write_sound(path: Path, x: np.ndarray, rate: int = 16000, channels: int = 1) -> str:
    with wave.open(str(path), "wb") as out:
        out.setparams((channels, 2, rate, 0, "NONE", ""))
        out.writeframes((np.repeat(x, channels) * 32768).astype("<i2").tobytes())
    return str(path)


@pytest.fixture(scope="module")
def heard(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    root = tmp_path_factory.mktemp("speech")
    whisper(root / "model")
    model: Any = weft.load(root / "model", device="cpu")
    manifest = export_light(model, root / "page")
    parts = {what: packed for what, _, packed in sizes(root / "page", manifest)}
    assert parts["player"] + parts["page"] + parts["Program, WebGPU"] < 70_000
    return root / "page", model


def said(segments: Any) -> list[Any]:
    return [[s.start, s.end, s.text, s.tokens, s.temperature] for s in segments]


KEYS = ("start", "end", "text", "tokens", "temperature")


def of_page(segments: list[dict[str, Any]]) -> list[Any]:
    return [[s[key] for key in KEYS] for s in segments]


@pytest.mark.skipif(shutil.which("node") is None, reason="node was not found")
def test_the_player_hears_what_python_hears(heard: tuple[Path, Any], tmp_path: Path) -> None:
    (page, model), x = heard, noise(5.3)
    x.tofile(tmp_path / "x.f32")
    given = [page.as_uri(), str(page), str(tmp_path / "x.f32")]
    call = ["node", "--input-type=module", "-e", SCRIPT, *given]
    done = subprocess.run(call, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    whole = model.transcribe(x)  # tried again at several temperatures: the weights are random
    assert {s.temperature for s in whole.segments} == {1.0}
    assert of_page(found["whole"]["found"]) == said(whole.segments)
    assert found["whole"]["language"] == whole.language
    german = model.transcribe(x, language="de", task="translate", temperature=0.0)
    assert of_page(found["german"]["found"]) == said(german.segments)
    rows = np.concatenate(list(log_mel([x], MelConfig(80))))
    np.testing.assert_allclose(np.array(found["rows"]).reshape(rows.shape), rows, atol=1e-6)
    # of a sound that goes on, only whole windows are heard
    assert 0.56 < found["first"]["at"] <= 2.56 and found["first"]["found"]
    assert found["none"] == {"found": [], "at": 0, "language": None}
    from weft.audio.subtitles import srt, vtt

    assert found["srt"] == "".join(srt(whole.segments))
    assert found["vtt"] == "".join(vtt(whole.segments))
    expected = ("Float32Array", "empty", "NaN", "this model has de, en", "a list of them")
    for message, part in zip(found["wrong"], expected, strict=True):
        assert part in message
    assert "is a speech: it has no generate" in found["written"]


PAGE = """
await page.goto(given.url);
await it.ready();
const out = {};
for (const file of given.files) {
  await page.setInputFiles("#listen-file", file);
  await page.waitForSelector("#listen[data-state=done]");
  const [heard, note] = [await page.$eval("#listen", (e) => e.dataset.heard),
    await page.textContent("#listen-note")];
  out[file] = { heard: JSON.parse(heard), note, saves: await page.isVisible("#listen-srt") };
  if (given.shot) await page.screenshot({ path: given.shot, fullPage: true });
  await page.$eval("#listen", (e) => { e.dataset.state = ""; });
}
return { out, errors: it.errors, writes: await page.isVisible("#tab-write"),
  violations: await page.evaluate(() => noted.violations) };
"""


@pytest.fixture(scope="module")
def site(heard: tuple[Path, Any]) -> Iterator[Site]:
    served = Site(heard[0])
    yield served
    served.close()


@pytest.mark.parametrize("target", ["wasm", pytest.param("webgpu", marks=pytest.mark.slow)])
def test_the_page_hears_files(
    target: str, heard: tuple[Path, Any], site: Site, tmp_path: Path, browser: Browser
) -> None:
    x, model = noise(3), heard[1]
    talk = write_sound(tmp_path / "talk.wav", x)
    stereo = write_sound(tmp_path / "stereo.wav", x, channels=2)
    low = write_sound(tmp_path / "low.wav", x, rate=8000)
    empty, none, text = (str(tmp_path / n) for n in ("empty.wav", "none.wav", "text.mp3"))
    Path(empty).write_bytes(b"")
    write_sound(Path(none), x[:0])
    Path(text).write_text("a letter")
    given = {"url": f"{site.url}?target={target}",
             "files": [text, empty, none, low, stereo, talk]}  # fmt: skip
    found = browser.run(target, PAGE, given)
    out, expected = found["out"], said(model.transcribe(x).segments)
    assert of_page(out[talk]["heard"]) == of_page(out[stereo]["heard"]) == expected
    assert out[talk]["saves"] and "pieces" in out[talk]["note"]
    assert out[low]["heard"][-1]["end"] > 4
    for path, part in (
        (text, "finds no sound in text.mp3"),
        (empty, "is empty"),
        (none, "none.wav"),
    ):
        assert part in out[path]["note"] and not out[path]["heard"]
    assert (found["errors"], found["violations"], found["writes"]) == ([], [], False)


ASKED = """
await page.goto(given.url);
await it.ready();
await page.selectOption("#listen-language", "de");
await page.check("#listen-english");
const out = {};
for (const times of [true, false]) {
  await page.setChecked("#listen-times", times);
  await page.setInputFiles("#listen-file", given.file);
  await page.waitForSelector("#listen[data-state=done]");
  const files = {};
  for (const form of ["txt", "srt", "vtt"]) {
    const saved = page.waitForEvent("download");
    await page.click(`#listen-${form}`);
    const stream = await (await saved).createReadStream();
    files[form] = "";
    for await (const part of stream) files[form] += part;
  }
  if (given.shot) await page.screenshot({ path: given.shot, fullPage: true });
  out[times] = { heard: JSON.parse(await page.$eval("#listen", (e) => e.dataset.heard)), files };
  await page.$eval("#listen", (e) => { e.dataset.state = ""; });
}
return { out, errors: it.errors, violations: await page.evaluate(() => noted.violations) };
"""


def test_the_page_does_as_asked(
    heard: tuple[Path, Any], site: Site, tmp_path: Path, browser: Browser
) -> None:
    """The language, a translation, times or none; and the files that it saves."""
    from weft.audio.subtitles import srt, vtt

    x, model = noise(5.3), heard[1]
    given = {"url": f"{site.url}?target=wasm", "file": write_sound(tmp_path / "talk.wav", x)}
    found = browser.run("asked", ASKED, given)
    for times in (True, False):
        wanted = model.transcribe(x, language="de", task="translate", timestamps=times).segments
        got = found["out"][str(times).lower()]
        assert of_page(got["heard"]) == said(wanted)
        assert got["files"]["srt"] == "".join(srt(wanted))
        assert got["files"]["vtt"] == "".join(vtt(wanted))
        assert got["files"]["txt"].split() == " ".join(s.text for s in wanted).split()
    assert (found["errors"], found["violations"]) == ([], [])


LIVE = """
await page.goto(given.url);
await it.ready();
await page.click("#listen-record");
await page.waitForSelector("#listen-lines li"); // a window is heard while the recording goes on
const during = await page.$eval("#listen", (e) => e.dataset.state);
if (given.shot) await page.screenshot({ path: given.shot });
await page.click("#listen-stop");
await page.waitForSelector("#listen[data-state=done]");
const note = await page.textContent("#listen-note");
const heard = JSON.parse(await page.$eval("#listen", (e) => e.dataset.heard));
const saved = page.waitForEvent("download");
await page.click("#listen-vtt");
const name = (await saved).suggestedFilename();
return { heard, during, name, note, errors: it.errors,
  violations: await page.evaluate(() => noted.violations) };
"""
MICROPHONE = ("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream")


@pytest.mark.slow
def test_the_page_hears_the_microphone(site: Site, tmp_path: Path) -> None:
    browser = Browser(*MICROPHONE)
    try:
        found = browser.run("live", LIVE, {"url": f"{site.url}?target=wasm"})
    finally:
        browser.close()
    times = [(s["start"], s["end"]) for s in found["heard"]]
    assert all(start <= end for start, end in times) and times == sorted(times)
    assert (found["during"], found["name"]) == ("hearing", "recording.vtt"), found
    assert (found["errors"], found["violations"]) == ([], [])


STOPPED = """
await page.goto(given.url);
await it.ready();
await page.setInputFiles("#listen-file", given.file);
await page.waitForSelector("#listen-lines li");
await page.click("#listen-stop");
await page.waitForSelector("#listen[data-state=done]");
const [note, lines] = [await page.textContent("#listen-note"), await page.$$("#listen-lines li")];
await page.setInputFiles("#listen-file", given.short);
await page.waitForSelector("#listen[data-state=done]");
return { note, lines: lines.length, saves: await page.isVisible("#listen-txt"),
  short: JSON.parse(await page.$eval("#listen", (e) => e.dataset.heard)) };
"""


@pytest.mark.slow
def test_a_long_file_is_stopped(
    heard: tuple[Path, Any], site: Site, tmp_path: Path, browser: Browser
) -> None:
    long = write_sound(tmp_path / "long.wav", np.tile(noise(60), 10))
    short = write_sound(tmp_path / "short.wav", noise(3))
    given = {"url": f"{site.url}?target=wasm", "file": long, "short": short}
    found = browser.run("long", STOPPED, given)
    assert found["note"] == "Stopped." and found["lines"] and found["saves"]
    assert of_page(found["short"]) == said(heard[1].transcribe(noise(3)).segments)
