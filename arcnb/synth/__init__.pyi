from .endless import TaskStream as TaskStream
from .rearc.augmented import FreshAugmentations as FreshAugmentations
from .sources import SourceSettings as SourceSettings
from .splits import LeftOut as LeftOut
from .task_sets import build_task_set as build_task_set
from .task_sets import check_recipe as check_recipe
from .task_sets import recipe_problems as recipe_problems
from .validation.reports import TaskReport as TaskReport
