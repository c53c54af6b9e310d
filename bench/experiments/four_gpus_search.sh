#!/usr/bin/env bash
# Issues 9 and 8 on a node with four GPUs; planned for 25 minutes on four H200s with 64 cores, not yet run:
#
#   bash bench/experiments/four_gpus_search.sh OUT
#
# First search and learn, a part of the (arm, seed) pairs on each GPU; then refining against sampling again, on all.
# OUT/search and OUT/turns hold what there is at any time; both scripts compare it with --table.
source "$(dirname "$0")/steps.sh"
work=${WORK:-$out/work}
quarter=$(($(nproc) / 4))

parts=()
for i in 0 1 2 3; do
    step "search$i" "${SEARCH_SECONDS:-520}" $i $((i * quarter))-$(((i + 1) * quarter - 1)) \
        python3 bench/experiments/search_and_learn.py --out "$out/search" --work "$work" \
        --seconds $((${SEARCH_SECONDS:-520} - 20)) --arms toy,arc128:3 --part $i/4 &
    parts+=($!)
done
wait "${parts[@]}"
step turns 3000 0,1,2,3 0-$((4 * quarter - 1)) python3 bench/experiments/multi_turn.py --out "$out/turns" \
    --seconds $(($(left) - 60)) --gpus 4 --train-seeds 3
say "all done"
