#!/usr/bin/env bash
# Issues 5, 7 and 6.3 on one GPU: bash bench/experiments/speed.sh OUT [STEP ...]
#
# The stage beside plain vLLM, whole steps of shared prompts, speed of steps; one after another, with nothing else on the GPU.
source "$(dirname "$0")/steps.sh"

shift
for one in ${*:-stage_embedded fp8_3800 ahead2_3800 fp8_8600 ahead2_8600 speed}; do $one 0 "$(cores 0)"; done
say "all done"
