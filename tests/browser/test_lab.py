"""JupyterLab in a real browser: it starts, the launcher runs, the explorer answers."""

import os
import shlex
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from arcnb.arc.tasks.task_set import load_tasks
from arcnb.lab.explorer.entries import entries
from arcnb.lab.explorer.static import explorer_html
from arcnb.lab.notebooks import files
from arcnb.lab.runs.run import new_run
from arcnb.machine.starts import free_port
from tests.paths import ROOT


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """The address of a JupyterLab started as `make lab` starts it, in a copy of the notebooks."""
    folder = tmp_path_factory.mktemp("lab")
    shutil.copytree(ROOT / "notebooks", folder / "notebooks")
    with pytest.MonkeyPatch.context() as here:
        here.setenv("ARCNB_RUNS", str(folder / "runs"))
        new_run("earlier", {"n": 1}).record({"solved": 3})
    executed_copy(folder / "runs" / "executed.ipynb", folder / "DATA")
    port = free_port()
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


def executed_copy(path: Path, jupyter_data: Path) -> None:
    """A notebook with a static explorer in it, signed as `arcnb run` signs what it executed."""
    html = explorer_html(entries(load_tasks("arc-agi-1/training")[:5]), "five tasks")
    outputs = [new_output("display_data", {"text/html": html, "text/plain": "an explorer"})]
    cells = [new_code_cell("1", execution_count=1, outputs=outputs)]
    kernel = {"name": "python3", "language": "python", "display_name": "Python 3"}
    nbformat.write(new_notebook(cells=cells, metadata={"kernelspec": kernel}), path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_DATA_DIR", str(jupyter_data))
        files.sign(path)


def answers(address: str) -> bool:
    try:
        return urllib.request.urlopen(f"{address}/api", timeout=5).status == 200
    except (urllib.error.URLError, OSError):
        return False


@pytest.mark.long("JupyterLab starts, and a kernel in it")
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
    assert browser.hosts() == {"127.0.0.1"}, "the lab asks nobody else"
    listed = browser.run("return fetch('/api/contents/runs').then((answer) => answer.json())")["content"]
    assert {item["name"].partition("-")[2][7:] for item in listed} == {"earlier", ""}, "looking leaves no run"


def test_an_executed_copy_filters_without_a_kernel(browser, lab):
    browser.wait(lambda: answers(lab))
    browser.open(f"{lab}/lab/tree/runs/executed.ipynb")
    browser.wait(lambda: browser.text(".arcnb-explorer .count") == "5 of 5 tasks")
    browser.find(".arcnb-explorer .task-next").click()
    assert browser.run("return document.querySelector('.arcnb-explorer select.task').selectedIndex") == 1
    browser.find(".arcnb-explorer input.text").send_keys("zzz")
    assert browser.text(".arcnb-explorer .count") == "0 of 5 tasks"
