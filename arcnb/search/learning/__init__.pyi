from .job import arm_predictions as arm_predictions
from .job import keep_tasks as keep_tasks
from .job import run_shards as run_shards
from .job import task_file as task_file
from .plan import SearchPlan as SearchPlan
