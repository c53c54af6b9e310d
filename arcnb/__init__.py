"""ARC program induction in notebooks.

The rooms, top to bottom: arc, programs, synth, models, rl, search, problems, lab.
"""

__version__ = "0.2.0"
