#!/usr/bin/env bash
# GRPO, on two GPUs: what a step takes, what low ranks learn in some hundred steps, notebook 05 on both.
#
# On the first GPU, alone: SPEEDS, steps of steps.sh. The second samples the training tasks; then the arms of RANKS train
# on those that are solved at times (of REST without an evaluation of their start, which all share). All end in time for
# the last LAST seconds: notebook 05 in a process on each GPU, by ZeRO-3 and with the base in four bits.
source "$(dirname "$0")/steps.sh"
ranks=(${RANKS-$(echo rank8:{0,1,2}:500)})
rest=(${REST-$(echo rank8-fast:{0,1,2}:500 rank1-fast:{0,1,2}:500)})
most=$(($(n_processors) - 1))
first=${FIRST:-0-9} second=${SECOND:-10-$most}
whole=${END:-1600}
END=$((whole - ${LAST:-300}))

speeds() { for one in ${SPEEDS-speed_unsloth speed_parts speed_middle}; do alone $one 0 "$first"; done; }
learning() {
    local all=$((${#ranks[@]} + ${#rest[@]}))
    share() { echo "$1 $all" | awk '{ print 0.86 * $1 / $2 }'; }
    alone samples solved 1 "$second" solved arc-agi-1/training 32
    arms ranks 1 "$second" "${ranks[*]}" ${#ranks[@]} "$(share ${#ranks[@]})" --solved-in "$out/sets/solved" &
    arms rest 1 "$second" "${rest[*]}" ${#rest[@]} "$(share ${#rest[@]})" --solved-in "$out/sets/solved" --without-start
    wait
}

share_gpus
speeds &
learning &
wait
END=$whole
alone two_processes zero3 -p parallel zero3
alone two_processes four_bits -p load_in_4bit true
say "all done"
