#!/usr/bin/env bash
# Issues 5, 7 and 6.3 on one GPU: bash bench/experiments/speed.sh OUT [STEP ...]
#
# The stage beside plain vLLM, whole steps of shared prompts, speed of steps; one after another, with nothing else on the GPU.
source "$(dirname "$0")/steps.sh"

shift
for one in ${*:-group_test group_3800 group_8600 stage_embedded stage_engines speed}; do $one 0 "$(cores 0)"; done
say "all done"
