from . import usage as usage
from .executor.executor import Executor as Executor
from .executor.limits import Limits as Limits
from .judging import run_program as run_program
