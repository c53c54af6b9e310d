"""Pages of runs as a reader meets them: whole, and their first screens on a wide window and on a phone.

    make gallery
    python docs/tooling/gallery.py docs/gallery RUN ... --index runs/index.html

Copies every run's page, and the index, to FOLDER/pages, without paths of this machine, with links to each
other alone. Takes their first screens, and writes a README that shows them, says which machine each run had,
and which page answers what. Pages of other runs stay: those of a GPU (notebooks/pipelines/gpu.yaml) are added
by the same command, by their runs or by their .html files alone, and so get today's style, too. Needs
Debian's `chromium` and `chromium-driver`.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import html
import io
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from arcnb.errors import ArcnbError
from arcnb.lab.pages.export import export_run, page_style
from arcnb.lab.runs.finding import find_run
from arcnb.machine.files import write_whole

# What somebody who is shown the runs asks, and the pages whose first screen says it.
QUESTIONS = {
    "Which run was best?": "08_compare_runs",
    "What did it get wrong?": "03_inference",
    "Did RL help?": "06_evaluate",  # with `trained`; of coding problems 09_testcase_rl
}
SCREENS = {1300: 900, 390: 900}  # width: height of what is seen at once, pixels
ABOUT = (
    "Each page whole, and its first screen on a wide window and on a phone. `make gallery` makes runs, pages "
    "and pictures; runs on two CPU cores are small, and their numbers prove nothing. Runs named `gpu-...` "
    "are the stages of `notebooks/pipelines/gpu.yaml` on one GPU. GitHub shows a page's source: open it in a "
    "clone or on the site. Pages of experiments: [results](../results/index.md#executed-notebooks)."
)
MADE = "gallery.json"  # of each page: its run's folder and name, its machine and day, its sentences
EXPLORER = "06_evaluate"  # the page whose explorer is shown, at a task that is solved, by a near miss
NEAR_MISS = """
const explorer = document.querySelector('.arcnb-explorer'), rate = explorer.querySelector('select.rate');
rate.value = 'solved';
rate.dispatchEvent(new Event('change'));
for (let n = 0; n < 20 && !explorer.querySelector('svg[aria-label^=difference]'); n++)
  explorer.querySelector('.prediction-next').click();"""
QUALITY = 72  # of the pictures, WebP
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-extensions",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
    "--window-size=1300,1000",
)  # fmt: skip


@contextmanager
def chromium(profile: Path, log: bool = False) -> Iterator[Any]:
    """Selenium's driver of a headless Chromium. profile: an empty folder. log: keep what pages ask for."""
    binary, driver = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
    if binary is None or driver is None:
        need = "apt-get install chromium chromium-driver"
        raise ArcnbError(f"chromium or chromedriver is not installed ({need})")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for flag in [*FLAGS, f"--user-data-dir={profile}"]:
        options.add_argument(flag)
    if log:
        options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    opened = webdriver.Chrome(options=options, service=Service(driver))
    try:
        yield opened
    finally:
        own = psutil.Process(opened.service.process.pid).children(recursive=True)
        opened.quit()
        for process in psutil.wait_procs(own, timeout=5)[1]:  # a slow one outlives the driver's patience
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def resize(driver: Any, width: int, height: int) -> None:
    """Let the page think that its window is so large, in pixels; narrower than windows can be, too."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def screens(pages: Mapping[str, Path], folder: Path) -> list[Path]:
    """Write NAME-WIDTH.webp of every page into the folder, and explorer.webp if it is among them."""
    from PIL import Image

    folder.mkdir(parents=True, exist_ok=True)
    written = []
    with tempfile.TemporaryDirectory(prefix="gallery") as profile, chromium(Path(profile)) as driver:
        for name, page in pages.items():
            for width, height in SCREENS.items():
                resize(driver, width, height)
                driver.get(page.resolve().as_uri())
                shots = {f"{name}-{width}": driver.get_screenshot_as_png()}
                if name == EXPLORER and width > 900:
                    driver.execute_script(NEAR_MISS)
                    shown = driver.find_element("css selector", ".arcnb-explorer")
                    shots["explorer"] = picture_of(driver, shown)
                for stem, shot in shots.items():
                    picture = Image.open(io.BytesIO(shot)).convert("RGB")
                    picture.save(path := folder / f"{stem}.webp", "WEBP", quality=QUALITY, method=6)
                    written.append(path)
    return written


def picture_of(driver: Any, element: Any) -> bytes:
    """The element alone, as a PNG; chromedriver's own has ten seconds for it, too few on a busy machine."""
    clip = {**element.rect, "scale": 1}  # in pixels of the page
    asked = {"format": "png", "clip": clip, "captureBeyondViewport": True}
    return base64.b64decode(driver.execute_cdp_cmd("Page.captureScreenshot", asked)["data"])


def write_gallery(folder: Path, pages: list[Path], index: Path | None) -> Path:
    """The pages of runs, their pictures and a README.md that shows them; returns its path."""
    made = json.loads((folder / MADE).read_text()) if (folder / MADE).is_file() else {}
    fresh: dict[str, str] = {}
    if index:
        fresh["index"] = index.read_text(encoding="utf-8")
        made["index"] = {"folder": index.name, "run": "", "said": "The index of the runs."}
    for page in pages:
        facts = facts_of(text := page.read_text(encoding="utf-8"))
        taken = page.stem in fresh or made.get(page.stem, facts)["run"] != facts["run"]
        name = f"{page.stem}-{facts['run']}" if taken else page.stem
        fresh[name], made[name] = text, facts
    made = {name: made[name] for name in sorted(made, key=lambda name: (name != "index", name))}
    places = {name: folder / "pages" / f"{name}.html" for name in made}
    (folder / "pages").mkdir(parents=True, exist_ok=True)
    here = {facts["folder"]: f"{name}.html" for name, facts in made.items()}
    for name, text in fresh.items():
        write_whole(places[name], styled(linked_here(anywhere(text), here)))
    screens({name: places[name] for name in fresh}, folder)
    write_whole(folder / MADE, json.dumps(made, indent=1) + "\n")
    lines = ["# Pages of runs", "", ABOUT, ""]
    for question, kind in QUESTIONS.items():
        lines.append(f"* {question} The first screen of {f'[{kind}](#{kind})' if kind in made else kind}.")
    for name, facts in made.items():
        of_run = (
            f"Run `{facts['run']}`, {facts['day']}. Machine: {facts['machine']}. " if facts["run"] else ""
        )
        lines += ["", f"## {name}", "", f"{of_run}[The whole page](pages/{name}.html)", ""]
        for wide in SCREENS:
            lines.append(f"![{name}, {wide} pixels wide: {facts['said']}]({name}-{wide}.webp)")
    write_whole(folder / "README.md", "\n".join(lines) + "\n")
    return folder / "README.md"


def facts_of(page: str) -> dict[str, str]:
    """What the page of a run says of it: its folder and name, its machine and day, its sentences."""

    def said(pattern: str) -> str:
        match = re.search(pattern, page, flags=re.DOTALL)
        return html.unescape(match[1]).strip() if match else ""

    return {
        "folder": said(r"<td>folder</td><td>(.*?)</td>"),
        "run": said(r'<div class="head">.*?<strong>(.*?)</strong>'),
        "machine": said(r"<td>hardware</td><td>(?:[\w.-]+: )?(.*?)</td>"),
        "day": said(r"<time>([0-9-]+)"),
        "said": said(r'<p class="headline">(.*?)</p>'),
    }


def anywhere(page: str) -> str:
    """The page without the paths of the machine that made it: work tree, runs folder, packages, home."""
    if root := re.search(r"<td>notebook</td><td>(/[^<]*?/)notebooks/", page):
        page = page.replace(root[1], "")
    page = re.sub(r"(?<![\w./])/[\w./-]*?/(?=\d{8}-\d{6}-)", "runs/", page)
    page = re.sub(r"(?<![\w./])/[\w./-]*?/(?=site-packages/)", "", page)
    return re.sub(r"(?<![\w/])/(root|home/[\w.-]+)/", "~/", page)


def styled(page: str) -> str:
    """The page with the style sheet that pages have now; an older page may have an older one."""
    return re.sub(
        r"<style>.*?</style>", lambda _: f"<style>\n{page_style()}\n</style>", page, count=1, flags=re.S
    )


def linked_here(page: str, here: Mapping[str, str]) -> str:
    """The page with its links to pages of the gallery; those to other files become their words.

    here: folder of a run, or name of the index -> name of the page beside this one.
    """

    def moved(match: re.Match[str]) -> str:
        before, address, after, words = match.groups()
        parts = address.split("/")
        known = next((here[part] for part in parts[-2:] if part in here), None)
        if known is None or not address.endswith(".html"):
            return words
        return f'<a {before}href="{known}"{after}>{words}</a>'

    return re.sub(r'<a ([^>]*)href="(?!#|\w+:)([^"]*)"([^>]*)>(.*?)</a>', moved, page, flags=re.DOTALL)


def main() -> int:
    parser = argparse.ArgumentParser(description="Pictures of the pages of runs.")
    parser.add_argument("folder", type=Path, help="where the pictures go")
    parser.add_argument("runs", nargs="+", help="runs (folders, their names, run names), or pages of runs")
    parser.add_argument("--index", type=Path, help="the index of these runs")
    given = parser.parse_args()
    try:
        pages = [
            Path(one) if one.endswith(".html") else export_run(find_run(one), given.index)
            for one in given.runs
        ]
        print(write_gallery(given.folder, pages, given.index))
    except ArcnbError as error:
        print(f"arcnb: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
