"""The package without its checkout: source archive, wheel, an environment of its own, a workspace, a run."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

import pytest

from tests.paths import NOTEBOOKS, ROOT

pytestmark = pytest.mark.slow
BUILD = "import sys; from setuptools import build_meta; print(getattr(build_meta, sys.argv[1])(sys.argv[2]))"


def built(what, source, target):
    command = [sys.executable, "-c", BUILD, what, str(target)]
    printed = subprocess.run(command, cwd=source, check=True, capture_output=True, text=True).stdout
    return target / printed.strip().splitlines()[-1]


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """bin/ of an environment that holds the wheel, and sees the other packages of this one."""
    tmp_path = tmp_path_factory.mktemp("wheel")
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    for name in ("arcnb", "notebooks"):
        shutil.copytree(
            ROOT / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__", ".ipynb_*")
        )
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, checkout)
    archive = built("build_sdist", checkout, tmp_path)
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path / "source", filter="data")
    wheel = built("build_wheel", next((tmp_path / "source").iterdir()), tmp_path)
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    python = environment / "bin" / "python"
    command = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "-q",
        "--no-deps",
        "--no-index",
        wheel,
    ]
    subprocess.run(command, check=True)
    site = next((environment / "lib").glob("python*/site-packages"))
    (site / "others.pth").write_text(sysconfig.get_path("purelib"))
    return environment / "bin"


@pytest.mark.long("it builds, installs and runs; ten seconds on two quiet cores")
def test_an_installed_package_lays_out_its_notebooks_and_runs_one(installed, tmp_path):
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "ARCNB_RUNS")}
    environment["PATH"] = f"{installed}{os.pathsep}{environment['PATH']}"

    def arcnb(*arguments, cwd=tmp_path):
        command = [installed / "arcnb", *arguments]
        result = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
        return result.stdout.strip()

    mine = Path(arcnb("init", "mine"))
    assert mine == tmp_path / "mine"
    delivered = {p.relative_to(NOTEBOOKS) for p in NOTEBOOKS.rglob("*") if p.is_file()}
    delivered = {path for path in delivered if ".ipynb_checkpoints" not in path.parts}
    assert {
        p.relative_to(mine / "notebooks") for p in (mine / "notebooks").rglob("*") if p.is_file()
    } == delivered
    assert arcnb("upgrade", cwd=mine) == ""
    run = Path(arcnb("run", "01", "--quiet", "-p", "n_tasks", "4", cwd=mine / "notebooks"))
    assert run.parent == mine / "runs"
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["status"] == "done"
    assert manifest["git"] is None
    assert manifest["notebook"]["path"] == str(mine / "notebooks" / "01_prepare_data.ipynb")
