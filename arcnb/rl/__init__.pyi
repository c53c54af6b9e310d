from .difficulty import training_tasks as training_tasks
from .launch import run_grpo as run_grpo
from .plan import GrpoPlan as GrpoPlan
from .watching.specimens import specimens as specimens
