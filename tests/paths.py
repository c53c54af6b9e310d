"""Where tests find the checkout, its notebooks and the golden files."""

from pathlib import Path

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
NOTEBOOKS = ROOT / "notebooks"
GOLDEN = TESTS / "golden"
