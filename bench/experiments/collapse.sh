#!/usr/bin/env bash
# Issue 6 on four GPUs: SOLVED=PREDICTIONS bash bench/experiments/collapse.sh OUT
#
# All arms at once, six or seven to a GPU. Those that learn and the ranks train on tasks that SOLVED, samples of the training
# set by the adapter they start from, solve at times. Planned for 26 minutes on four H200 with 64 cores; not yet run whole.
source "$(dirname "$0")/steps.sh"
learn="--eval-tasks 128 --solved-in ${SOLVED:?SOLVED names a prediction set of the training tasks}"

share_gpus
arms learning 0 "$(cores 0)" "$(echo learn-fast:{0,1,2}:400 rank{1,8,32}:0:400)" 6 0.9 $learn &
arms collapse1 1 "$(cores 1)" "$(echo {a,b}:{0,1,2}:250 v:0:250)" 7 0.9 &
arms collapse2 2 "$(cores 2)" "$(echo {c,d0}:{0,1,2}:250 v:1:250)" 7 0.9 &
arms collapse3 3 "$(cores 3)" "$(echo {d1,e}:{0,1,2}:250 v:2:250)" 7 0.9 &
wait
say "all done"
