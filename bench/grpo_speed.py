"""Seconds a step and completions a second of whole GRPO steps, generation included.

    python bench/grpo_speed.py --vllm --ways trl shared unsloth --groups 8 32 128 256 --seconds 560
    python bench/grpo_speed.py --vllm --shape 8b --groups 32 --prompt-tokens 3300 3800 --rank 1 \\
        --max-completion-length 1024 --share 0.35 --steps 3 --warm 1 --limit 240 --seconds 580 --json out.json
    python bench/grpo_speed.py --shape tiny --groups 4 --steps 3 --max-completion-length 16  # a look on a CPU

Ways: `trl`, `shared` (TRL with shared prompts), `unsloth`; for bench/grpo_rivals.py `lean` (shared, with a
learner that leaves out what the job says) and `async` (bench/grpo_async.py). Short real runs on ARC-AGI-1
training tasks, each in a process of its own, which frees its memory and bounds its time (--limit); the first
--warm steps of each are left out (first allocations; the engine's start is in none). One JSON line a run, and
--json is rewritten after each: lowest, median and highest seconds of a step (with --generations: of means of
rounds, their mean for the median), its parts, completions a second, executor seconds, mean tokens, peak
memory, the path that a trainer took. A run that is stopped or runs out of memory says so and gives the steps
it made.
Stock TRL and unsloth split a step into micro-batches of at most --micro-tokens tokens unless --accumulation
says otherwise; `shared` bounds memory itself.
"""

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import model_shapes

STOPPED = "stopped by a signal"
WAYS = ("trl", "shared", "unsloth")
SPLIT = ("trl", "unsloth")  # whose memory grows with the tokens of a part, the GPU's or the host's
UNSLOTH = ("unsloth", "grouped")  # the second without vLLM, since it groups prompts only then
# With shared prompts; all but the first are of grpo_rivals.py.
OURS = ("shared", "lean", "lean_fp8", "lean_one", "once", "once_fp8", "ahead")
MORE = {
    "ahead": False,
    "weight_dtype": "auto",
    "layer_kernels": False,
    "learner": {},
}  # that the command line has no word for


def made(shape: str, models: Path) -> str:
    """The folder of a random model, made in a process of its own, with which its memory is freed."""
    command = [sys.executable, model_shapes.__file__, shape, str(models / shape)]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return str(models / shape)


def tasks_of_length(model, low: int, high: int, most: int = 24) -> list:
    """ARC-AGI-1 training tasks whose longest prompt has so many tokens."""
    from arcnb.arc.tasks.task_set import load_tasks
    from arcnb.models.prompts.format import prompt_format
    from arcnb.models.prompts.lengths import longest_prompt
    from arcnb.models.registry import load_tokenizer, resolve_model

    tokenizer, form = load_tokenizer(resolve_model(model)), prompt_format()
    found = []
    for task in load_tasks("arc-agi-1/training"):
        if len(found) < most and low <= longest_prompt(task, form, tokenizer) <= high:
            found.append(task)
    return found


def part_log(path: Path, unsloth_parts: int | None = None):
    """Appends to a file of JSON lines, after each step: its parts (seconds since the last step) and the most
    GPU memory reserved, and used, so far (GB). unsloth_parts: of its passes, too, which it would else divide
    by the memory that is free, and runs out of it."""
    import torch
    from transformers import TrainerCallback

    on_gpu = torch.cuda.is_available()

    def now() -> float:
        if on_gpu:
            torch.cuda.synchronize()
        return time.perf_counter()

    class PartLog(TrainerCallback):
        trainer = None  # given by make_trainer
        inner = 0.0  # seconds of the parts inside the one that runs

        def clocked(self, owner, name: str, part) -> None:
            function = getattr(owner, name, None)
            if function is None:  # unsloth's trainer computes log-probabilities elsewhere
                return

            def timed(*args, **kwargs):
                label = part if isinstance(part, str) else part()
                start, inner, self.inner = now(), self.inner, 0.0
                result = function(*args, **kwargs)
                seconds = now() - start
                self.parts[label] = self.parts.get(label, 0.0) + seconds - self.inner
                self.inner = inner + seconds  # a part of which this is a part does not count it again
                return result

            setattr(owner, name, timed)

        def on_train_begin(self, args, state, control, optimizer=None, **kwargs):
            if unsloth_parts is not None:
                args.unsloth_grpo_mini_batch = unsloth_parts  # despite its name a number of parts

            def which() -> str:
                return "forward" if torch.is_grad_enabled() else "old and reference"

            self.clocked(self.trainer, "_generate", "generation")
            self.clocked(getattr(self.trainer, "vllm_generation", None), "sync_weights", "weights")
            self.clocked(self.trainer, "_calculate_rewards", "reward")
            self.clocked(self.trainer, "_get_per_token_logps_and_entropies", which)
            self.clocked(self.trainer.accelerator, "backward", "backward")
            self.clocked(optimizer, "step", "optimizer")
            self.parts, self.began = {}, now()

        def on_step_end(self, args, state, control, **kwargs):
            seconds = now() - self.began
            self.parts["rest"] = seconds - sum(self.parts.values())
            peak = torch.cuda.max_memory_reserved() / 1e9 if on_gpu else 0.0
            used = torch.cuda.max_memory_allocated() / 1e9 if on_gpu else 0.0
            step = {"seconds": seconds, "parts": self.parts, "peak_gb": peak, "peak_used_gb": used}
            with open(path, "a") as file:
                file.write(json.dumps(step) + "\n")
            path.with_name("path.json").write_text(json.dumps(path_of(self.trainer)))
            self.parts, self.began = {}, now()

    return PartLog()


def path_of(trainer) -> dict:
    """Which of the ways that its library has a trainer takes."""
    args, inner = trainer.args, trainer.accelerator.unwrap_model(trainer.model)
    asked = ("use_vllm", "vllm_mode", "steps_per_generation", "gradient_checkpointing", "use_liger_kernel")
    found = {name: getattr(args, name, None) for name in asked}
    found |= {name: value for name, value in vars(args).items() if "unsloth" in name}
    return {name: str(value) for name, value in found.items()} | {
        "trainer": [one.__name__ for one in type(trainer).__mro__ if "Trainer" in one.__name__],
        "engine": type(getattr(getattr(trainer, "vllm_generation", trainer), "llm", None)).__name__,
        "attention": getattr(inner.config, "_attn_implementation", None),
        "prompts_grouped": str(getattr(inner, "_unsloth_prefix_grouper_grad_verified", None)),
        "versions": {
            name: getattr(sys.modules.get(name), "__version__", None)
            for name in ("torch", "vllm", "trl", "unsloth")
        },
    }


def as_trl_has_it() -> None:
    """From now on a trainer without shared prompts is TRL's in its passes and in what it sends to vLLM."""
    from arcnb.rl.trainer import trainer

    trainer.lean_trainer = lambda base, *_: base
    trainer.sample_numbers_alone = trainer.send_merged_weights = lambda *_: None


def work(job: dict) -> None:
    """One run in this process; it leaves metrics.jsonl and parts.jsonl in its folder."""
    from arcnb.machine.starts import free_port
    from arcnb.rl.engine.options import vllm_environment

    os.environ |= vllm_environment()
    # Another benchmark on this machine may hold the port that torch takes by itself.
    os.environ["MASTER_PORT"] = str(free_port())
    if job["way"] in UNSLOTH:
        import unsloth  # noqa: F401  before transformers and trl, which it patches
    if job["way"] == "trl":
        as_trl_has_it()
    if job["way"] == "async":
        import grpo_async

        grpo_async.work(job, tasks_of_length(job["model"], *job["prompt_tokens"]), part_log)
        os._exit(0)
    cascade = {}
    if job["cascade"]:
        os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "0"  # vLLM 0.23's second one has no cascade attention
        cascade = {"disable_cascade_attn": False}
    from arcnb.plans import refuse
    from arcnb.rl.checks.problems import problems
    from arcnb.rl.engine.options import engine_options
    from arcnb.rl.launch import train_here

    plan = plan_of(job)
    tasks = tasks_of_length(job["model"], *job["prompt_tokens"])
    refuse(problems(plan, tasks, ()))
    parts = job["accumulation"] if job["way"] == "unsloth" and job["accumulation"] > 1 else None
    with engine_options(**cascade):
        train_here(plan, tasks, (), [part_log(Path(job["folder"]) / "parts.jsonl", parts)])
    sys.stdout.flush()
    os._exit(0)  # an engine in this process may take its time to end


def plan_of(job: dict):
    from arcnb.rl.plan.grpo import GrpoPlan

    shared, longest = job["way"] in OURS, job["prompt_tokens"][1]
    asked = {
        "n_tasks": 0,
        "eval_steps": 0,
        "model": job["model"],
        "adapter": job["adapter"],
        "lora_r": job["rank"],
        "trainer": "unsloth" if job["way"] in UNSLOTH else "trl",
        "max_prompt_length": longest,
        "max_completion_length": job["max_completion_length"],
        "max_length": longest + job["max_completion_length"],
        "max_steps": job["steps"],
        "num_generations": job["group"],
        "gradient_accumulation_steps": job["accumulation"],
        "gradient_checkpointing": True,
        "beta": 0.02,
        "shared_prompt": shared,
        "shared_prompt_offload": shared and job["offload"],
        "use_vllm": job["vllm"],
        "vllm_kv_cache_dtype": "auto" if job["way"] in UNSLOTH else job["kv_cache_dtype"],
        "vllm_group_attention": shared and job["group_attention"],
        "vllm_shared_weights": shared and job["shared_weights"],
        "vllm_ahead": job["ahead"],
        "vllm_weight_dtype": job["weight_dtype"],
        "use_liger_kernel": job["layer_kernels"],
        **{f"learner_{name}": value for name, value in job["learner"].items()},
        "save_steps": 10**6,
        "resume": "never",
        "accept_other_config": True,
        "workers": job["workers"],
    }
    if job["vllm"]:
        asked["vllm_gpu_memory_utilization"] = job["share"]
    if job["generations"] > 1:
        asked["steps_per_generation"] = job["generations"] * job["accumulation"]
    return GrpoPlan.of(asked, output=Path(job["folder"]))


def keep_what_is_measured() -> None:
    """SIGTERM, as a time limit sends it, ends the run at work and keeps its steps, as Ctrl-C does."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def run(job: dict, limit: float, warm: int) -> dict:
    """The numbers of a run in a process of its own, stopped after `limit` seconds."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        job = job | {"folder": folder}
        log = Path(folder) / "said.txt"
        with open(log, "w") as said:
            process = subprocess.Popen(
                [sys.executable, __file__, "--work", json.dumps(job)],
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
            try:
                code = process.wait(limit)
                ended = "" if code == 0 else reason(log, code)
            except subprocess.TimeoutExpired:
                ended = f"stopped after {limit:.0f} s"
            except KeyboardInterrupt:
                ended = STOPPED
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        if ended:
            print(log.read_text(errors="replace")[-6000:], file=sys.stderr, flush=True)
        rows = metrics(Path(folder) / "metrics.jsonl")
        file = Path(folder) / "parts.jsonl"
        steps = [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []
        path = Path(folder) / "path.json"
        took = json.loads(path.read_text()) if path.is_file() else None
    kept = ("way", "shape", "group", "accumulation", "max_completion_length", "rank", "prompt_tokens")
    kept += (
        "learner",
        "layer_kernels",
        "generations",
        "kv_cache_dtype",
        "weight_dtype",
        "offload",
        "cascade",
        "group_attention",
        "shared_weights",
        "share",
    )
    result = {name: job[name] for name in kept} | {"seconds": round(time.monotonic() - began, 1)}
    result |= {"path": took, "peak_gb": round(steps[-1]["peak_gb"], 1) if steps else None}
    result |= {"all_step_times": [round(step["seconds"], 3) for step in steps]}
    result["all_executor_seconds"] = [round(row["executor_seconds"], 3) for row in rows]
    for name in ("peak_gb", "peak_used_gb"):  # each the most until then
        result |= {f"all_{name}": [round(step[name], 1) for step in steps]}
    timed, steps = rows[warm // job["generations"] :], steps[warm:]  # a row of rewards a generation
    if steps and (timed or job["way"] == "async"):
        # Sampling for several steps at once makes one of them long: only whole rounds say what a step takes.
        one_round = job["generations"]
        steps = steps[: len(steps) // one_round * one_round] or steps
        middle_of = statistics.median if one_round == 1 else statistics.mean
        seconds = [step["seconds"] for step in steps]
        rounds = [statistics.mean(seconds[i : i + one_round]) for i in range(0, len(seconds), one_round)]
        middle = middle_of(rounds)
        result |= {
            "steps": len(steps),
            "parts": parts_of(steps, middle_of),
            "step_seconds": [round(value, 3) for value in (min(rounds), middle, max(rounds))],
            "completions_per_second": round(job["group"] / middle, 2),
        }
        if timed:
            result |= {
                "executor_seconds": round(statistics.median(row["executor_seconds"] for row in timed), 3),
                "mean_tokens": round(statistics.mean(row["completions/mean_length"] for row in timed), 1),
            }
            if gaps := [
                row["sampling/logp_gap"] for row in timed if row.get("sampling/logp_gap") is not None
            ]:
                result["logp_gap"] = round(statistics.mean(gaps), 4)
    return result | ({"failed": ended} if ended else {})


def parts_of(steps: list[dict], middle_of=statistics.mean) -> dict[str, float]:
    """Seconds of each part of such steps (lines of `part_log`)."""
    names = sorted({name for step in steps for name in step["parts"]})
    return {name: round(middle_of(step["parts"].get(name, 0.0) for step in steps), 3) for name in names}


def reason(log: Path, code: int) -> str:
    """Why a run ended, from what it printed."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    if any("out of memory" in line.lower() for line in lines):
        return "out of memory"
    errors = [line for line in lines if "Error" in line]
    return f"exit code {code}: {(errors or lines or ['it said nothing'])[-1][:300]}"


def metrics(path: Path) -> list[dict]:
    from arcnb.models.training.log import read_metrics

    rows = read_metrics(path) if path.is_file() else []
    return [row for row in rows if "reward" in row]


def accumulation_of(way: str, group: int, length: int, most: int) -> int:
    """Parts of a step: for those of `SPLIT` as few as keep a part within `most` tokens."""
    if way not in SPLIT:
        return 1
    fits = [n for n in range(1, group + 1) if group % n == 0 and group // n * length <= most]
    return min(fits, default=group)


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=["trl", "shared"])
    parser.add_argument("--shape", choices=["embedded", "8b", "tiny"], default="embedded")
    parser.add_argument("--adapter", default="", help="of the embedded model: default, or a folder")
    parser.add_argument("--rank", type=int, default=32)
    parser.add_argument("--groups", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--accumulation", type=int, nargs="+", help="for all ways")
    parser.add_argument("--micro-tokens", type=int, default=80000)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--warm", type=int, default=2)
    parser.add_argument("--prompt-tokens", type=int, nargs=2, default=[0, 1200], metavar=("LOW", "HIGH"))
    parser.add_argument("--max-completion-length", type=int, default=256)
    parser.add_argument("--vllm", action="store_true")
    parser.add_argument("--share", type=float, default=0.3)
    parser.add_argument("--cascade", action="store_true", help="vLLM reads a common prompt once a batch")
    parser.add_argument("--group-attention", action="store_true", help="shared: the same, by our attention")
    parser.add_argument("--shared-weights", action="store_true", help="shared: one copy for trainer and vLLM")
    parser.add_argument("--kv-cache-dtype", default="auto", help="of vLLM's cache: auto or fp8")
    parser.add_argument("--generations", type=int, default=1, help="steps that one round of sampling serves")
    parser.add_argument("--offload", action="store_true", help="shared: hidden states wait on the host")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=3600, help="for everything together")
    parser.add_argument("--limit", type=float, default=600, help="for one run")
    parser.add_argument("--models", type=Path, default=Path(tempfile.gettempdir()) / "grpo_speed_models")
    parser.add_argument("--json", type=Path, help="rewritten after every run")
    return parser


def defaults() -> dict:
    """What a job has where nothing else is said."""
    values = vars(arguments().parse_args([]))
    return {name: value for name, value in values.items() if name not in ("json", "models")} | MORE


def main() -> None:
    if sys.argv[1:2] == ["--work"]:
        return work(json.loads(sys.argv[2]))
    args = arguments().parse_args()
    keep_what_is_measured()
    if args.shape != "tiny" and shutil.which("nvidia-smi") is None:
        print("bench/grpo_speed.py needs a GPU and was left out; --shape tiny is a look on a CPU.")
        return
    began, results = time.monotonic(), []
    model = "default" if args.shape == "embedded" else made(args.shape, args.models)
    length = args.prompt_tokens[1] + args.max_completion_length
    for group in args.groups:
        for way in args.ways:
            parts = args.accumulation or [accumulation_of(way, group, length, args.micro_tokens)]
            for accumulation in parts:
                job = {
                    name: getattr(args, name) for name in vars(args) if name not in ("json", "models")
                } | MORE
                job |= {"way": way, "group": group, "accumulation": accumulation, "model": model}
                left = args.seconds - (time.monotonic() - began)
                short = left < min(60, args.limit)
                result = (
                    {"way": way, "group": group, "accumulation": accumulation, "failed": "no time left"}
                    if short
                    else run(job, min(left, args.limit), args.warm)
                )
                results.append(result)
                print(json.dumps(result), flush=True)
                if args.json:
                    args.json.write_text(json.dumps(results, indent=1))
                if result.get("failed") == STOPPED:
                    return


if __name__ == "__main__":
    main()
