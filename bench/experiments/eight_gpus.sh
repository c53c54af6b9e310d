#!/usr/bin/env bash
# A node with eight GPUs: SOLVED=PREDICTIONS bash bench/experiments/eight_gpus.sh OUT
#
# Planned for 26 minutes on eight H200s with 128 cores; not yet run. GPUs 0 to 3: search and learn, then refining against
# sampling again (issues 9, 8; four_gpus_search.sh). GPU 4: the sampling stage beside plain vLLM (5), then whole steps with and
# without cascade attention (7). GPU 5: arms of issue 6 that learn, on tasks that SOLVED, samples of the
# training set, solve at times. GPUs 6 and 7: its other arms, six at a time.
source "$(dirname "$0")/steps.sh"
solved=${SOLVED:-$out/sets/training}

cores() { echo "$((16 * $1))-$((16 * $1 + 15))"; }
# arms_on GPU NAME AT_ONCE "ARM:SEED:STEPS ..." MORE...
arms_on() { arms "$2" "$1" "$(cores "$1")" "$4" "$3" 0.85 "${@:5}"; }

share_gpus
(
    unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
    END=$(left) taskset -c 0-63 bash bench/experiments/four_gpus_search.sh "$out" &
    stage_embedded 4 "$(cores 4)"
    cascade_3800 4 "$(cores 4)"
    cascade_8600 4 "$(cores 4)"
    whole_8600 4 "$(cores 4)"
    whole_3800 4 "$(cores 4)"
    wait
) &
arms_on 5 learning 6 "$(echo {learn,learn-fast}:{0,1,2}:400) rank1:0:300 rank8:0:300 rank32:0:300" --eval-tasks 128 --solved-in "$solved" &
arms_on 6 collapse6 6 "$(echo {a,b}:{0,1,2}:150 {c,e}:{0,1,2}:150)" &
arms_on 7 collapse7 6 "$(echo {d0,d1}:{0,1,2}:150) $(echo v:{0,1,2}:150)" &
wait
say "all done"
