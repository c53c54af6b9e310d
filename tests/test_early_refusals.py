"""Parameters that cannot work are refused by a notebook's first cells, before hours of work, in one sentence.

Run: pytest tests/test_early_refusals.py
"""

from pathlib import Path

import nbformat
import pytest

from arcnb.arc.predictions import Prediction, PredictionSet
from arcnb.arc.tasksets import load_tasks

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"


@pytest.fixture
def refusal(tmp_path, monkeypatch):
    """refusal("03", "open_backend(", workers=-1) -> the sentence, said before the cell that has that text."""
    monkeypatch.setenv("ARCNB_RUNS", str(tmp_path / "runs"))

    def refused(number, work, **parameters):
        (path,) = NOTEBOOKS.glob(f"{number}_*.ipynb")
        code = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
        (first_work,) = (i for i, cell in enumerate(code) if work in cell.source)
        names: dict = {}
        for cell in code[:first_work]:
            try:
                exec(compile(cell.source, path.name, "exec"), names)
            except ValueError as error:
                return str(error)
            if "parameters" in cell.metadata.get("tags", []):
                assert set(parameters) <= set(names)
                names |= parameters
        raise AssertionError(f"nothing was refused before {work}")

    return refused


@pytest.fixture(scope="module")
def two_versions(tmp_path_factory):
    """Folders of predictions of a task, and of another version of it."""
    task = load_tasks("arc-agi-1/training")[0]
    folders = []
    for name, fingerprint in (("one", task.fingerprint), ("other", "0" * 64)):
        one = PredictionSet(tmp_path_factory.mktemp(name))
        one.write_part([Prediction(task.task_id, fingerprint, 0, 0, status="ok")], 0)
        folders.append(one.folder)
    return folders


def test_06_looks_at_the_arms_beside_the_sets(refusal, two_versions):
    one, other = two_versions
    said = refusal("06", "comparison_table(", predictions=str(one), arms=f"a = {one}; b = {one} + {other}")
    assert said.startswith(f"{other} answers another version of task 007bbfb7")
    assert "rule 'most' does not exist" in refusal(
        "06", "comparison_table(", predictions=str(one), submission_rule="most"
    )
