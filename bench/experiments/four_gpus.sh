#!/usr/bin/env bash
# A node with four GPUs: bash bench/experiments/four_gpus.sh OUT
#
# Planned for 26 minutes on four H200s with 64 cores. The default adapter from scratch by its command, on all four (issue 4);
# then its samples of the training and the evaluation set, the latter with two seeds; then the stage beside plain
# vLLM (5), arms that learn and ranks from the new adapter, speed of steps (6). FIRST_GPU and FIRST_CORE move it on a
# larger node.
source "$(dirname "$0")/steps.sh"
gpu=${FIRST_GPU:-0} core=${FIRST_CORE:-0}
cores() { echo "$((core + 16 * $1))-$((core + 16 * $1 + 15))"; }
on() { echo $((gpu + $1)); }

notebook adapter 1100 "$(on 0),$(on 1),$(on 2),$(on 3)" "$core-$((core + 63))" 02 -f adapter -p workers 56
new=$out/adapter
cp -r "$ARCNB_RUNS"/*-adapter/adapter "$new/weights" || exit 1

learn="--adapter $new/weights --eval-tasks 128"
{
    samples training0 "$(on 0)" "$(cores 0)" training arc-agi-1/training 128 -p adapter "$new/weights" -p n_shards 2 -p shard 0
    stage_embedded "$(on 0)" "$(cores 0)"
    speed "$(on 0)" "$(cores 0)"
} &
{
    samples training1 "$(on 1)" "$(cores 1)" training arc-agi-1/training 128 -p adapter "$new/weights" -p n_shards 2 -p shard 1
    share_gpus
    arms learning "$(on 1)" "$(cores 1)" "$(echo learn-fast:{0,1,2}:400)" 3 0.85 $learn --solved-in "$out/sets/training"
} &
{
    samples evaluation "$(on 2)" "$(cores 2)" evaluation arc-agi-1/evaluation 128 -p adapter "$new/weights"
    share_gpus
    arms ranks "$(on 2)" "$(cores 2)" "$(echo rank{1,8,32}:0:300)" 3 0.85 $learn --solved-in "$out/sets/training"
} &
{
    samples again "$(on 3)" "$(cores 3)" again arc-agi-1/evaluation 128 -p adapter "$new/weights" -p seed 1
    [ -n "${FIRST_GPU:-}" ] || for one in cascade_3800 cascade_8600 offload; do $one "$(on 3)" "$(cores 3)"; done
} &
wait
say "all done"
