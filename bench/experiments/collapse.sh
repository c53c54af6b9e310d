#!/usr/bin/env bash
# GRPO, on the GPUs of a node, or on some (GPUS="0 1"): SOLVED=PREDICTIONS bash bench/experiments/collapse.sh OUT
#
# All train on tasks that SOLVED, samples of the training set by the adapter they start from, solves at times; those that
# learn and the ranks evaluate that start for all. At most AT_ONCE arms share a GPU; others wait for a place. LEARNING and
# COLLAPSE name a part of the arms: the table takes the folders of several calls. PAGE=STEPS: notebook 05 learns beside
# them on the first GPU, for its page; the arms wait for its engine (PAGE_OPENS=90 s), which measures free memory while
# it opens. Not yet run whole.
source "$(dirname "$0")/steps.sh"
: "${SOLVED:?SOLVED names a prediction set of the training tasks}"
learning=(${LEARNING-$(echo learn-fast:{0,1,2}:300 rank{1,8,32}:0:300)})
collapse=(${COLLAPSE-$(for seed in 0 1 2; do echo {a,b,c,d0,d1,v,e}:$seed:250; done)})
gpus=(${GPUS:-$(seq 0 $(($(n_gpus) - 1)))})
most=${AT_ONCE:-12}

# every_nth FIRST N WORD...
every_nth() {
    local first=$1 n=$2 i
    shift 2
    for ((i = first + 1; i <= $#; i += n)); do echo "${!i}"; done
}
# lane NAME GPU OF_ALL MORE... -- ARM...: arms that have their share of a GPU on which OF_ALL arms are
lane() {
    local name=$1 gpu=$2 all=$3 more=() n places
    shift 3
    while [ "$1" != -- ]; do more+=("$1"); shift; done
    shift
    n=$#
    [ "$n" -gt 0 ] || return 0
    places=$((all > most ? (most * n + all - 1) / all : n))
    arms "$name$gpu" "$gpu" "$(cores "$gpu")" "$*" $places "$(echo "0.86 $places $all $most" | awk '{ print $1 * $2 / ($3 < $4 ? $3 : $4) }')" "${more[@]}"
}

share_gpus
if [ -n "${PAGE:-}" ]; then
    learn_page ${gpus[0]} "$(cores ${gpus[0]})" "$SOLVED" "$PAGE" &
    sleep ${PAGE_OPENS:-90}
fi
for i in "${!gpus[@]}"; do
    gpu=${gpus[i]}
    learns=($(every_nth $i ${#gpus[@]} "${learning[@]}"))
    falls=($(every_nth $i ${#gpus[@]} "${collapse[@]}"))
    all=$((${#learns[@]} + ${#falls[@]}))
    [ -z "${PAGE:-}" ] || [ $i -gt 0 ] || all=$((all + 1))
    lane learning $gpu $all --solved-in "$SOLVED" -- "${learns[@]}" &
    lane collapse $gpu $all --solved-in "$SOLVED" --without-start -- "${falls[@]}" &
done
wait
say "all done"
