#!/usr/bin/env bash
# A node with two GPUs: bash bench/experiments/two_gpus.sh OUT (not yet run whole)
#
# Both GPUs: RL on coding problems with server and trainer (issue 10), one set of predictions in two shards (issue 5).
# Then GPU 0: the same set by one GPU, the stage beside plain vLLM (5). GPU 1: shared prompts (7).
# ONLY="problems shards single stage shared" names some of them.
source "$(dirname "$0")/steps.sh"
half=$(($(nproc) / 2))
first=0-$((half - 1)) second=$half-$((2 * half - 1))

wanted problems && { problems 0,1 "$first,$second"; gpu_tests 0,1 "$first,$second"; }
wanted shards && shards 0 1 "$first" "$second" two arc-agi-1/evaluation "${N:-128}"
{
    wanted single && samples single 0 "$first" one arc-agi-1/evaluation "${N:-128}"
    wanted stage && { stage_embedded 0 "$first"; stage_8b 0 "$first"; }
} &
{
    wanted shared && for one in whole_3800 whole_8600 budgets shared_embedded; do $one 1 "$second"; done
} &
wait
say "all done"
