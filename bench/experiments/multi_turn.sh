#!/usr/bin/env bash
# Refinement in turns, on all GPUs of a node: bash bench/experiments/multi_turn.sh OUT
#
# Planned for 26 minutes on four H200 with 64 cores; not yet run.
source "$(dirname "$0")/steps.sh"

step turns 3000 "$(all_gpus)" "$(all_cores)" python3 bench/experiments/multi_turn.py --out "$out/turns" \
    --seconds $(($(left) - 60)) --gpus "$(n_gpus)" --train-seeds 3
say "all done"
