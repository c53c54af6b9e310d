"""What guided tasks and groups of several sizes are refused with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from arcnb.plans import conflicts

if TYPE_CHECKING:
    from arcnb.rl.plan.grpo import GrpoPlan


def row_problems(plan: GrpoPlan, tasks: Sequence, eval_tasks: Sequence) -> Iterator[str]:
    """What guided tasks and groups of several sizes cannot go together with."""
    guide = plan.guide
    evaluated = {task.fingerprint for task in eval_tasks} if plan.eval_steps else set()
    reasons = {
        "train_on_held_out=True: it shows solutions": plan.train_on_held_out,
        "turns above 1": plan.turns > 1,
        "refine_conversations": plan.refine_conversations,
        f"signal_visits={plan.signal.visits}, which must be above guide_after={guide.after}": (
            0 < plan.signal.visits <= guide.after
        ),
        "evaluation tasks among the trained ones": any(task.fingerprint in evaluated for task in tasks),
    }
    yield from conflicts({"guide_programs": guide.programs}, reasons)
    reasons = {
        "one prompt a round (prompts_per_step)": plan.prompts_a_round < 2,
        f"num_processes={plan.num_processes}, each of which has a part of a round": plan.num_processes > 1,
        "vllm_mode='server', which draws as many for every prompt": plan.by_server,
        "trainer='unsloth'": plan.trainer == "unsloth",
        f"tree={plan.tree}, whose groups have one size": plan.tree,
        "refine_conversations": plan.refine_conversations,
    }
    yield from conflicts({"adaptive_groups=True": plan.adaptive_groups}, reasons)
