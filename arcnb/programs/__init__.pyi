from . import usage as usage
from .executor.executor import Executor as Executor
from .executor.executor import Limits as Limits
