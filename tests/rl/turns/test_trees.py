"""Refinement as a tree: who is refined, what is trained, and what a failure is worth that is mended."""

import pytest

from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.rl.turns.episodes import MultiTurnRollout
from tests.rl.turns.test_turns import COPIES, FAILS, SOLVES

TREE = {
    "turns": 2,
    "tree": 2,
    "num_generations": 6,
    "augment": "none",
    "reward": "solved",
    "terms": {},
    "max_steps": 1,
    "max_completion_length": 64,
    "advantages": "none",
}


@pytest.fixture
def scripted(monkeypatch):
    """Two first answers, of which `answers[first]` says what they are. Of the refinements the first of a call
    solves, others copy their input."""
    given = {"first": (FAILS, COPIES), "read": []}

    def answers(self, trainer, prompts, seed):
        tokenizer = self.rows.tokenizer
        texts = [tokenizer.decode(ids) for ids in prompts]
        given["read"].append(texts)
        made = []
        for number, text in enumerate(texts):
            first = text.count("<|im_start|>assistant") == 1
            answer = given["first"][number % 2] if first else COPIES if number else SOLVES
            ids = [*tokenizer(answer, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
            made.append((ids, [None] * len(ids)))
        return made

    monkeypatch.setattr(MultiTurnRollout, "answers", answers)
    return given


def advantages(folder):
    import pandas as pd

    table = pd.read_parquet(folder / "checkpoints" / "completions" / "completions_00001.parquet")
    return dict(zip(table["prediction"].str.split("/", n=1).str[1], table["advantage"], strict=True))


@pytest.mark.parametrize("shared", [False, True])
def test_a_failure_is_worth_its_best_refinement_and_siblings_are_compared(train, tmp_path, scripted, shared):
    report = train(tmp_path, **TREE, shared_prompt=shared)
    roots, refined = scripted["read"]
    assert (len(roots), len(refined)) == (2, 4)
    assert ["IndexError" in text for text in refined] == [True, False, True, False], "in turns"
    rows = {row.id: row for row in PredictionSet(tmp_path / "rollouts").iter_predictions()}
    nodes = sorted((row.index, row.turn, row.parent and row.parent.split("/")[2]) for row in rows.values())
    assert nodes == [(0, 0, None), (1, 0, None), (2, 1, "0"), (3, 1, "1"), (4, 1, "0"), (5, 1, "1")]
    assert advantages(tmp_path) == pytest.approx(
        {
            "0/0/0": 0.5,  # it failed, and a refinement of it solves: worth 1, the other first answer 0
            "0/1/0": -0.5,
            "0/2/1": 0.5,  # beside its sibling, which does not solve
            "0/4/1": -0.5,
            "0/3/1": 0.0,
            "0/5/1": 0.0,
        }
    )
    line = next(row for row in report.history if "tree/roots" in row)
    shares = [line[f"tree/{name}"] for name in ("roots", "roots_solved", "refined", "refined_solved")]
    assert shares == pytest.approx([1 / 3, 0, 2 / 3, 1 / 4])


def test_only_failures_are_refined_and_without_any_all_are_first_answers(train, tmp_path, scripted):
    scripted["first"] = (SOLVES, COPIES)
    train(tmp_path / "one", **TREE)
    assert [text.count("not right yet") for text in scripted["read"][1]] == [1] * 4
    scripted["first"], scripted["read"][:] = (SOLVES, SOLVES), []
    train(tmp_path / "none", **TREE)
    assert [len(texts) for texts in scripted["read"]] == [2, 4]
    assert all(text.count("<|im_start|>assistant") == 1 for text in scripted["read"][1])


def test_what_trees_need_is_named(said):
    assert said(tree=2, num_generations=6) == ["tree=2 needs turns=2, turn_reward='last' and one process"]
    assert said(tree=2, turns=2) == ["tree=2 needs num_generations of at least 6: two trees to compare"]
