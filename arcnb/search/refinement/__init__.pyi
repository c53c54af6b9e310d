from .rows import check_choice as check_choice
from .rows import refinement_rows as refinement_rows
from .rows import turn_numbers as turn_numbers
from .rows import write_conversations as write_conversations
from .successes import check_successes as check_successes
from .successes import successful_rows as successful_rows
from .tree import ConversationView as ConversationView
from .tree import best_trees as best_trees
