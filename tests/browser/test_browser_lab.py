"""JupyterLab in a real browser: it starts, the launcher runs, the explorer answers.

pytest tests/browser/test_browser_lab.py
"""

import os
import shlex
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from arcnb.lab.runs import new_run

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """The address of a JupyterLab started as `make lab` starts it, in a copy of the notebooks."""
    folder = tmp_path_factory.mktemp("lab")
    shutil.copytree(ROOT / "notebooks", folder / "notebooks")
    new_run(folder / "runs", "earlier", {"n": 1}).record({"solved": 3})
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    told = subprocess.run(["make", "-n", "lab"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    (line,) = [line for line in told.replace("\\\n", " ").splitlines() if "jupyter lab" in line]
    flags = [flag.replace(str(ROOT), str(folder)) for flag in shlex.split(line)[2:]]
    command = [
        sys.executable, "-m", "jupyter", "lab", *flags, f"--port={port}", "--no-browser", "--allow-root",
        "--IdentityProvider.token=", "--LabApp.expose_app_in_browser=True",
    ]  # fmt: skip
    own = {f"JUPYTER_{kind}_DIR": str(folder / kind) for kind in ("CONFIG", "DATA", "RUNTIME")}
    own |= {"JUPYTERLAB_WORKSPACES_DIR": str(folder / "w"), "JUPYTERLAB_SETTINGS_DIR": str(folder / "s")}
    environment = os.environ | own | {"ARCNB_RUNS": str(folder / "runs"), "IPYTHONDIR": str(folder / "i")}
    environment.pop("ARCNB_RUN_DIR", None)
    log = (folder / "log").open("w")
    process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
    yield f"http://127.0.0.1:{port}"
    process.terminate()
    try:
        process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        process.kill()


def answers(address: str) -> bool:
    try:
        return urllib.request.urlopen(f"{address}/api", timeout=5).status == 200
    except (urllib.error.URLError, OSError):
        return False


def test_the_launcher_opens_runs_and_its_explorer_answers(browser, lab):
    browser.wait(lambda: answers(lab))
    browser.open(f"{lab}/")
    browser.wait(lambda: browser.run("return window.jupyterapp?.shell?.currentWidget?.context?.isReady"))
    assert (
        browser.run("return window.jupyterapp.shell.currentWidget.context.path") == "notebooks/00_start.ipynb"
    )
    # Before anything runs, the list with its pictures is there.
    browser.wait(lambda: browser.count(".jp-RenderedMarkdown td img") >= 6)
    assert "06 · Evaluate" in browser.text(".jp-Notebook")

    kernel = "window.jupyterapp.shell.currentWidget.sessionContext?.session?.kernel"
    browser.wait(lambda: browser.run(f"return {kernel}?.status === 'idle'"))
    browser.run("window.jupyterapp.commands.execute('notebook:run-all-cells')")
    browser.wait(lambda: browser.count(".arcnb-live-explorer svg.arcnb-grid"), 90)
    text = browser.text(".jp-Notebook")
    assert "arc-agi-2/evaluation" in text
    assert "-earlier" in text
    assert "400 of 400 tasks" in text

    browser.find(".arcnb-live-explorer button[title='next task']").click()
    first = "007bbfb7"
    browser.wait(lambda: first not in browser.text(".arcnb-live-explorer .widget-dropdown option:checked"))
    area = browser.find(".arcnb-program textarea")
    browser.run(
        "const [area, text] = arguments; area.value = text;"
        "for (const name of ['input', 'change']) area.dispatchEvent(new Event(name, {bubbles: true}))",
        area,
        "def transform(grid):\n    return grid + 1",
    )
    browser.find("button.arcnb-go").click()
    result = browser.wait(lambda: browser.text(".arcnb-result"))
    assert "your program" in result
    assert "produced" in result
    assert browser.count(".arcnb-result svg.arcnb-grid") >= 6
    own = browser.hosts()
    assert own == {"127.0.0.1"}, "the lab asks nobody else"
