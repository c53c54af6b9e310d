#!/usr/bin/env bash
# A node with four GPUs: bash bench/experiments/four_gpus.sh OUT
#
# Planned for 27 minutes on four H200s with 64 cores; not yet run whole.
#
# First the default adapter's samples: training set on GPU 0, evaluation set on GPU 1, and again, with another seed
# and in two shards, on GPUs 2 and 3 (issues 4, 5). Then GPU 0 and GPU 1: the arms of issue 6, those that learn on
# tasks that the samples solve at times. GPUs 2 and 3: server and trainer (10), then shared prompts (7)
# and, if time is left, the speed of steps (6).
source "$(dirname "$0")/steps.sh"
a=0-16 b=17-33 c=34-48 d=49-63

{
    samples training 0 $a training arc-agi-1/training 128
    solved="--solved-in $out/sets/training"
    [ -e "$out/sets/training" ] || solved=""
    share_gpus
    arms learning 0 $a "$(echo learn:{0,1,2}:400)" 3 0.22 --eval-tasks 128 $solved &
    arms collapse0 0 $a "$(echo {v,c,a}:{0,1,2}:150)" 9 0.64
    wait
} &
{
    samples evaluation 1 $b evaluation arc-agi-1/evaluation 128
    stage_embedded 1 $b
    share_gpus
    arms collapse1 1 $b "$(echo {b,d0,d1,e}:{0,1,2}:150)" 12 0.86
} &
{
    shards 2 3 $c $d again arc-agi-1/evaluation 128 -p seed 1
    problems 2,3 "$c,$d"
    gpu_tests 2,3 "$c,$d"
    { whole_3800 2 $c; budgets 2 $c; } &
    { whole_8600 3 $d; shared_embedded 3 $d; speed 3 $d; } &
    wait
} &
wait
say "all done"
