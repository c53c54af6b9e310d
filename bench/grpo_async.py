"""GRPO steps of TRL's AsyncGRPOTrainer, one GPU for it and its vLLM server: a way of bench/grpo_speed.py.

It needs a server (`vllm serve`), an attention kernel that its package `kernels` has or can load, and 1.16 to
pack prompts as trees. A reward is by length alone: no program is run. It has no reference policy. Where
something is missing, the run ends with what the library says.
"""

import os
import subprocess
import sys
from pathlib import Path

from arcnb.machine.starts import free_port


def by_length(completions, **_):
    return [len(one[-1]["content"]) / 1000 for one in completions]


def serve(job: dict, port: int, log) -> None:
    """Starts the server on the same GPU, for adapters by file; it ends with the run's session."""
    longest = job["prompt_tokens"][1] + job["max_completion_length"]
    command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", job["model"], "--port", str(port)]
    command += ["--max-model-len", str(longest), "--gpu-memory-utilization", str(job["share"])]
    command += ["--max-num-seqs", str(2 * job["group"]), "--logprobs-mode", "processed_logprobs"]
    command += ["--enable-lora", "--max-lora-rank", str(max(8, job["rank"])), "--max-loras", "3"]
    known = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
    subprocess.Popen(command, env=os.environ | known, stdout=log, stderr=log)


def work(job: dict, tasks, part_log) -> None:
    """Trains in this process, with the steps' parts logged as the other ways log theirs."""
    from datasets import Dataset
    from peft import LoraConfig
    from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer

    from arcnb.models.lora.options import Lora
    from arcnb.models.prompts.format import prompt_format
    from arcnb.models.registry import load_tokenizer, resolve_model

    folder, port = Path(job["folder"]), free_port()
    with open(folder / "server.txt", "w") as log:
        serve(job, port, log)
    tokenizer, form = load_tokenizer(resolve_model(job["model"])), prompt_format()
    texts = [tokenizer.decode(form.prompt_ids(tokenizer, task), skip_special_tokens=True) for task in tasks]
    rows = [{"prompt": [{"role": "user", "content": text}]} for text in texts * job["steps"]]
    config = AsyncGRPOConfig(
        output_dir=str(folder / "async"),
        max_steps=job["steps"],
        num_generations=job["group"],
        per_device_train_batch_size=job["group"],
        max_completion_length=job["max_completion_length"],
        max_staleness=1,
        dtype="bfloat16",
        learning_rate=1e-5,
        vllm_server_base_url=f"http://127.0.0.1:{port}",
        report_to="none",
        save_strategy="no",
    )
    callback = part_log(folder / "parts.jsonl")
    lora = Lora(r=job["rank"]).config
    callback.trainer = AsyncGRPOTrainer(
        model=job["model"],
        reward_funcs=by_length,
        args=config,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        peft_config=LoraConfig(task_type="CAUSAL_LM", **lora),
        callbacks=[callback],
    )
    callback.trainer.train()
