from . import sft as sft
from .prompts import lengths as lengths
from .prompts.format import prompt_format as prompt_format
from .registry import load_tokenizer as load_tokenizer
from .registry import resolve_model as resolve_model
from .sampling.backends import EngineOptions as EngineOptions
from .sampling.backends import open_backend as open_backend
from .sft.plan import SftPlan as SftPlan
