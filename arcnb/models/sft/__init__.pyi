from .plan import SftPlan as SftPlan
from .plan import problems as problems
from .row_stream import row_stream as row_stream
from .rows import RowBuilder as RowBuilder
from .rows import conversation_rows as conversation_rows
from .rows import sft_rows as sft_rows
from .training import train_sft as train_sft
