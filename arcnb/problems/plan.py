"""What RL on test-case problems is asked to do: a GRPO run's plan, and how problems are shown and judged."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from arcnb.models.sampling.backends import LOCAL_BACKENDS
from arcnb.plans import Settings, branch, library, option
from arcnb.problems.answers import FORMATS
from arcnb.rl.plan.grpo import GrpoPlan
from arcnb.rl.plan.settings import GRPO_CONFIG
from arcnb.values import COUNT, POSITIVE

DEFAULTS = {**GRPO_CONFIG.defaults, "max_completion_length": 96}


@dataclass(frozen=True)
class Tests:
    """How answers are asked for and rewarded, see arcnb.problems.training.reward."""

    __test__ = False

    answer_format: str = option(
        "plain", "plain: one code block; reasoning: <reasoning> and <answer>", within=FORMATS
    )
    shown_tests: int = option(0, "tests of a problem that its prompt shows as examples")
    max_tests_per_problem: int = option(
        3, "tests that the reward sees; the evaluation runs all", within=COUNT
    )
    base_reward_weight: float = option(1.0, "reward for the share of tests passed")
    perfect_reward_weight: float = option(1.0, "further reward when all pass")
    binary_reward: bool = option(False, "both weights when all pass, else nothing")
    format_reward_weight: float = option(0.0, "reward for keeping the answer format strictly")
    check_solutions: bool = option(
        True, "run the reference solutions first: a problem whose own solution fails stops the run", free=True
    )


@dataclass(frozen=True)
class ProblemPlan(GrpoPlan):
    """Notebook 09's."""

    checks: ClassVar[str] = "arcnb.problems.training.dry_run:plan_problems"
    subject_name: ClassVar[str] = "arcnb.problems.training.problem_subject:ProblemSubject"

    tasks: str = option(
        "simple*60",
        "problems to train on: simple*N, human-eval, or a .jsonl or .parquet (docs/how-to/problems.md)",
        free=True,
    )
    train_on_held_out: bool = option(
        False,
        "train also on problems of the eval split simple/held_out, which are refused otherwise",
        free=True,
    )
    n_tasks: int = option(0, "problems to sample from it, among those whose prompts fit; 0 takes all")
    eval_tasks: str = option(
        "simple/held_out*16", "problems that are never trained on, in the same forms", free=True
    )
    n_eval_tasks: int = option(4, "problems of it to evaluate while training; 0 takes all")
    eval_steps: int = option(
        25, "steps between evaluations (and before the first, and after the last); 0: never"
    )
    adapter: str = option("", 'LoRA to start from, or "" for a fresh one', free=True)
    template: str = option("", 'Jinja file of the prompt; "" takes what the answer format has', free=True)
    max_prompt_length: int = option(512, "problems with a longer prompt are left out, and named", "tokens")
    prompts_per_step: int = option(
        2, "problems, each with its group, that one optimizer step trains", within=COUNT
    )
    seconds_per_input: float = option(5.0, "time of one program on one test", "s", free=True, within=POSITIVE)
    tests: Tests = branch(Tests)
    dry_run: bool = option(
        False,
        "only print the commands and the memory that each GPU needs, and refuse what cannot fit",
        free=True,
    )
    gpu_memory_gib: float = option(
        0.0, "memory of a GPU, for the estimate before a start; 0: of those here, or 80", "GiB", free=True
    )
    evaluate_only: bool = option(
        False, "train nothing: the evaluation of the model, with `adapter` if one is named", free=True
    )
    n_predictions: int = option(
        4, "samples of each evaluation problem after training; 0: no final evaluation", free=True
    )
    trl: Settings = library(replace(GRPO_CONFIG, defaults=DEFAULTS))
    backend: str = option(
        "auto",
        "what samples the evaluation after training: vllm, transformers, or auto",
        free=True,
        within=LOCAL_BACKENDS,
    )
