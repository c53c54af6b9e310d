"""The keys that docs/reference/metrics.md tells of, and those of a run's log that it does not."""

import re
from pathlib import Path

from arcnb.models.training.log import read_metrics
from tests.paths import ROOT

PAGE = ROOT / "docs/reference/metrics.md"


def told_keys() -> list[str]:
    """Of the first column of its tables, where `<name>` stands for any name without a slash."""
    cells = re.findall(r"^\| (`[^|]+) \|", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return [key for cell in cells for key in re.findall(r"`([^`]+)`", cell)]


def written_keys(folder: Path) -> set[str]:
    """Of all lines of the run folder's metrics.jsonl."""
    return {key for row in read_metrics(Path(folder) / "metrics.jsonl") for key in row}


def is_told(key: str, told: list[str]) -> bool:
    return any(fits(key, one) for one in told)


def fits(key: str, told: str) -> bool:
    """Whether a key is the one told, or one of those."""
    parts = re.split(r"<\w+>", told)
    return re.fullmatch("[^/]+".join(map(re.escape, parts)), key) is not None


def unknown_keys(folder: Path) -> list[str]:
    """Keys in the run folder's log that the page does not have."""
    told = told_keys()
    return sorted(key for key in written_keys(folder) if not is_told(key, told))
