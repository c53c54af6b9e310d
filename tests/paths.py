"""Where tests find the checkout, its notebooks, the golden files and the tools of the documentation."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
NOTEBOOKS = ROOT / "notebooks"
GOLDEN = TESTS / "golden"


def tooling(name: str) -> ModuleType:
    """The module docs/tooling/NAME.py, which is no part of a package."""
    spec = importlib.util.spec_from_file_location(f"tooling_{name}", ROOT / "docs" / "tooling" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there for their module
    spec.loader.exec_module(module)
    return module
