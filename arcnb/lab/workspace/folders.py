"""Where notebooks are and where runs go: a workspace, a checkout, or the current folder.

A workspace is a folder that `arcnb init` laid out:

    notebooks/      the ten notebooks, with profiles/ and pipelines/; yours to edit
    runs/           one folder a run
    .arcnb/         notebooks as they were delivered, by which `arcnb upgrade` knows what you edited
"""

import os
from pathlib import Path

DELIVERED = ".arcnb"  # in a workspace: what was delivered, file by file
_PACKAGE = Path(__file__).resolve().parents[2]


def repository() -> Path | None:
    """The checkout that this package is used from, or None when it was installed without one."""
    root = _PACKAGE.parent
    return root if (root / "pyproject.toml").is_file() and (root / "notebooks").is_dir() else None


def workspace() -> Path | None:
    """The nearest folder, from the current one upwards, that `arcnb init` laid out."""
    here = Path.cwd()
    # Not Path.is_dir, which ends with an error where a folder above may not be entered.
    return next((one for one in (here, *here.parents) if os.path.isdir(one / DELIVERED)), None)


def home() -> Path:
    """The folder that holds `notebooks/` and `runs/`."""
    return workspace() or repository() or Path.cwd()


def shipped() -> Path:
    """The notebooks that came with this package: in its checkout, or within the installed package."""
    root = repository()
    return root / "notebooks" if root else _PACKAGE / "notebooks"


def notebooks_folder() -> Path:
    """`notebooks/` of the workspace or the checkout; without either those that came with the package."""
    folder = home() / "notebooks"
    return folder if folder.is_dir() else shipped()
