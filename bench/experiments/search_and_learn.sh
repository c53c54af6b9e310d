#!/usr/bin/env bash
# Search and learn, on the GPUs of a node, or on some (GPUS="0 1"): bash bench/experiments/search_and_learn.sh OUT
#
# A process a share of the pairs of arm and seed, six on one GPU, four each on several, or PARTS of them: the longest arms (512
# completions) end sooner beside few others.
source "$(dirname "$0")/steps.sh"

gpus=(${GPUS:-$(seq 0 $(($(n_gpus) - 1)))})
n=${#gpus[@]}
parts=${PARTS:-$((n > 1 ? 4 * n : 6))}
share_gpus
for ((i = 0; i < parts; i++)); do
    step "search$i" 3000 ${gpus[i % n]} "$(cores ${gpus[i % n]})" python3 bench/experiments/search_and_learn.py \
        --out "$out/search" --work "${WORK:-$out/work}" --seconds $(($(left) - 40)) --arms "${ARMS:-toy:3,arc128:3,arc512,eval128,eval512}" \
        --part "$i/$parts" --kv-gb 5 --memory-fraction 0.1 --batch-tokens 12288 --workers $((n * $(n_cores "$(cores 0)") / parts + 1)) &
done
wait
say "all done"
