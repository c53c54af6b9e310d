#!/usr/bin/env bash
# A node with eight GPUs: bash bench/experiments/eight_gpus.sh OUT
#
# Planned for 26 minutes on eight H200s with 128 cores. GPUs 0 to 2: search and learn (issue 9), a process a pair of arm and
# seed, four to a GPU. GPU 3: whole steps of shared prompts (7). GPUs 4 to 7: the default adapter from scratch by its command
# and its samples (4), then the stage beside plain vLLM (5), arms that learn, ranks, speed (6).
source "$(dirname "$0")/steps.sh"

(
    share_gpus
    for i in {0..10}; do
        step "search$i" 3000 $((i % 3)) 0-47 python3 bench/experiments/search_and_learn.py --out "$out/search" \
            --work "${WORK:-$out/work}" --seconds $(($(left) - 40)) --arms toy,arc128:3,arc512:3,eval128,eval512 \
            --part "$i/11" --kv-gb 6 --memory-fraction 0.16 --workers 4 &
    done
    wait
) &
(
    for one in cascade_3800 cascade_8600 whole_8600 offload whole_3800; do $one 3 48-63; done
) &
END=$(left) FIRST_GPU=4 FIRST_CORE=64 bash bench/experiments/four_gpus.sh "$out" &
wait
say "all done"
