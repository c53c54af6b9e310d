from .launch import run_grpo as run_grpo
from .plan.grpo import GrpoPlan as GrpoPlan
from .rows.choice import training_tasks as training_tasks
from .watching.report import example_rollouts as example_rollouts
