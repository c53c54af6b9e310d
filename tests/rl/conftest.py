"""What tests of training share: small tasks, and a reward term that a random model earns to different degrees."""

import pytest

from arcnb.arc.tasksets import load_tasks
from arcnb.models.prompt_format import prompt_format
from arcnb.programs.executor import Executor
from arcnb.rl.grpo import GrpoOptions, train_grpo
from arcnb.rl.reward_terms import TERMS


@pytest.fixture(scope="session")
def tasks():
    """Three tasks with short prompts."""
    everything = load_tasks("arc-agi-1/training")
    small = [t.task_id for t in everything if sum(p.input.size + p.output.size for p in t.train) < 250]
    return everything.subset(small[:3])


def even_tokens(group, limits):
    """Share of even token ids minus 1: a random model writes no programs, but this it can learn."""
    return [sum(token % 2 == 0 for token in rollout.tokens) / len(rollout.tokens) - 1 for rollout in group]


SETTINGS = {
    "max_steps": 6,
    "num_generations": 4,
    "max_completion_length": 10,
    "learning_rate": 1e-2,
    "warmup_steps": 0,
    "max_grad_norm": 1.0,
}


@pytest.fixture
def train(small_model, tasks, monkeypatch):
    """train(output, settings=..., options=..., ...) runs train_grpo on the small model, quickly."""
    monkeypatch.setitem(TERMS, "even_tokens", even_tokens)

    def run(output, settings=None, options=None, **arguments):
        options = {"reward_weights": {"even_tokens": 1.0}} | (options or {})
        with Executor(1) as executor:
            return train_grpo(
                small_model,
                arguments.pop("tasks", tasks),
                prompt_format(),
                executor,
                output,
                settings=SETTINGS | (settings or {}),
                lora={"r": 2},
                options=GrpoOptions(**options),
                **arguments,
            )

    return run
