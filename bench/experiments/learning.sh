#!/usr/bin/env bash
# Issue 6 on two GPUs: does GRPO learn more in more steps, with less capacity, from more tasks; and what is left to time.
#
#     arcnb run 01 -p source "rearc*2600 + dsl*1400" -p n_tasks 0 -p seed 6 -p max_cells 800 -p max_prompt_tokens 1000
#     MORE=RUN/tasks.parquet bash bench/experiments/learning.sh OUT
#
# The first GPU samples the training tasks, then notebook 05 learns on it, for its page, beside the arms of FEW, which
# train on the tasks that are solved at times. The second samples MORE, then has the arms of MANY, which train on those,
# too, and in the last TIMED seconds unsloth with groups of 256, alone. Arms stop in time by themselves.
source "$(dirname "$0")/steps.sh"
: "${MORE:?MORE names a file of generated tasks}"
few=(${FEW-$(echo {rank8,rank1-fast}:{0,1,2}:300)})
many=(${MANY-$(echo {wide8,wide}:{0,1,2}:300)})
timed=${TIMED:-250}
first=${FIRST_GPU:-0}
second=${SECOND_GPU:-1}

# alone COMMAND...: outside of the multi-process service
alone() { (unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY && "$@"); }
# until_sampled SET: waits for its samples, or until it is too late to train on them
until_sampled() {
    while [ ! -e "$out/$1.done" ] && [ "$(left)" -gt 200 ]; do sleep 1; done
}

few_tasks() {
    alone samples solved "$first" "$(cores "$first")" solved arc-agi-1/training 32 && touch "$out/solved.done"
    learn_page "$first" "$(cores "$first")" "$out/sets/solved" "${PAGE:-80}" &
    sleep "${PAGE_OPENS:-100}" # its engine measures free memory while it opens
    # Notebook 05 has a place beside them.
    arms few "$first" "$(cores "$first")" "${few[*]}" ${#few[@]} \
        "$(echo "0.8 ${#few[@]}" | awk '{ print $1 * $2 / ($2 + 1) }')" --solved-in "$out/sets/solved"
    wait
}
many_tasks() {
    alone samples more "$second" "$(cores "$second")" more "$MORE" 8 && touch "$out/more.done"
    until_sampled solved
    (END=$((${END:-1600} - timed)) && arms many "$second" "$(cores "$second")" "${many[*]}" ${#many[@]} 0.86 \
        --solved-in "$out/sets/solved" --without-start --more "$MORE" --more-solved-in "$out/sets/more")
    WAYS=unsloth ROOM=$((timed - 10)) alone speed unsloth_256 "$second" "$(cores "$second")" 256
}

share_gpus
few_tasks &
many_tasks &
wait
say "all done"
