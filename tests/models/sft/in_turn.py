"""Trainings that the same processes carry out in turn, each as `python -m arcnb.models.sft.training` does.

Run: accelerate launch -m tests.models.sft.in_turn FOLDER ...
"""

import runpy
import sys

for folder in sys.argv[1:]:
    sys.argv[1:] = [folder]
    runpy.run_module("arcnb.models.sft.training", run_name="__main__")
