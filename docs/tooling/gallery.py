"""Pictures of pages as a reader meets them, on a screen and on a phone.

    make gallery
    python docs/tooling/gallery.py docs/gallery RUN ... --index runs/index.html

Takes the first screen of every run's page, and of the index, and writes a README that shows them, says which
machine each run had, and which page answers what. Needs Debian's `chromium` and `chromium-driver`.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from arcnb.errors import ArcnbError
from arcnb.lab.pages.export import export_run
from arcnb.lab.pages.opening import opening_of
from arcnb.lab.runs import cards
from arcnb.lab.runs.run import Run, find_run
from arcnb.machine.files import write_whole

# What somebody who is shown the runs asks, and the pages whose first screen says it.
QUESTIONS = {
    "Which run was best?": "08_compare_runs",
    "What did it get wrong?": "03_inference",
    "Did RL help?": "06_evaluate",  # with `trained`; of coding problems 09_testcase_rl
}
SCREENS = {1300: 900, 390: 900}  # width: height of what is seen at once, pixels
ABOUT = (
    "What the pages of runs look like on a screen and on a phone. `make gallery` makes the runs and the "
    "pictures; the runs are small, and their numbers prove nothing. Whole pages of runs on GPUs: "
    "[results](../results/index.md#executed-notebooks)."
)
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
    """Write NAME-WIDTH.webp of every page into the folder."""
    from PIL import Image

    folder.mkdir(parents=True, exist_ok=True)
    written = []
    with tempfile.TemporaryDirectory(prefix="gallery") as profile, chromium(Path(profile)) as driver:
        for name, page in pages.items():
            for width, height in SCREENS.items():
                resize(driver, width, height)
                driver.get(page.resolve().as_uri())
                picture = Image.open(io.BytesIO(driver.get_screenshot_as_png())).convert("RGB")
                picture.save(path := folder / f"{name}-{width}.webp", "WEBP", quality=QUALITY, method=6)
                written.append(path)
    return written


def write_gallery(folder: Path, runs: list[Run], index: Path | None) -> Path:
    """The pictures and a README.md that shows them; returns its path."""
    pages = {"index": index} if index else {}
    said, made = {"index": "The index of the runs."}, {}
    for run in runs:
        name = f"{run.kind}-{run.name}" if run.kind in pages else run.kind
        pages[name], said[name] = export_run(run, index), opening_of(run)[0]
        machine = cards.machine_text(run.manifest["hardware"])
        made[name] = f"Run `{run.name}` on {machine}, {run.manifest['start'][:10]}."
    written = screens(pages, folder)
    lines = ["# Pages", "", ABOUT, ""]
    for question, kind in QUESTIONS.items():
        lines.append(f"* {question} The first screen of {f'[{kind}](#{kind})' if kind in pages else kind}.")
    for name in pages:
        lines += ["", f"## {name}", "", *([made[name], ""] if name in made else [])]
        for path in (one for one in written if one.stem.rpartition("-")[0] == name):
            wide = path.stem.rpartition("-")[2]
            lines.append(f"![{name}, {wide} pixels wide: {said[name]}]({path.name})")
    write_whole(folder / "README.md", "\n".join(lines) + "\n")
    return folder / "README.md"


def main() -> int:
    parser = argparse.ArgumentParser(description="Pictures of the pages of runs.")
    parser.add_argument("folder", type=Path, help="where the pictures go")
    parser.add_argument("runs", nargs="+", help="runs: folders, their names, or run names")
    parser.add_argument("--index", type=Path, help="the index of these runs")
    given = parser.parse_args()
    try:
        print(write_gallery(given.folder, [find_run(run) for run in given.runs], given.index))
    except ArcnbError as error:
        print(f"arcnb: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
