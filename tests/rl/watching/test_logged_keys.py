"""The page of logged keys has every key that runs write, and no key that none does."""

from dataclasses import replace
from itertools import chain

import pytest

from arcnb.arc.tasks.task_set import TaskSet
from tests.rl.logged_keys import fits, told_keys, unknown_keys, written_keys

pytestmark = pytest.mark.slow

PROGRAM = "def transform(grid):\n    a = grid[::-1]\n    b = a[:, ::-1]\n    return b\n"
LESS = {"max_steps": 2, "num_generations": 4}
EPISODES = {"turns": 2, "max_completion_length": 64, "augment": "none"}
RUNS = {
    "plain": LESS | {"eval_steps": 1, "num_generations_eval": 4},
    "several steps": LESS | {"gradient_accumulation_steps": 2, "steps_per_generation": 4},
    "silent": LESS | {"signal_visits": 1, "signal_weight": 0.5},
    "guided": LESS | {"max_steps": 8, "guide_programs": "gold", "guide_free": 0.3},
    "pass at k": LESS | {"advantages": "pass_at_k", "pass_at_k": 2},
    "self-teacher": LESS | {"self_teacher": 0.5, "advantages": "none", "max_completion_length": 16},
    "lean": LESS | {"learner_skip_silent": True, "learner_trained_part": 0.5},
    "cispo": LESS | {"loss_type": "cispo", "epsilon_high": 5.0},
    "vespo": LESS | {"loss_type": "vespo"},
    "entropy bonus": LESS | {"entropy_coef": 0.01},
    "turns": LESS | EPISODES | {"eval_steps": 1},
    "tree": LESS | EPISODES | {"tree": 1},
}
# What takes a GPU, a mixture of experts, a right program, or vLLM (tests/rl/engine/test_cpu_generation.py);
# keys of notebooks 02 (tests/road/test_sft.py) and 09 (tests/problems/test_training.py).
ELSEWHERE = (
    "gpu_peak_gib",
    "aux_loss",
    "solved_tasks_completion_length_",
    "turns/improved",
    "turns/worse",
    "turns/copied",
    "sampling/logp_gap",
    "sampling/kl",
    "sampling/importance_ratio",
    "sampling/ess",
    "sampling/clipped_share",
    "sampling/sampling_logp_difference/",
    "sampling/importance_sampling_ratio/",
    "tests_passed_ratio",
    "parse/",
    "mean_token_accuracy",
    "eval_",
)


@pytest.fixture(scope="module")
def folders(train, tasks, tmp_path_factory):
    """{name: folder} of a run of each kind."""
    made = {}
    gold = TaskSet("gold", tuple(replace(task, program=PROGRAM) for task in tasks), "1")
    for name, options in RUNS.items():
        made[name] = tmp_path_factory.mktemp("run")
        told = {"tasks": gold if "guide_programs" in options else tasks}
        if "eval_steps" in options:
            told["eval_tasks"] = list(tasks)[:2]
        train(made[name], **told, **options)
    return made


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.long("the first of them makes all the runs")
def test_the_page_has_every_key_that_a_run_writes(folders, name):
    assert unknown_keys(folders[name]) == []


@pytest.mark.long("the runs may be made for it")
def test_the_page_has_no_key_that_no_run_writes(folders):
    written = set(chain.from_iterable(map(written_keys, folders.values())))
    missing = [told for told in told_keys() if not any(fits(key, told) for key in written)]
    assert [told for told in missing if not told.startswith(ELSEWHERE)] == []
    assert [one for one in ELSEWHERE if not any(told.startswith(one) for told in told_keys())] == []


def test_a_key_that_the_page_does_not_have_is_seen(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "status/ok": 1, "status/a/b": 0, "rewards": 1}\n')
    assert unknown_keys(tmp_path) == ["rewards", "status/a/b"]
