"""A venv built once per requirements hash and packed, to be unpacked on each node's own disk: thousands of
small files are slow to read from a shared one.

The archive lies in `environments/` of the runs, or in $ARCNB_ENVIRONMENTS. The nodes need the same Python in
the same place; the package itself is taken from the work tree, through PYTHONPATH.
"""

import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
import venv
from pathlib import Path

from arcnb.errors import ArcnbError, reason
from arcnb.lab.runs.run import made_folder, runs_root
from arcnb.machine.files import replaced_file
from arcnb.machine.locks import locked


def environment_name(requirements: Path) -> str:
    """A name that changes with the requirements file and the Python. ArcnbError for a file that may not be
    read."""
    python = f"{sys.version} {os.path.realpath(sys.executable)}".encode()
    try:
        content = requirements.read_bytes()
    except OSError as error:
        raise ArcnbError(f"{requirements} cannot be read: {reason(error)}") from None
    return f"environment-{hashlib.sha256(content + python).hexdigest()[:12]}"


def archive_path(requirements: Path) -> Path:
    folder = os.environ.get("ARCNB_ENVIRONMENTS")
    root = Path(folder).expanduser().resolve() if folder else runs_root() / "environments"
    return root / f"{environment_name(requirements)}.tar.gz"


def build_archive(requirements: Path) -> bool:
    """Build the archive unless it is there; True if it was built now. Of two at once one builds, and the
    other waits. ArcnbError with pip's last words if it cannot be built."""
    archive = archive_path(requirements)
    try:
        made_folder(archive.parent)
        with locked(archive.with_suffix(".lock")):
            if archive.is_file():
                return False
            with tempfile.TemporaryDirectory(prefix=f"arcnb-environment-{os.getpid()}-") as folder:
                _build(Path(folder), requirements)
                with (
                    replaced_file(archive) as file,
                    tarfile.open(fileobj=file, mode="w:gz", compresslevel=1) as tar,
                ):
                    tar.add(folder, arcname=".")
    except OSError as error:
        raise ArcnbError(f"cannot build {archive}: {reason(error)}") from None
    return True


def _build(folder: Path, requirements: Path) -> None:
    """Both requirement files of the project are complete, hence --no-deps."""
    venv.create(folder, symlinks=False)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    pip += ["--python", str(folder / "bin" / "python"), "install", "--no-compile", "--no-deps"]
    command = [*pip, "-r", str(requirements.absolute())]
    result = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if result.returncode != 0:
        lines = (result.stderr.strip() or result.stdout.strip()).splitlines() or ["it gave no reason"]
        error = next((line for line in lines if line.startswith("ERROR")), lines[-1])
        raise ArcnbError(f"no environment could be built from {requirements}: {error}")
