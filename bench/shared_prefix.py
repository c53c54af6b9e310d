"""A GRPO step that shares prompts beside stock TRL's: seconds by part, peak memory, and the floor.

    python bench/shared_prefix.py                        # embedded model on 2 CPU cores, about 3 minutes
    python bench/shared_prefix.py --prompts 2000 --completions 16 --tokens 128 --stock-completions 4  # 15 min
    python bench/shared_prefix.py --device cuda --shape 8b --old --json out.json --seconds 330 --limit 150
    python bench/shared_prefix.py --device cuda --shape 8b --ways shared --prompts 3800 --budgets 16384 65536

Completions are fixed random tokens, all equally long (stock TRL's best case: no padding, no mask), rewards
are random: what is measured is the training step without generation. Every way and prompt length runs in a
process of its own, for its peak memory and so that one that fails or hangs costs only its own time; every
step is printed and written when it ends. On the CPU, ways take turns, so that load hits them alike.

Stock TRL's micro-batches are independent of each other: with --stock-completions N it trains N completions of
the group alone, and its seconds are multiplied (`times` in the results); what a step has once, the optimizer
above all, is then counted too often, which on a CPU is below 1%.

Parts of a step: `old` and `reference` log-probabilities, `forward`, `backward` (recomputing the forward
included), `optimizer`, `rest` (rewards, advantages, packing, clipping, logging). With --old, stock TRL runs
`old` as it does for vLLM's samples; ours needs none where a step trains what its policy drew. Stock TRL
accumulates micro-batches of at most --micro-tokens tokens.
The floor divides counted operations by the rate of the model's largest matrix product, timed in the same run;
norms, activations, adapters and memory traffic are not in it.
"""

import argparse
import json
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

from model_shapes import model_config

LORA_TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
PARTS = ("old", "reference", "forward", "backward", "optimizer", "rest")
# Defaults of a shape: prompt lengths, completions, completion tokens, steps of our way and of the others
SHAPES = {
    "embedded": ([1000], 8, 64, 1, 1),
    "8b": ([3800, 8600], 32, 1024, 3, 1),
    "tiny": ([200], 4, 32, 2, 2),
}


def build_model(shape: str, device: str, layers: int | None = None):
    """The embedded model (or its first layers) or random weights; bfloat16 on a GPU, float32 on the CPU."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaForCausalLM

    from arcnb.models.registry import resolve_model

    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    if shape == "embedded":
        changes = {"num_hidden_layers": layers} if layers else {}
        return AutoModelForCausalLM.from_pretrained(resolve_model("default").path, dtype=dtype, **changes)
    torch.set_default_dtype(dtype)
    with torch.device(device):
        model = LlamaForCausalLM(model_config(shape))
    torch.set_default_dtype(torch.float32)
    return model


def unsloth_model(shape: str, device: str, length: int):
    """As `build_model`, loaded and given its adapter by unsloth, which wants a folder."""
    import tempfile

    from unsloth import FastLanguageModel

    from arcnb.models.registry import load_tokenizer, resolve_model

    with tempfile.TemporaryDirectory() as folder:
        if shape != "embedded":
            build_model(shape, device).save_pretrained(folder)
            load_tokenizer(resolve_model("default")).save_pretrained(folder)
        path = resolve_model("default").path if shape == "embedded" else folder
        model, _ = FastLanguageModel.from_pretrained(path, max_seq_length=length, load_in_4bit=False)
    return FastLanguageModel.get_peft_model(
        model, r=1, lora_alpha=1, target_modules=LORA_TARGETS, use_gradient_checkpointing="unsloth"
    )


def timed(base: type, device: str, old: bool, report) -> type:
    """The trainer with every part of its step timed; report(parts) is called after each optimizer step."""
    import torch

    def now() -> float:
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    class Timed(base):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.parts, self.started, self.depth_part = dict.fromkeys(PARTS, 0.0), None, None
            backward = self.accelerator.backward
            self.accelerator.backward = lambda *a, **k: self.clock("backward", backward, *a, **k)

        def create_optimizer(self, *args, **kwargs):
            optimizer = super().create_optimizer(*args, **kwargs)
            step = optimizer.step
            optimizer.step = lambda *a, **k: self.clock("optimizer", step, *a, **k)
            return optimizer

        def clock(self, part, function, *args, **kwargs):
            start = now()
            result = function(*args, **kwargs)
            self.parts[part] += now() - start
            return result

        def _get_per_token_logps_and_entropies(self, *args, **kwargs):
            part = "forward" if torch.is_grad_enabled() else self.depth_part or "reference"
            return self.clock(part, super()._get_per_token_logps_and_entropies, *args, **kwargs)

        def _generate_and_score_completions(self, inputs):
            batch = super()._generate_and_score_completions(inputs)
            if not old:
                return batch
            ids, mask = (
                torch.cat([batch[f"prompt_{what}"], batch[f"completion_{what}"]], dim=1)
                for what in ("ids", "mask")
            )
            self.depth_part = "old"
            with torch.no_grad():
                batch["old_per_token_logps"], *_ = self._get_per_token_logps_and_entropies(
                    self.model,
                    ids,
                    mask,
                    batch["completion_ids"].size(1),
                    batch_size=self.args.per_device_train_batch_size,
                )
            self.depth_part = None
            return batch

        def training_step(self, *args, **kwargs):
            if self.started is None:
                self.started, self.cpu = now(), time.process_time()
            return super().training_step(*args, **kwargs)

        def log(self, logs, *args, **kwargs):
            if self.started is not None and "loss" in logs:
                seconds = now() - self.started
                self.parts["rest"] = seconds - sum(self.parts.values())
                cpu, self.cpu = time.process_time() - self.cpu, None
                report({"seconds": seconds, "cpu_seconds": cpu, "loss": logs["loss"], **self.parts})
                self.parts, self.started = dict.fromkeys(PARTS, 0.0), None
            super().log(logs, *args, **kwargs)

    return Timed


def micro_batch(completions: int, length: int, most: int) -> int:
    """Completions of a micro-batch: a divisor of the group, within `most` tokens, at least one."""
    return max([n for n in range(1, completions + 1) if completions % n == 0 and n * length <= most] or [1])


def work(args) -> None:
    """One way at one prompt length; a JSON line for each step."""
    if args.way == "unsloth":
        import unsloth  # noqa: F401  must patch trl before it is imported
    import torch
    from datasets import Dataset
    from peft import LoraConfig
    from trl import GRPOConfig, GRPOTrainer

    from arcnb.models.registry import load_tokenizer, resolve_model
    from arcnb.models.training.log import stop_printing
    from arcnb.rl.shared_prompt.trainer import shared_prefix_trainer

    say(state="imported")
    torch.manual_seed(0)
    length = args.prompt + args.tokens
    shared = args.way == "shared"
    group = args.completions // args.times
    micro = group if shared else micro_batch(group, length, args.micro_tokens)
    generator = torch.Generator().manual_seed(1)
    prompt = torch.randint(1000, 40000, (args.prompt,), generator=generator).tolist()
    completions = torch.randint(1000, 40000, (group, args.tokens), generator=generator).tolist()

    def rollout(prompts, trainer):
        return {
            "prompt_ids": [prompt] * len(prompts),
            "completion_ids": completions,
            "logprobs": None,
        }

    def reward(completions, **_):
        return torch.rand(len(completions), generator=generator).tolist()

    config = GRPOConfig(
        output_dir="/tmp/bench_shared_prefix",
        max_steps=args.steps,
        num_generations=group,
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=group // micro,
        max_completion_length=args.tokens,
        beta=0.02,
        learning_rate=1e-5,
        bf16=args.device == "cuda",
        use_cpu=args.device == "cpu",
        logging_steps=1,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
    )
    if args.way == "unsloth":
        model, lora = unsloth_model(args.shape, args.device, length), None
    else:
        model = build_model(args.shape, args.device, args.layers)
        lora = LoraConfig(task_type="CAUSAL_LM", r=1, lora_alpha=1, target_modules=LORA_TARGETS)
    base = (
        shared_prefix_trainer(GRPOTrainer, args.budget, args.kernel, args.offload) if shared else GRPOTrainer
    )
    # Ours makes none where a step trains what its policy drew; unsloth's trainer has no such method.
    old = args.old and args.way == "stock"

    def report(values):
        values = {name: value * (1 if name == "loss" else args.times) for name, value in values.items()}
        say(step=True, **values, **peak(args.device))

    trainer = timed(base, args.device, old, report)(
        model=model,
        reward_funcs=reward,
        args=config,
        train_dataset=Dataset.from_list([{"prompt": "fixed"}] * args.steps),
        processing_class=load_tokenizer(resolve_model("default")),
        peft_config=lora,
        rollout_func=rollout,
    )
    stop_printing(trainer)
    if args.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    say(state="ready", micro=micro)
    trainer.train()


def peak(device: str) -> dict:
    """Peak memory so far in GB: of the GPU as allocated and as reserved, or resident on the CPU."""
    import resource

    import torch

    if device == "cuda":
        return {
            "peak_gb": torch.cuda.max_memory_allocated() / 1e9,
            "reserved_gb": torch.cuda.max_memory_reserved() / 1e9,
        }
    return {"peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9}


def say(**what) -> None:
    print(json.dumps(what), flush=True)


def run_worker(options: dict, limit: float, on_line) -> str:
    """Runs `work` in a process of its own, at most `limit` seconds; '' or why it did not end well."""
    command = [sys.executable, __file__, "--worker", json.dumps(options)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    errors: list[str] = []
    reader = threading.Thread(target=lambda: errors.extend(process.stderr), daemon=True)
    reader.start()
    timer = threading.Timer(limit, process.kill)
    timer.start()
    start = time.monotonic()
    for line in process.stdout:
        if line.startswith("{"):
            on_line(json.loads(line))
    code = process.wait()
    timer.cancel()
    reader.join(2)
    if code == 0:
        return ""
    if time.monotonic() - start >= limit:
        return f"stopped after {limit:.0f} s"
    if any("out of memory" in line.lower() for line in errors):
        return "out of memory"
    return f"exit code {code}: " + " | ".join(line.strip() for line in errors[-4:])


def times_of(args, way: str, completions: int) -> int:
    """What stock TRL's seconds are multiplied with; ValueError where --stock-completions does not divide."""
    part = args.stock_completions
    if way != "stock" or not part:
        return 1
    if completions % part or part < 2:
        raise ValueError(f"--stock-completions {part} must divide {completions} and be at least 2")
    return completions // part


def plan(args) -> list[dict]:
    """What to run, in order: per prompt length, our way first (it is short), then stock, then the others."""
    prompts, completions, tokens, steps, other_steps = SHAPES[args.shape]
    runs = []
    for prompt in args.prompts or prompts:
        for way in args.ways:
            for budget in args.budgets if way == "shared" else [None]:
                runs.append(
                    {
                        "way": way,
                        "shape": args.shape,
                        "device": args.device,
                        "prompt": prompt,
                        "completions": args.completions or completions,
                        "times": times_of(args, way, args.completions or completions),
                        "tokens": args.tokens or tokens,
                        "steps": args.steps or (steps if way == "shared" else other_steps),
                        "budget": budget or None,
                        "kernel": args.kernel,
                        "offload": args.offload,
                        "micro_tokens": args.micro_tokens,
                        "old": args.old,
                        "layers": args.layers,
                    }
                )
    if args.device == "cpu":  # turns of one step each
        turns = max(run["steps"] for run in runs)
        runs = [run | {"steps": 1} for turn in range(turns) for run in runs if run["steps"] > turn]
    return runs


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        return work(argparse.Namespace(**json.loads(sys.argv[2])))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--shape", choices=list(SHAPES), default="embedded")
    parser.add_argument(
        "--ways", nargs="+", choices=["shared", "stock", "unsloth"], default=["shared", "stock"]
    )
    parser.add_argument("--prompts", nargs="+", type=int)
    parser.add_argument("--completions", type=int)
    parser.add_argument("--tokens", type=int, help="of a completion")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--layers", type=int, help="of the embedded model, for a quick look")
    parser.add_argument(
        "--budgets", nargs="+", type=int, default=[65536], help="tokens of a packed row, 0: no limit"
    )
    parser.add_argument("--stock-completions", type=int, help="of a group that stock TRL trains; 0: all")
    parser.add_argument("--micro-tokens", type=int, default=80000)
    parser.add_argument("--kernel", default="auto")
    parser.add_argument("--offload", action="store_true", help="hidden states wait in the host's memory")
    parser.add_argument(
        "--old", action="store_true", help="old log-probabilities too, as with vLLM's samples"
    )
    parser.add_argument("--seconds", type=float, default=7200, help="for everything together")
    parser.add_argument("--limit", type=float, default=3600, help="seconds for one way at one prompt length")
    parser.add_argument("--json", type=Path, help="rewritten after every step")
    args = parser.parse_args()
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
    began, steps, failures = time.monotonic(), [], []

    def write() -> None:
        if args.json:
            args.json.write_text(
                json.dumps({"steps": steps, "failures": failures, "floors": floors}, indent=1)
            )

    floors: list[dict] = []
    for run in plan(args):
        name = f"{run['way']} {run['prompt']}" + (f" budget {run['budget']}" if run["budget"] else "")
        left = args.seconds - (time.monotonic() - began)
        if left < 10:
            failures.append({"run": name, "why": "no time left"})
            continue

        def on_line(line, run=run, name=name):
            at = time.monotonic() - began
            if not line.pop("step", False):
                print(f"{at:6.0f} s  {name}: {line}", flush=True)
                return
            steps.append(run | line)
            parts = "  ".join(f"{part} {line[part]:.2f}" for part in PARTS)
            print(
                f"{at:6.0f} s  {name}: {line['seconds']:.2f} s  {parts}  peak {line['peak_gb']:.1f} GB",
                flush=True,
            )
            write()

        why = run_worker(run, min(left, args.limit), on_line)
        if why:
            failures.append({"run": name, "why": why})
            print(f"{name}: {why}", flush=True)
            write()
    summarize(args, steps, floors)
    write()


def operations(config, prompt: int, completions: int, tokens: int) -> dict[str, float]:
    """Floating point operations of one forward pass of the shared way, by part.

    linear: all projections. head: the vocabulary, completion tokens alone. attention: scores and sums over
    values, half of a causal square.
    """
    hidden, head_dim = config.hidden_size, getattr(config, "head_dim", None)
    head_dim = head_dim or hidden // config.num_attention_heads
    queries, keys = config.num_attention_heads * head_dim, config.num_key_value_heads * head_dim
    layer = hidden * (2 * queries + 2 * keys) + 3 * hidden * config.intermediate_size
    n = prompt + completions * tokens
    pairs = prompt**2 / 2 + completions * (tokens * prompt + tokens**2 / 2)
    return {
        "linear": 2.0 * config.num_hidden_layers * layer * n,
        "head": 2.0 * hidden * config.vocab_size * completions * tokens,
        "attention": 4.0 * config.num_hidden_layers * queries * pairs,
    }


def floor(counted: dict[str, float], rate: float) -> dict[str, float]:
    """Seconds of each part of a step at `rate` operations a second, adapters being free.

    Backward: layers recomputed, then gradients of inputs alone (frozen weights): as many operations as
    forward in linear layers and 2.5 times as many in attention; the head's logits are computed again. Old
    log-probabilities are free: they are the loss's own forward pass.
    """
    layers = counted["linear"] + counted["attention"]
    once = layers + counted["head"]
    backward = layers + counted["linear"] + 2.5 * counted["attention"] + 2 * counted["head"]
    seconds = {"reference": once, "forward": once, "backward": backward}
    seconds = {part: count / rate for part, count in seconds.items()}
    return {"seconds": sum(seconds.values()), **seconds}


def matmul_rate(config, tokens: int, device: str) -> float:
    """Operations a second of the model's largest product, hidden to intermediate, best of 5."""
    import torch

    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    x = torch.randn(tokens, config.hidden_size, dtype=dtype, device=device)
    weight = torch.randn(config.intermediate_size, config.hidden_size, dtype=dtype, device=device)
    best = float("inf")
    for _ in range(6):
        start = time.perf_counter()
        x @ weight.t()
        if device == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return 2.0 * x.numel() * config.intermediate_size / best


def summarize(args, steps: list[dict], floors: list[dict]) -> None:
    """The best and median step of each way, ratios to stock, and the floor of each prompt length."""
    config = model_config(args.shape)
    config.num_hidden_layers = args.layers or config.num_hidden_layers
    rate = matmul_rate(config, 16384 if args.device == "cuda" else 4096, args.device)
    print(f"\nlargest matrix product: {rate / 1e12:.3g} T operations/s")
    for prompt in sorted({step["prompt"] for step in steps}):
        here = [step for step in steps if step["prompt"] == prompt]
        ways = sorted({(step["way"], step["budget"]) for step in here}, key=str)
        of = {way: [s for s in here if (s["way"], s["budget"]) == way] for way in ways}
        stock = [s["seconds"] for s in of.get(("stock", None), [])]
        print(f"\nprompt {prompt}, {here[0]['completions']} completions of {here[0]['tokens']} tokens")
        for (way, budget), those in of.items():
            seconds = [s["seconds"] for s in those]
            middle = statistics.median(seconds)
            cpu = statistics.median(s["cpu_seconds"] for s in those)
            most = max(s["peak_gb"] for s in those)
            line = f"  {way:8} {budget or '':>6}  median {middle:7.2f} s  best {min(seconds):7.2f} s"
            line += f"  CPU {cpu:7.2f} s  n={len(seconds)}  peak {most:6.1f} GB"
            if stock and way != "stock":
                line += f"  {statistics.median(stock) / middle:.2f} times stock"
            print(line)
            best = min(those, key=lambda s: s["seconds"])
            print("           " + "  ".join(f"{part} {best[part]:.2f}" for part in PARTS))
        counted = operations(config, prompt, here[0]["completions"], here[0]["tokens"])
        bound = floor(counted, rate)
        floors.append({"prompt": prompt, "rate": rate, "operations": counted, **bound})
        print("  floor    " + "  ".join(f"{part} {value:.2f}" for part, value in bound.items()), end="")
        print(
            "  (forward: " + ", ".join(f"{n} {c / 1e12:.3g} T" for n, c in counted.items()) + " operations)"
        )


if __name__ == "__main__":
    main()
