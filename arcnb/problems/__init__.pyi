from .plan import ProblemPlan as ProblemPlan
from .sets.files import load_problems as load_problems
from .training.dry_run import memory_and_commands as memory_and_commands
from .training.final import checked as checked
from .training.final import evaluate_model as evaluate_model
from .training.final import examples as examples
from .training.final import summary as summary
