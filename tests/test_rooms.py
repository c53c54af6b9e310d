"""The house keeps its walls: import directions, no circles, small folders, light imports, faces."""

import ast
import importlib
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from tests.paths import NOTEBOOKS, ROOT

ROOMS = ("machine", "arc", "programs", "synth", "models", "rl", "search", "problems", "lab")
APART = (
    "arcnb.programs.libraries",
    "arcnb.models.sampling.cpu_executor",
    "arcnb.rl.engine.cpu_generation",
    "arcnb.rl.engine.group_attention",
)
HEAVY = ("torch", "transformers", "vllm", "trl", "peft", "unsloth", "datasets", "matplotlib")


def modules(room: str) -> list[str]:
    """Every module below a room, but for what only vLLM or a program's process imports."""
    package = importlib.import_module(f"arcnb.{room}")
    found = [info.name for info in pkgutil.walk_packages(package.__path__, f"arcnb.{room}.")]
    return [name for name in found if not name.startswith(APART)]


def test_rooms_import_only_from_rooms_above_them_and_in_no_circles():
    program = Path(sys.executable).with_name("lint-imports")
    result = subprocess.run([program, "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    "folder",
    [
        ROOT / "arcnb",
        *(path for path in (ROOT / "arcnb").rglob("*") if path.is_dir() and path.name != "__pycache__"),
    ],
)
def test_a_folder_is_read_at_a_glance(folder):
    entries = {
        path.stem for path in (ROOT / folder).iterdir() if path.stem not in ("__pycache__", "__init__", "py")
    }
    assert len(entries) <= 12 or folder.name == "generators", f"{folder}: {len(entries)} entries"


@pytest.mark.long("imports every module of a room")
@pytest.mark.parametrize("room", ROOMS)
def test_importing_a_room_loads_nothing_heavy(room):
    names = modules(room)
    assert names
    script = f"""
import importlib, sys
for name in {names!r}:
    importlib.import_module(name)
    loaded = [heavy for heavy in {HEAVY!r} if heavy in sys.modules]
    assert not loaded, f"importing {{name}} loads {{loaded}}"
"""
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
    assert result.returncode == 0, result.stderr


def faces() -> list[str]:
    stubs = sorted((ROOT / "arcnb").rglob("__init__.pyi"))
    return [".".join(stub.parent.relative_to(ROOT).parts) for stub in stubs]


@pytest.mark.parametrize("face", faces())
def test_a_face_has_the_names_that_it_promises(face):
    package = importlib.import_module(face)
    assert package.__all__
    for name in package.__all__:
        assert getattr(package, name) is not None
    assert len(package.__all__) <= 12


@pytest.mark.parametrize("face", faces())
def test_a_module_that_a_face_names_is_loaded_by_its_own_package(face):
    """It is an attribute of a package that is no face only once something has imported it."""
    folder = ROOT.joinpath(*face.split("."))
    for node in ast.parse((folder / "__init__.pyi").read_text()).body:
        inside = folder.joinpath(*(node.module or "").split("."))
        for name in (alias.name for alias in node.names if node.module):
            if (inside / f"{name}.py").is_file() or (inside / name).is_dir():
                assert name in importlib.import_module(f"{face}.{node.module}").__all__


def test_notebooks_import_from_faces_only():
    names = set()
    for path in NOTEBOOKS.glob("*.ipynb"):
        for cell in nbformat.read(path, as_version=4).cells:
            for node in ast.walk(ast.parse(cell.source if cell.cell_type == "code" else "")):
                if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "arcnb":
                    names |= {(node.module, alias.name) for alias in node.names}
    assert {package for package, _ in names} <= {f"arcnb.{room}" for room in ROOMS} | {"arcnb.plans"}
    assert len(names) <= 60


def test_importing_the_package_is_instant():
    script = "import sys; before = set(sys.modules); import arcnb; print(*sorted(set(sys.modules) - before))"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert loaded.split() == ["arcnb"]
