# What is measured on a node with GPUs, a function a step; sourced by the scripts of this folder.
# One alone: bash -c '. bench/experiments/steps.sh OUT; trl_8600 0 0-15' (GPU 0, cores 0 to 15)
#
# Each step is given GPUs and cores, has a time limit, and fails alone. OUT/progress.txt says what runs, OUT/NAME.log
# what it says, OUT/NAME holds a notebook's report, manifest and metrics. END is the second at which all must be over.
set -u
out=$(realpath -m "${1:?usage: $0 OUT}")
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root" || exit 1
mkdir -p "$out"
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false PYTHONUNBUFFERED=1 ARCNB_RUNS=${ARCNB_RUNS:-$out/runs}
began=$(date +%s)

passed() { echo $(($(date +%s) - began)); }
left() { echo $((${END:-1600} - $(passed))); }
say() { echo "[$(passed) s] $*" | tee -a "$out/progress.txt"; }
n_cores() { echo $((${1#*-} - ${1%-*} + 1)); }
# Not nproc, which says OMP_NUM_THREADS where that is set.
n_processors() { getconf _NPROCESSORS_ONLN; }
n_gpus() { nvidia-smi -L | wc -l; }
all_gpus() { seq -s, 0 $(($(n_gpus) - 1)); }
all_cores() { echo "0-$(($(n_processors) - 1))"; }
# Of a GPU: its share of the cores, or what CORES says for all that is started here (CORES=0-21).
cores() {
    [ -z "${CORES:-}" ] || { echo "$CORES"; return; }
    local share=$(($(n_processors) / $(n_gpus)))
    echo "$((share * $1))-$((share * $1 + share - 1))"
}

# step NAME LIMIT GPUS CORES COMMAND...
step() {
    local name=$1 limit=$2 gpus=$3 on=$4 most
    shift 4
    most=$(left)
    [ "$most" -gt 20 ] || { say "$name: no time left"; return 1; }
    say "$name begins"
    CUDA_VISIBLE_DEVICES=$gpus timeout -k ${GRACE:-20} $((limit < most ? limit : most)) taskset -c "$on" "$@" > "$out/$name.log" 2>&1
    local code=$?
    say "$name: exit $code"
    return $code
}

# notebook NAME LIMIT GPUS CORES ARGUMENTS of `arcnb run`
notebook() {
    local name=$1 code
    step "${@:1:4}" python3 -m arcnb.lab.cli run "${@:5}" --quiet --name "$name"
    code=$?
    mkdir -p "$out/$name"
    for folder in "$ARCNB_RUNS"/*-"$name"; do
        find "$folder" -maxdepth 1 -type f -size -8M \
            \( -name '*.json' -o -name '*.jsonl' -o -name '*.html' -o -name '*.log' \) -exec cp {} "$out/$name/" \;
    done
    return $code
}

# Problems with tests: server and trainer. GPUS CORES
problems() {
    notebook two-gpus 560 "$1" "$2" 09 -p tasks simple -p eval_tasks simple/held_out -p use_vllm true \
        -p vllm_mode server -p vllm_server_gpus 1 -p num_processes 1 -p vllm_gpu_memory_utilization 0.5 -p max_steps 30 \
        -p num_generations 16 -p prompts_per_step 8 -p max_completion_length 128 -p max_length 2048 \
        -p learning_rate 4e-5 -p eval_steps 10 -p n_eval_tasks 15 -p num_generations_eval 4 -p n_predictions 8
}

# Tests that need GPUs (issues 5, 7, 10). GPUS CORES MORE...
gpu_tests() {
    step gpu_tests 420 "$1" "$2" python3 -m pytest tests/rl/test_gpu.py tests/models/sampling/test_gpu.py -v -rs \
        -p no:cacheprovider "${@:3}"
}

# Issues 4 and 5: predictions in OUT/sets/SET. NAME GPU CORES SET TASKS N MORE...
samples() {
    local name=$1 gpu=$2 on=$3 set=$4 tasks=$5 n=$6
    shift 6
    notebook "$name" 1200 "$gpu" "$on" 03 -p tasks "$tasks" -p n_tasks 0 -p n_predictions "$n" -p per_prompt 8 \
        -p max_completion_length 512 -p max_length 4096 -p seeded false -p workers $(($(n_cores "$on") - 1)) -p output "$out/sets/$set" "$@"
}

# Inference: the same in two shards. GPU0 GPU1 CORES0 CORES1 SET TASKS N MORE...
shards() {
    samples shard0 "$1" "$3" "${@:5}" -p n_shards 2 -p shard 0 &
    local other=$!
    samples shard1 "$2" "$4" "${@:5}" -p n_shards 2 -p shard 1
    wait $other
}

# Inference: the whole stage beside plain vLLM. GPU CORES
stage_8b() {
    step stage_8b 480 "$1" "$2" python3 bench/inference_throughput.py --llama-8b "$out/llama8b" --prompts 96 --rounds 2 \
        --prompt-tokens 3800 --n 8 --max-tokens 400 --turns 1 --budget 400 --workers $(($(n_cores "$2") - 2))
}
stage_embedded() {
    step stage_embedded 560 "$1" "$2" python3 bench/inference_throughput.py --adapter default --prompts 200 --turn-seconds ${TURN:-180} \
        --prompt-tokens 2000 --n 8 --max-tokens 400 --turns 1 --ways plain-free,backend-free,arcnb-free --workers $(($(n_cores "$2") - 2))
}
# The same with two engines on the GPU, beside one plain one.
stage_engines() {
    step stage_engines 480 "$1" "$2" python3 bench/inference_throughput.py --adapter default --prompts 200 --turn-seconds ${TURN:-40} \
        --prompt-tokens 2000 --n 8 --max-tokens 400 --turns ${TURNS:-2} --ways plain-free,arcnb-free --engines 2 --workers $(($(n_cores "$2") - 4))
}
# Shared prompts: whole steps of an 8B shape, and steps without generation. GPU CORES
trl_3800() { whole trl_3800 300 "$1" "$2" --prompt-tokens 3300 3800 --steps 3 --ways trl; }
trl_8600() { whole trl_8600 400 "$1" "$2" --prompt-tokens 7800 8600 --steps 3 --ways trl --limit 370; }
unsloth_3800() { whole unsloth_3800 360 "$1" "$2" --prompt-tokens 3300 3800 --steps 3 --ways unsloth --limit 330; }
# The same with an fp8 cache in vLLM.
fp8_3800() { whole fp8_3800 240 "$1" "$2" --prompt-tokens 3300 3800 --steps 4 --ways shared --kv-cache-dtype fp8; }
fp8_8600() { whole fp8_8600 240 "$1" "$2" --prompt-tokens 7800 8600 --steps 4 --ways shared --kv-cache-dtype fp8; }
# The same with our attention in vLLM, which reads a prompt once a token.
group_3800() { whole group_3800 240 "$1" "$2" --prompt-tokens 3300 3800 --steps 4 --ways shared --group-attention; }
group_8600() { whole group_8600 240 "$1" "$2" --prompt-tokens 7800 8600 --steps 4 --ways shared --group-attention; }
# That with sampling for two and for four steps at once: weights are read once a token for all their prompts.
ahead2_3800() { ahead ahead2_3800 2 "$1" "$2" --prompt-tokens 3300 3800; }
ahead4_3800() { ahead ahead4_3800 4 "$1" "$2" --prompt-tokens 3300 3800; }
ahead4_8600() { ahead ahead4_8600 4 "$1" "$2" --prompt-tokens 7800 8600; }
# Everything at once: also with hidden states that wait in the host's memory.
offload4_3800() { ahead offload4_3800 4 "$1" "$2" --prompt-tokens 3300 3800 --offload; }
# Memory: the same with one copy of the weights, and stock TRL with the same share for vLLM.
memory_3800() {
    ahead memory_3800 4 "$1" "$2" --prompt-tokens 3300 3800 --offload --shared-weights --share 0.26
    whole memory_trl_3800 300 "$1" "$2" --prompt-tokens 3300 3800 --steps 3 --ways trl --share 0.26
}
ahead() {
    whole "$1" 400 "$3" "$4" --warm "$2" --steps $((3 * $2)) --ways shared --group-attention --generations "$2" --limit 340 "${@:5}"
}
whole() {
    step "${@:1:4}" python3 bench/grpo_speed.py --vllm --shape 8b --groups 32 --rank 1 --max-completion-length 1024 \
        --share 0.35 --warm 1 --limit 270 --seconds 590 "${@:5}" --json "$out/$1.json"
}
# What a token costs that engine, and of which kernels it is made.
decoding() {
    step decoding 240 "$1" "$2" python3 bench/decoding_step.py --shape 8b --prompt-tokens 3700 --group-attention --share 0.6
}
budgets() {
    step budgets 240 "$1" "$2" python3 bench/shared_prefix.py --device cuda --shape 8b --old --prompts 3800 --ways shared \
        --budgets 8192 16384 32768 65536 --steps 2 --json "$out/budgets.json"
}
# The same with hidden states that wait in the host's memory, and stock TRL for its peak.
offload() {
    step offload 300 "$1" "$2" python3 bench/shared_prefix.py --device cuda --shape 8b --old --prompts 3800 \
        --ways shared stock --budgets 16384 65536 --offload --steps 3 --json "$out/offload.json"
}
shared_embedded() {
    step shared_embedded 240 "$1" "$2" python3 bench/shared_prefix.py --device cuda --shape embedded --old \
        --prompts 2000 3800 --completions 32 --tokens 512 --ways shared stock unsloth --steps 3 --limit 60 \
        --json "$out/shared_embedded.json"
}

# GRPO: seconds a step against the size of groups, two at a time; a run takes 45 to 190 s, of ROOM at most. GPU CORES
speed_small() { speed small "$1" "$2" 8 32; }
speed_large() { speed large "$1" "$2" 128 256; }
speed_middle() { speed middle "$1" "$2" 16 64; }
speed_unsloth() { WAYS=unsloth ROOM=200 speed unsloth "$1" "$2" 32 256; }
# 32 completions in one part, in four and in sixteen.
speed_parts() { speed parts "$1" "$2" 32 --accumulation 1 4 16; }
speed() {
    step "speed_$1" 600 "$2" "$3" python3 bench/grpo_speed.py --vllm --adapter default --groups "${@:4}" \
        --ways ${WAYS:-shared trl unsloth} --steps 6 --warm 2 --limit ${ROOM:-130} --seconds 590 --json "$out/speed_$1.json"
}
# GRPO: notebook 05 with the settings of the arm learn-fast, for its page. One that the end of the time stops saves a
# checkpoint, and its page ends there, without curves: choose few enough STEPS. GPU CORES SOLVED STEPS
learn_page() {
    GRACE=80 notebook learn_page $(($(left) - 100)) "$1" "$2" 05 -p tasks arc-agi-1/training -p n_tasks 0 -p learn_from "$3" \
        -p max_steps "$4" -p eval_tasks arc-agi-1/evaluation -p n_eval_tasks 64 -p eval_steps 50 -p num_generations_eval 16 \
        -p reward right-grids -p overlong_weight 0.2 -p overlong_buffer 128 -p num_generations 16 -p prompts_per_step 8 \
        -p learning_rate 4e-5 -p beta 0.01 -p max_grad_norm 0.2 -p warmup_steps 0.02 -p save_steps 50 \
        -p vllm_importance_sampling_mode token_truncate -p vllm_importance_sampling_clip_max 2.0 \
        -p max_prompt_length 1000 -p max_completion_length 384 -p max_length 1384 -p gradient_checkpointing true \
        -p shared_prompt true -p shared_prompt_tokens 8192 -p use_vllm true -p vllm_gpu_memory_utilization 0.1 -p workers 3
}

# GRPO: notebook 05 in a process on each GPU. NAME MORE...
two_processes() {
    notebook "two_$1" 150 "$(all_gpus)" "$(all_cores)" 05 -p num_processes 2 -p max_steps 6 -p n_tasks 64 "${@:2}" \
        -p prompts_per_step 8 -p num_generations 16 -p learning_rate 4e-5 -p max_prompt_length 1000 -p max_completion_length 256 \
        -p max_length 1256 -p gradient_checkpointing true -p use_vllm true -p vllm_gpu_memory_utilization 0.3 \
        -p reward right-grids -p n_eval_tasks 16 -p eval_steps 3 -p num_generations_eval 4 -p vllm_importance_sampling_mode token_truncate
}

# One multi-process service for all GPUs, unless there is one; only what is started with these variables uses it.
share_gpus() {
    [ -z "${CUDA_MPS_PIPE_DIRECTORY:-}" ] || return 0
    export CUDA_MPS_PIPE_DIRECTORY=$out/mps CUDA_MPS_LOG_DIRECTORY=$out/mps
    mkdir -p "$out/mps"
    [ -e "$out/mps/nvidia-cuda-mps-control.pid" ] || env -u CUDA_VISIBLE_DEVICES nvidia-cuda-mps-control -d
}

# alone COMMAND...: outside of the multi-process service
alone() { (unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY && "$@"); }

# GRPO: arms of its experiments. NAME GPU CORES "ARM:SEED:STEPS ..." AT_ONCE SHARE_OF_GPU MORE...
arms() {
    local name=$1 gpu=$2 on=$3 list=$4 at_once=$5 share=$6
    shift 6
    step "$name" 3000 "$gpu" "$on" python3 bench/experiments/grpo_arms.py $list --devices "$gpu" --at-once "$at_once" \
        --share-of-gpu "$share" --seconds $(($(left) - 40)) --out "$out/$name" -- --kv-gb 1.5 --packed-tokens 8192 "$@"
}
