"""Equal budgets, shared beginnings, honest p-values: which differences between arms are real."""

import pytest

from arcnb.arc.predictions.prediction import Prediction
from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.arc.scores.intervals import sign_flip_p
from arcnb.errors import ArcnbError
from arcnb.search.comparing.arms import arm_folders, read_arms
from arcnb.search.comparing.fair_comparison import compare_arms

TASKS = [f"t{i:02}" for i in range(40)]
FIRST, BUDGET = 4, 8


def row(task, place, solved=False, turn=0, n_tokens=10, test=True):
    right = int(solved)
    return Prediction(
        task,
        "print",
        round=place,
        index=0,
        turn=turn,
        parent=f"{task}/0/0/0" if turn else None,
        status="ok",
        fingerprint=f"{task} {turn} {place} {solved}",
        n_tokens=n_tokens,
        finish_reason="stop",
        train_pixel_score=0.5,
        train_correct_grids=float(right),
        train_is_correct=right,
        test_pixel_score=0.5,
        test_correct_grids=float(right and test),
        test_is_correct=int(right and test),
    )


def write(folder, rows):
    PredictionSet(folder).write_part(rows, 0)
    return folder


@pytest.fixture
def sets(tmp_path):
    """For seeds 0..2: 8 independent samples that solve 6 tasks in the first 4 and 2 more later; refinements
    of the first 4 that solve `gained` further tasks, and are twice as long."""

    def make(gained=14, long=20, seeds=3):
        text = {"independent": [], "refined": []}
        for seed in range(seeds):
            alone = [
                row(task, place, solved=(i < 6 and place == 1) or (6 <= i < 8 and place == 6))
                for i, task in enumerate(TASKS)
                for place in range(BUDGET)
            ]
            refined = [
                row(task, place, solved=8 <= i < 8 + gained and place == seed, turn=1, n_tokens=long)
                for i, task in enumerate(TASKS)
                if i >= 6
                for place in range(BUDGET - FIRST)
            ]
            a = write(tmp_path / f"a{gained}-{seed}", alone)
            r = write(tmp_path / f"r{gained}-{long}-{seed}", refined)
            text["independent"].append(str(a))
            text["refined"].append(f"{a}[:{FIRST}] + {r}")
        return "; ".join(f"{name} = {' | '.join(seeds)}" for name, seeds in text.items())

    return make


def compared(text):
    return compare_arms(read_arms(text, TASKS), TASKS, FIRST, BUDGET)


def test_a_real_difference_is_called_real_on_equal_completions(sets):
    comparison = compared(sets())
    by_budget = {one.budget: one for one in comparison.differences}
    one = by_budget["completions"]
    assert (one.solved_a, one.solved_b) == (8 / 40, 20 / 40)
    assert (one.only_a, one.only_b) == ((2, 2, 2), (14, 14, 14))
    assert one.difference == pytest.approx(0.3)
    spread = 1.96 * ((16 / 40 - 0.3**2) / 40) ** 0.5  # of the mean of 14 ones, two -1 and 24 zeros
    assert (one.low, one.high) == (
        pytest.approx(0.3 - spread, abs=0.03),
        pytest.approx(0.3 + spread, abs=0.03),
    )
    assert one.p_holm < 0.05
    assert one.verdict == "real: refined solves more", "ends early where the train pairs are solved"
    assert one.unsolved == 34
    assert (one.gain_a, one.gain_b) == (pytest.approx(2 / 34), pytest.approx(14 / 34))
    assert one.gain_low > 0
    line = comparison.table().iloc[0]
    assert line["b - a, points"].startswith("+30.0 [")
    assert line["only a, only b"] == "2, 14 | 2, 14 | 2, 14"
    assert comparison.outcome()[0]["verdict"] == one.verdict


def test_equal_tokens_cut_the_arm_that_writes_more(sets):
    comparison = compared(sets())
    one = next(d for d in comparison.differences if d.budget == "tokens")
    # 4 x 10 tokens are left after the first ones: two refinements of 20, so that seed 2 gains nothing.
    assert one.only_b == (14, 14, 0)
    assert one.tokens[1] <= one.tokens[0] == 80


def test_an_arm_that_stopped_early_sets_no_limit_of_tokens_and_is_held_to_it(tmp_path):
    ids = ["cheap", "dear"]
    whole = [row(task, place) for task in ids for place in range(BUDGET)]  # 80 tokens a task
    lengths = {"cheap": 30, "dear": 50}  # of the fifth, which solves the task, after 40 tokens
    ended = [row(task, place) for task in ids for place in range(FIRST)]
    ended += [row(task, FIRST, solved=True, n_tokens=lengths[task]) for task in ids]
    arms = {"whole": write(tmp_path / "whole", whole), "ended": write(tmp_path / "ended", ended)}
    text = "; ".join(f"{name} = {folder}" for name, folder in arms.items())
    found = compare_arms(read_arms(text, ids), ids, FIRST, BUDGET).differences
    assert {one.budget: (one.only_b, one.tokens) for one in found} == {
        "completions": ((2,), (80, 80)),
        "tokens": ((1,), (80, 55)),
    }


def test_arms_without_a_task_known_to_both_are_named_and_the_others_compared(sets):
    arms = read_arms(sets(), TASKS)
    scores = ("test_pixel_score", "test_correct_grids", "test_is_correct")
    arms["unknown"] = [frame.assign(**dict.fromkeys(scores)) for frame in arms["independent"]]
    found = compare_arms(arms, TASKS, FIRST, BUDGET)
    assert [(one.a, one.b) for one in found.differences] == [("independent", "refined")] * 2
    assert found.note == (
        "Not compared, as no task's test outputs are known to both: independent and unknown, "
        "refined and unknown."
    )
    assert compared(sets()).note == ""


def test_several_differences_share_their_chances_of_error(sets):
    text = sets()
    others = compared(f"{text}; again = {text.split(' = ')[-1]}").differences
    found = [(one.a, one.b, one.p_holm / one.p_value) for one in others if one.budget == "completions"]
    assert found == [
        ("independent", "refined", pytest.approx(3)),
        ("independent", "again", pytest.approx(3)),
        ("refined", "again", pytest.approx(1)),
    ]


def test_what_lies_beyond_the_budget_does_not_count(sets):
    one = compare_arms(read_arms(sets(), TASKS), TASKS, FIRST, BUDGET - 2).differences[0]
    assert (one.solved_a, one.only_b) == (6 / 40, (14, 14, 0)), "of both, places 6 and 7 are left out"
    assert one.completions[0] == BUDGET - 2


def test_a_small_difference_is_not_shown_and_few_seeds_are_said(sets):
    comparison = compared(sets(gained=4, seeds=1))
    one = comparison.differences[0]
    assert one.difference == pytest.approx(0.05)
    assert one.p_value == pytest.approx(sign_flip_p([1] * 4 + [-1] * 2))
    assert one.verdict == "not shown (1 of at least 3 seeds)"


def test_seeds_of_one_task_are_no_independent_evidence(sets):
    one = compared(sets(gained=8)).differences[0]
    many = sign_flip_p(([1] * 8 + [-1] * 2) * 3)
    assert one.p_value > many


def test_the_table_of_parts_has_initial_refinement_and_all(sets):
    parts = compared(sets()).parts
    assert list(parts.index) == [
        "initial",
        "independent: after the initial ones",
        "independent: all",
        "refined: after the initial ones",
        "refined: all",
    ]
    assert parts.loc["initial", "is_correct"].startswith("0.150 [")
    assert parts.loc["refined: all", "is_correct"].startswith("0.500 [")
    assert parts.loc["refined: after the initial ones", "n_preds"].startswith("3.400")


def test_where_nothing_is_solved_no_interval_of_width_zero_is_shown(tmp_path):
    names = ("a", "b", "c")
    nothing = [row(task, place, solved=False) for task in TASKS for place in range(BUDGET)]
    for name in names:
        write(tmp_path / name, nothing)
    comparison = compared("; ".join(f"{name} = {tmp_path / name}" for name in names))
    line = comparison.table().iloc[0]
    assert (line["b - a, points"], line["their difference, points"]) == ("+0.0", "+0.0")
    assert (line["p, adjusted"], line["verdict"]) == ("1", "not shown (1 of at least 3 seeds)")
    assert comparison.parts.loc["initial", "is_correct"] == "0.000"


def test_an_arm_that_was_never_finished_is_said_to_be(tmp_path):
    whole = [row(task, place, solved=False) for task in TASKS for place in range(BUDGET)]
    arms = {"whole": whole, "cut": [one for one in whole if one.task_id != "t03" or one.round < BUDGET - 1]}
    for name, rows in arms.items():
        write(tmp_path / name, rows)
    one, *_ = compared("; ".join(f"{name} = {tmp_path / name}" for name in arms)).differences
    assert one.unequal == 1
    assert one.verdict.endswith("NOT EQUAL: 1 tasks lack completions in one arm")


@pytest.mark.parametrize(("first", "budget"), [(8, 8), (9, 8), (0, 8)])
def test_what_is_shared_is_a_part_of_the_budget(sets, first, budget):
    with pytest.raises(ArcnbError, match=f"first is {first} and budget {budget}"):
        compare_arms(read_arms(sets(), TASKS), TASKS, first, budget)


def test_arms_that_do_not_share_their_beginning_are_refused(sets, tmp_path):
    other = write(tmp_path / "other", [row(t, place, solved=place == 3) for t in TASKS for place in range(8)])
    alone = sets(seeds=1).split(";")[0]
    with pytest.raises(ArcnbError, match="do not share their first 4 predictions \\(seed 0, 40 tasks"):
        compared(f"{alone}; other = {other}")


def test_arms_are_read_strictly(sets, tmp_path):
    text = sets(seeds=1)
    folder = text.split(";")[0].split("=")[1].strip()
    assert arm_folders(text).split(",")[0] == f'"{folder}"'
    assert arm_folders("") == "", "then it is missing sets that the notebook speaks of"
    for wrong, said in [
        (f"a = {folder}", "at least two arms, not 1"),
        (f"a = {folder}; a = {folder}", "two arms are called 'a'"),
        (f"a = {folder} | {folder}; b = {folder}", "the same number of seeds, there are a 2, b 1"),
        (f"a = {folder}; b = {tmp_path}/none", "none of 'b' does not exist"),
        (f"a {folder}; b = {folder}", "is not of the form NAME"),
        (f"a = {folder}; b = {folder} + {folder}", "holds prediction t00/0/0/0 twice"),
    ]:
        with pytest.raises(ArcnbError, match=said):
            read_arms(wrong, TASKS)
    with pytest.raises(ArcnbError, match="holds no predictions of these tasks"):
        read_arms(text, ["x"])
