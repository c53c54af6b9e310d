#!/usr/bin/env bash
# A node with eight GPUs: SOLVED=PREDICTIONS bash bench/experiments/eight_gpus.sh OUT
#
# Planned for 26 minutes on eight H200s with 128 cores; not yet run. GPUs 0 to 3: search and learn, then refining against
# sampling again (issues 9, 8; four_gpus_search.sh). GPU 4: the sampling stage beside plain vLLM (5), then whole steps with and
# without cascade attention (7). GPU 5: arms of issue 6 that learn, on tasks that SOLVED, samples of the
# training set, solve at times. GPU 6: its other arms, seven at a time. GPU 7: speed of its steps, then ranks.
source "$(dirname "$0")/steps.sh"
solved=${SOLVED:-$out/sets/training}

cores() { echo "$((16 * $1))-$((16 * $1 + 15))"; }
# arms_on GPU NAME AT_ONCE SHARE "ARM:SEED:STEPS ..." MORE...
arms_on() { arms "$2" "$1" "$(cores "$1")" "$5" "$3" "$4" "${@:6}"; }

{
    END=$(left) taskset -c 0-63 bash bench/experiments/four_gpus_search.sh "$out"
} &
{
    stage_embedded 4 "$(cores 4)"
    cascade_3800 4 "$(cores 4)"
    cascade_8600 4 "$(cores 4)"
    offload 4 "$(cores 4)"
    whole_8600 4 "$(cores 4)"
    whole_3800 4 "$(cores 4)"
} &
{
    share_gpus
    learn="--eval-tasks 128 --solved-in $solved"
    arms_on 5 learning 6 0.85 "$(echo {learn-fast,learn}:{0,1,2}:400)" $learn &
    arms_on 6 collapse 7 0.85 "$(echo {a,b,c,d0,d1,v,e}:{0,1,2}:100)" &
    (
        unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
        speed 7 "$(cores 7)"
    )
    arms_on 7 ranks 3 0.4 "$(echo rank{1,8,32}:0:300)" $learn &
    wait
} &
wait
say "all done"
