#!/usr/bin/env bash
# Issues 5, 7 and 6.3 on one GPU (GPU=0): bash bench/experiments/speed.sh OUT [STEP ...]
#
# The stage beside plain vLLM, whole steps of shared prompts, speed of steps; one after another, with nothing else on the GPU.
source "$(dirname "$0")/steps.sh"

shift
gpu=${GPU:-0}
for one in ${*:-group_3800 ahead2_3800 ahead4_3800 offload4_3800 trl_3800 unsloth_3800 stage_engines speed_small speed_large}; do $one "$gpu" "$(cores "$gpu")"; done
say "all done"
