#!/usr/bin/env bash
# What docs/log.md still waits for, on one node with two GPUs, in lanes; about 28 minutes on two H200s.
#
#   bash bench/experiments/two_gpus.sh OUT         # OUT/progress.txt says what runs; OUT/NAME.log each step's output
#
# Both GPUs: RL on coding problems with server and trainer (issue 10), one set of predictions in two shards (issue 5).
# Then GPU 0: the same set by one GPU, and with the adapter folded into the weights; the adapter trained by its
# command and sampled (issues 4, 5). GPU 1: shared prompts at other budgets and lengths, whole steps (issue 7), the
# sampling stage beside plain vLLM (issue 5).
# Each step has a time limit and fails alone. ONLY="problems two merged adapter shared stage speed" names some of them,
# GPUS="0 1" the GPUs, CORES="0-15 16-31" the cores of each lane.
set -u
out=$(realpath -m "${1:?usage: two_gpus.sh OUT}")
root=$(cd "$(dirname "$0")/../.." && pwd)
cd "$root" || exit 1
mkdir -p "$out"
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false PYTHONUNBUFFERED=1 ARCNB_RUNS=${ARCNB_RUNS:-$out/runs}
half=$(($(nproc) / 2))
read -r gpu0 gpu1 <<< "${GPUS:-0 1}"
read -r first second <<< "${CORES:-0-$((half - 1)) $half-$((2 * half - 1))}"
half=$((${first#*-} - ${first%-*} + 1))
began=$(date +%s)

say() { echo "[$(($(date +%s) - began)) s] $*" | tee -a "$out/progress.txt"; }

# step NAME LIMIT GPUS CORES COMMAND...
step() {
    local name=$1 limit=$2 gpus=$3 on=$4
    shift 4
    say "$name begins"
    CUDA_VISIBLE_DEVICES=$gpus timeout -k 10 "$limit" taskset -c "$on" "$@" > "$out/$name.log" 2>&1
    say "$name: exit $?"
}

arcnb() { # NAME LIMIT GPUS CORES ARGUMENTS of `arcnb run`; leaves manifest, metrics and report in OUT/NAME
    local name=$1 limit=$2 gpus=$3 on=$4
    shift 4
    step "$name" "$limit" "$gpus" "$on" python3 -m arcnb.lab.cli run "$@" --quiet --name "$name"
    mkdir -p "$out/$name"
    for folder in "$ARCNB_RUNS"/*-"$name"; do
        find "$folder" -maxdepth 1 -type f \( -name '*.json' -o -name '*.jsonl' -o -name '*.html' -o -name '*.log' \) \
            -size -8M -exec cp {} "$out/$name/" \;
    done
}

wanted() { [ -z "${ONLY:-}" ] || [[ " $ONLY " == *" $1 "* ]]; }

problems=(09 -p problems simple -p evaluation simple/held_out -p use_vllm true -p vllm_mode server -p vllm_server_gpus 1
    -p num_processes 1 -p vllm_gpu_memory_utilization 0.5 -p max_steps 30 -p num_generations 16 -p prompts_per_step 8
    -p max_completion_length 128 -p max_model_len 2048 -p learning_rate 4e-5 -p eval_steps 10
    -p simple_eval_problems 15 -p repeat_eval_problems 4 -p final_samples 8)
sampled=(03 -p n_tasks 0 -p per_prompt 8 -p max_tokens 512 -p max_model_len 4096 -p seeded false -p workers $((half - 1)))
two=("${sampled[@]}" -p tasks arc-agi-1/evaluation -p n_predictions 32 -p n_shards 2 -p output "$out/set_two")

wanted problems && arcnb two-gpus 420 "$gpu0,$gpu1" "$first,$second" "${problems[@]}"

if wanted two; then
    arcnb shard0 260 "$gpu0" "$first" "${two[@]}" -p shard 0 &
    arcnb shard1 260 "$gpu1" "$second" "${two[@]}" -p shard 1 &
    wait
fi

stage() { # GPU CORES
    step stage_8b 480 "$1" "$2" python3 bench/inference_throughput.py --llama-8b "$out/llama8b" --prompts 96 --rounds 2 \
        --prompt-tokens 3800 --n 8 --max-tokens 400 --turns 1 --budget 400 --workers $((half - 2))
    step stage_embedded 320 "$1" "$2" python3 bench/inference_throughput.py --prompts 200 --rounds 2 \
        --prompt-tokens 3800 --n 8 --max-tokens 400 --turns 2 --ways plain-free,arcnb-free --workers $((half - 2))
}

lane0() {
    local one=("${sampled[@]}" -p tasks arc-agi-1/evaluation -p n_predictions 32)
    wanted two && arcnb single 300 "$gpu0" "$first" "${one[@]}" -p output "$out/set_one"
    wanted merged && arcnb merged 300 "$gpu0" "$first" "${one[@]}" -p output "$out/set_merged" -p adapter "" -p model "$(python3 -c '
from arcnb.models.merging import merged_model
from arcnb.models.registry import resolve_adapter, resolve_model
model = resolve_model("default")
print(merged_model(model, resolve_adapter("default", model)).folder)')"
    if ! wanted adapter; then
        wanted stage && stage "$gpu0" "$first"
        return
    fi
    arcnb adapter "${SFT_SECONDS:-1000}" "$gpu0" "$first" 02 -f adapter -p adapter default -p seed 1 -p num_processes 1 \
        -p gradient_accumulation_steps 4 -p max_steps "${SFT_STEPS:-440}" -p learning_rate 4e-4 -p workers $((half - 2)) \
        -p tasks "rearc*2400 + dsl*1800 + dsl/scenes*1900 + rearc/originals"
    cp -r "$ARCNB_RUNS"/*-adapter/adapter "$out/adapter/" 2> /dev/null
}

lane1() {
    if wanted shared; then
        local whole=(python3 bench/grpo_speed.py --vllm --shape 8b --groups 32 --rank 1 --max-completion-length 1024 --share 0.35
            --warm 1 --limit 270 --seconds 590)
        step whole_3800 600 "$gpu1" "$second" "${whole[@]}" --prompt-tokens 3300 3800 --steps 3 --ways shared trl unsloth \
            --json "$out/whole_3800.json"
        step whole_8600 450 "$gpu1" "$second" "${whole[@]}" --prompt-tokens 7800 8600 --steps 2 --ways shared trl \
            --json "$out/whole_8600.json"
        step budgets 200 "$gpu1" "$second" python3 bench/shared_prefix.py --device cuda --shape 8b --old --prompts 3800 \
            --ways shared --budgets 8192 16384 32768 65536 --steps 2 --json "$out/budgets.json"
        step embedded 200 "$gpu1" "$second" python3 bench/shared_prefix.py --device cuda --shape embedded --old \
            --prompts 2000 3800 --completions 32 --tokens 512 --ways shared stock unsloth --steps 3 --limit 60 \
            --json "$out/embedded.json"
    fi
}

speed() {
    step speed 600 "$gpu1" "$second" python3 bench/grpo_speed.py --vllm --adapter default --groups 8 32 128 256 \
        --ways shared trl unsloth --steps 6 --warm 2 --limit 120 --json "$out/speed.json"
}

lane0 &
{ lane1; wanted stage && wanted adapter && stage "$gpu1" "$second"; wanted speed && speed; } &
wait
say "all done"
