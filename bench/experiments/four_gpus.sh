#!/usr/bin/env bash
# A node with four GPUs: bash bench/experiments/four_gpus.sh OUT
#
# Planned for 26 minutes on four H200s with 64 cores. The default adapter from scratch by its command, on all four (issue 4);
# then its samples of the training and the evaluation set, the latter with two seeds; then the stage beside plain vLLM (5), whole
# steps of shared prompts (7; not on a larger node, where FIRST_GPU and FIRST_CORE move all this), speed of steps and arms
# that learn from the new adapter (6).
source "$(dirname "$0")/steps.sh"
gpu=${FIRST_GPU:-0} core=${FIRST_CORE:-0}
cores() { echo "$((core + 16 * $1))-$((core + 16 * $1 + 15))"; }
on() { echo $((gpu + $1)); }

notebook adapter 1100 "$(on 0),$(on 1),$(on 2),$(on 3)" "$core-$((core + 63))" 02 -f adapter -p workers 56
new=$out/adapter
cp -r "$ARCNB_RUNS"/*-adapter/adapter "$new/weights" || exit 1

more() { [ -n "${FIRST_GPU:-}" ] || for one in "${@:2}"; do $one "$(on "$1")" "$(cores "$1")"; done; }
{
    samples training0 "$(on 0)" "$(cores 0)" training arc-agi-1/training 128 -p adapter "$new/weights" -p n_shards 2 -p shard 0
    stage_embedded "$(on 0)" "$(cores 0)"
    more 0 cascade_3800
    speed "$(on 0)" "$(cores 0)"
} &
{
    samples training1 "$(on 1)" "$(cores 1)" training arc-agi-1/training 128 -p adapter "$new/weights" -p n_shards 2 -p shard 1
    more 1 whole_8600
    share_gpus
    arms learning "$(on 1)" "$(cores 1)" "$(echo learn-fast:{0,1,2}:400)" 3 0.85 --adapter "$new/weights" --eval-tasks 128 \
        --solved-in "$out/sets/training"
} &
{
    samples evaluation "$(on 2)" "$(cores 2)" evaluation arc-agi-1/evaluation 128 -p adapter "$new/weights"
    more 2 offload whole_3800
} &
{
    samples again "$(on 3)" "$(cores 3)" again arc-agi-1/evaluation 128 -p adapter "$new/weights" -p seed 1
    more 3 cascade_8600
} &
wait
say "all done"
