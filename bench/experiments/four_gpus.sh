#!/usr/bin/env bash
# A node with four GPUs at once, about 27 minutes on four H200s with 64 cores.
#
#   bash bench/experiments/four_gpus.sh OUT        # OUT/progress.txt, OUT/two/progress.txt, OUT/grpo-*.log
#
# GPU 0: the adapter trained by its command, then its samples on the training set (issue 4). GPU 1: the arms of issue 6.
# GPUs 2 and 3: two_gpus.sh (issues 5, 7, 10), then GPU 2 the adapter's samples on the evaluation set.
set -u
out=$(realpath -m "${1:?usage: four_gpus.sh OUT}")
root=$(cd "$(dirname "$0")/../.." && pwd)
cd "$root" || exit 1
mkdir -p "$out/two"
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false PYTHONUNBUFFERED=1 ARCNB_RUNS=${ARCNB_RUNS:-$out/runs}
began=$(date +%s)
end=${SECONDS_IN_ALL:-1560}
all_arms=$(for seed in 0 1 2; do echo {v,c,a,b,e,d0,d1}:$seed; done)
a=0-13 b=14-38 c=39-51 d=52-63

left() { echo $((end - ($(date +%s) - began))); }
say() { echo "[$(($(date +%s) - began)) s] $*" | tee -a "$out/progress.txt"; }
run() { # NAME GPU CORES ARGUMENTS of `arcnb run`
    local name=$1 gpu=$2 on=$3
    shift 3
    say "$name begins"
    CUDA_VISIBLE_DEVICES=$gpu timeout -k 40 "$(left)" taskset -c "$on" \
        python3 -m arcnb.lab.cli run "$@" --quiet --name "$name" > "$out/$name.log" 2>&1
    say "$name: exit $?"
    for folder in "$ARCNB_RUNS"/*-"$name"; do
        mkdir -p "$out/$name"
        find "$folder" -maxdepth 1 -type f -size -8M -exec cp {} "$out/$name/" \;
    done
}
samples() { # NAME GPU CORES TASKS ADAPTER N MORE...
    local name=$1 gpu=$2 on=$3 tasks=$4 adapter=$5 n=$6
    shift 6
    run "$name" "$gpu" "$on" 03 -p tasks "$tasks" -p adapter "$adapter" -p n_tasks 0 -p n_predictions "$n" -p per_prompt 8 \
        -p max_tokens 512 -p max_model_len 4096 -p seeded false -p workers 12 -p output "$out/sets/$name" "$@"
}

train_adapter() {
    run adapter 0 $a 02 -f adapter -p adapter default -p seed 1 -p num_processes 1 -p gradient_accumulation_steps 4 \
        -p max_steps "${SFT_STEPS:-440}" -p learning_rate 4e-4 -p workers 12 \
        -p tasks "rearc*2400 + dsl*1800 + dsl/scenes*1900 + rearc/originals"
    samples training 0 $a arc-agi-1/training "$(echo "$ARCNB_RUNS"/*-adapter/adapter)" 128
}

arms() {
    mkdir -p "$out/mps"
    export CUDA_MPS_PIPE_DIRECTORY=$out/mps CUDA_MPS_LOG_DIRECTORY=$out/mps
    env -u CUDA_VISIBLE_DEVICES nvidia-cuda-mps-control -d
    local common="--devices 1 --seconds"
    local options="--kv-gb 2 --packed-tokens 16384"
    # vLLM measures free memory while it starts: nobody else may take it then.
    (
        sleep "${HEAD_START:-60}"
        taskset -c $b python3 bench/experiments/grpo_arms.py ${ARMS:-$all_arms} $common $(($(left) - 30)) --at-once 11 \
            --share-of-gpu 0.64 --out "$out/grpo" -- --steps "${ARM_STEPS:-150}" $options > "$out/grpo-arms.log" 2>&1
    ) &
    samples solved 1 $b arc-agi-1/training default 32 -p gpu_memory 0.25
    [ -e "$out/sets/solved" ] && options+=" --solved-in $out/sets/solved" || say "no predictions: learn without --solved-in"
    say "arms learn begin"
    taskset -c $b python3 bench/experiments/grpo_arms.py learn:0 learn:1 learn:2 $common $(($(left) - 30)) --share-of-gpu 0.19 \
        --out "$out/grpo-learn" -- --steps 500 --eval-tasks 128 $options > "$out/grpo-learn.log" 2>&1
    wait
    echo quit | nvidia-cuda-mps-control
    say "arms: done"
}

train_adapter &
arms &
GPUS="2 3" CORES="$c $d" ONLY="${ONLY:-problems two shared stage}" bash bench/experiments/two_gpus.sh "$out/two" > "$out/two.log" 2>&1 &
# GPU 2 is free when its lane has ended, and there is something to sample.
until [ -e "$ARCNB_RUNS"/*-adapter/adapter/adapter_config.json ] && grep -q "stage_embedded: exit" "$out/two/progress.txt"; do
    sleep 3
    [ "$(left)" -gt 100 ] || break
done
samples evaluation 2 $c arc-agi-1/evaluation "$(echo "$ARCNB_RUNS"/*-adapter/adapter)" 128
wait
say "all done"
