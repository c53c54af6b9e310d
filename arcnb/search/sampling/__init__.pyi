from .adapters import highest_rank as highest_rank
from .adapters import sampled_sets as sampled_sets
