from .plan import ProblemPlan as ProblemPlan
from .sets.files import load_problems as load_problems
from .sets.files import summary as summary
from .training.dry_run import memory_and_commands as memory_and_commands
from .training.examples import examples as examples
from .training.sample_evaluation import evaluate_model as evaluate_model
from .training.solutions import checked as checked
