#!/usr/bin/env bash
# GRPO, on two GPUs: does GRPO learn more from more tasks; and notebook 05 on both.
#
#     arcnb run 01 -p tasks "rearc*2600 + dsl*1400" -p n_tasks 0 -p seed 6 -p max_cells 800 -p max_prompt_length 1000
#     MORE=RUN/tasks.parquet bash bench/experiments/learning.sh OUT
#
# The first GPU samples the training tasks, then notebook 05 learns on it for PAGE steps, for its page, beside the arms
# of FEW, which train on the tasks that are solved at times. The second samples MORE, then has the arms of MANY, which
# train on those, too. All of these end in time for the last LAST seconds: notebook 05 in a process on each GPU.
source "$(dirname "$0")/steps.sh"
: "${MORE:?MORE names a file of generated tasks}"
few=(${FEW-$(echo rank8:{0,1,2}:250)})
many=(${MANY-$(echo wide8:{0,1,2}:250) wide:0:250})
whole=${END:-1600}
END=$((whole - ${LAST:-160}))

few_tasks() {
    alone samples solved 0 "$(cores 0)" solved arc-agi-1/training 32 && touch "$out/solved.done"
    learn_page 0 "$(cores 0)" "$out/sets/solved" "${PAGE:-150}" &
    sleep "${PAGE_OPENS:-100}" # its engine measures free memory while it opens
    # Notebook 05 has a place beside them.
    arms few 0 "$(cores 0)" "${few[*]}" ${#few[@]} \
        "$(echo "0.8 ${#few[@]}" | awk '{ print $1 * $2 / ($2 + 1) }')" --solved-in "$out/sets/solved"
    wait
}
many_tasks() {
    alone samples more 1 "$(cores 1)" more "$MORE" 8
    while [ ! -e "$out/solved.done" ] && [ "$(left)" -gt 200 ]; do sleep 1; done
    arms many 1 "$(cores 1)" "${many[*]}" ${#many[@]} 0.86 --without-start \
        --solved-in "$out/sets/solved" --more "$MORE" --more-solved-in "$out/sets/more"
}

share_gpus
few_tasks &
many_tasks &
wait
END=$whole
alone two_processes ddp
alone two_processes zero3 -p parallel zero3
say "all done"
