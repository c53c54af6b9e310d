"""Trainings that the same processes carry out in turn, each as `python -m arcnb.models.sft.training` does.

Run: accelerate launch -m tests.models.sft.in_turn FOLDER ...
"""

import gc
import sys
from pathlib import Path

from arcnb.machine.processes import leave
from arcnb.models.sft.training import main

if __name__ == "__main__":
    for folder in sys.argv[1:]:
        main(Path(folder))
        gc.freeze()  # trainers collect garbage, for which all that was imported would be looked through
    leave()
