#!/usr/bin/env bash
# A node with eight GPUs: bash bench/experiments/eight_gpus.sh OUT
#
# Planned for 14 minutes (END=850) on eight H200s with 128 cores. GPU 0: training set, 1: evaluation set, 2 and 3: the
# same with another seed and in two shards (issues 4, 5); each then takes arms of issue 6, GPU 0 those that learn on
# tasks that the samples solve at times. GPUs 4 and 5: server and trainer (10), tests that need GPUs, the sampling stage
# beside plain vLLM (5). GPUs 6 and 7: shared prompts (7).
source "$(dirname "$0")/steps.sh"

cores() { echo "$((16 * $1))-$((16 * $1 + 15))"; }
# The second time with vLLM's own CUDA graphs, should the engine not start with ours.
sampled() { samples "$@" || samples "$@" -p max_num_seqs 512; }
# arms_on GPU NAME SHARE "ARM:SEED:STEPS ..." MORE...
arms_on() {
    local n
    n=$(wc -w <<< "$4")
    share_gpus
    arms "$2" "$1" "$(cores "$1")" "$4" "$n" "$3" "${@:5}"
}

{
    sampled training 0 "$(cores 0)" training arc-agi-1/training 128
    solved="--solved-in $out/sets/training"
    [ -e "$out/sets/training" ] || solved=""
    arms_on 0 learning 0.5 "$(echo learn:{0,1,2}:300)" --eval-tasks 128 $solved
} &
{
    sampled single 1 "$(cores 1)" evaluation arc-agi-1/evaluation 128
    arms_on 1 collapse1 0.8 "$(echo {v,c}:{0,1,2}:150) e:0:150"
} &
{
    sampled shard0 2 "$(cores 2)" again arc-agi-1/evaluation 128 -p seed 1 -p n_shards 2 -p shard 0
    arms_on 2 collapse2 0.8 "$(echo {a,b}:{0,1,2}:150) e:1:150"
} &
{
    sampled shard1 3 "$(cores 3)" again arc-agi-1/evaluation 128 -p seed 1 -p n_shards 2 -p shard 1
    arms_on 3 collapse3 0.8 "$(echo {d0,d1}:{0,1,2}:150) e:2:150"
} &
{
    problems 4,5 64-95
    gpu_tests 4,5 64-95
    stage_embedded 4 "$(cores 4)"
} &
{
    whole_3800 6 "$(cores 6)"
    budgets 6 "$(cores 6)"
} &
{
    whole_8600 7 "$(cores 7)"
    shared_embedded 7 "$(cores 7)"
} &
wait
say "all done"
