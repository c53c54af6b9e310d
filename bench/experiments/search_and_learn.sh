#!/usr/bin/env bash
# Issue 9 on four GPUs: bash bench/experiments/search_and_learn.sh OUT
#
# GPUs 0 to 2: search and learn, a process a pair of arm and seed, up to four on a GPU. GPU 3 beside them: the stage beside plain
# vLLM (issue 5), whole steps of shared prompts (7), speed of steps (6). Planned for 26 minutes on four H200 with 64
# cores; not yet run.
source "$(dirname "$0")/steps.sh"

(
    share_gpus
    for i in {0..10}; do
        step "search$i" 3000 $((i % 3)) "0-$(($(nproc) * 3 / 4 - 1))" python3 bench/experiments/search_and_learn.py \
            --out "$out/search" --work "${WORK:-$out/work}" --seconds $(($(left) - 40)) \
            --arms toy:3,arc128:3,arc512:3,eval128,eval512 --part "$i/11" --kv-gb 6 --memory-fraction 0.16 --workers 4 &
    done
    wait
) &
for one in stage_embedded stage_blocks fp8_3800 fp8_8600 ahead_3800 speed; do $one 3 "$(cores 3)"; done &
wait
say "all done"
