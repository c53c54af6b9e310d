"""The house keeps its walls: import directions, and light imports."""

import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import arcnb
from tests.paths import ROOT

ROOMS = ("arc", "programs", "synth", "models", "rl", "search", "problems", "lab")
HEAVY = ("torch", "transformers", "vllm", "trl", "peft", "unsloth", "datasets", "matplotlib")


def modules(room: str) -> list[str]:
    """Every module of a room. `programs` holds libraries for generated programs, which are not ours to
    import."""
    folder = Path(arcnb.__file__).parent / room
    names = [f"arcnb.{room}"]
    for info in pkgutil.iter_modules([str(folder)], f"arcnb.{room}."):
        if not info.ispkg:
            names.append(info.name)
    return names


def test_rooms_import_only_from_rooms_above_them():
    program = Path(sys.executable).with_name("lint-imports")
    root = ROOT
    result = subprocess.run([program, "--no-cache"], cwd=root, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


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


def test_importing_the_package_is_instant():
    script = "import sys; before = set(sys.modules); import arcnb; print(*sorted(set(sys.modules) - before))"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert loaded.split() == ["arcnb"]
