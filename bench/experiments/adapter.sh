#!/usr/bin/env bash
# The default adapter, on four GPUs: bash bench/experiments/adapter.sh OUT
#
# The default adapter from nothing by its command, then its 128 samples of the training set (two shards), and of the
# evaluation set with two seeds. These steps took 21 minutes on four H200 with 64 cores (docs/log.md).
source "$(dirname "$0")/steps.sh"

notebook adapter 1100 "$(all_gpus)" "$(all_cores)" 02 -f adapter -p workers $(($(n_processors) * 7 / 8))
new=$out/adapter
cp -r "$ARCNB_RUNS"/*-adapter/adapter "$new/weights" || exit 1
shards 0 1 "$(cores 0)" "$(cores 1)" training arc-agi-1/training 128 -p adapter "$new/weights" &
samples evaluation 2 "$(cores 2)" evaluation arc-agi-1/evaluation 128 -p adapter "$new/weights" &
samples again 3 "$(cores 3)" again arc-agi-1/evaluation 128 -p adapter "$new/weights" -p seed 1 &
wait
say "all done"
