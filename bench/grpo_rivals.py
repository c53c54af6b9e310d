"""A step of GRPO on a model of 8B parameters, ours beside its rivals: one command, one table.

    python bench/grpo_rivals.py 3800 --seconds 1500 --json rivals.json    # on one GPU; 8600: longer prompts
    python bench/grpo_rivals.py 3800 --ways trl unsloth --json rivals.json    # adds to the file
    python bench/grpo_rivals.py toy --ways shared lean trl    # a look on a CPU, with a tiny model

Ways: `trl` (TRL's GRPOTrainer), `async` (TRL's AsyncGRPOTrainer, bench/grpo_async.py), `unsloth`, `grouped`
(unsloth without vLLM, where it computes a group's prompt once), `shared` (ours on policy), `lean` (ours with
what pays: samples for four steps, the sampler's log-probabilities, a quarter of the references, half of each
group, layer kernels if they are installed), `once` (the same with samples for one step), `ahead` (these drawn
while the step before is learnt from), `lean_fp8` and `once_fp8` (vLLM's layers in eight bits), `lean_one`
(one copy of the weights for learner and vLLM, which then needs a smaller share of the GPU).
Each in a process of its own with a time limit. The table has seconds a step, its parts, the most memory,
completions a second, and under it the floor: counted operations at 700 T a second (1 on a CPU), and bytes
read at 4.8 TB a second; what `lean` leaves out is left out of its floor.
"""

import argparse
import json
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import grpo_speed
import model_shapes
import shared_prefix

PARTS = ("generation", "weights", "reward", "old and reference", "forward", "backward", "optimizer", "rest")
GROUP = {"toy": 4}
SHARE = 0.35
SHARE_OF_ONE_COPY = 0.26  # about the same cache, since vLLM's own 16 GB of weights are gone
# way -> (steps, of which not timed, seconds at most)
STEPS = {
    "shared": (10, 2, 150),
    "lean": (12, 4, 260),
    "lean_fp8": (12, 4, 280),
    "lean_one": (12, 4, 260),
    "once": (12, 4, 250),
    "once_fp8": (12, 4, 250),
    "ahead": (12, 4, 150),
    "trl": (9, 1, 1000),
    "unsloth": (10, 2, 800),
    "grouped": (9, 1, 900),
    "async": (10, 2, 120),
}
LEAN = {
    "generations": 4,
    "learner": {"old_log_probs": "sampler", "reference_part": 0.25, "trained_part": 0.5},
}


def jobs(size: str, ways: list[str], model: str, **options) -> list[tuple[dict, int, float]]:
    """(job of `grpo_speed.run`, steps not timed, seconds at most) of each way. options: of the job."""
    toy = size == "toy"
    longest = 500 if toy else int(size)
    prompt = [0, longest] if toy else [longest - (500 if longest < 5000 else 800), longest]
    common = grpo_speed.defaults() | {
        "shape": "tiny" if toy else "8b",
        "model": model,
        "group": GROUP.get(size, 32),
        "rank": 1,
        "prompt_tokens": prompt,
        "max_completion_length": 8 if toy else 1024,
        "vllm": not toy,
        "share": SHARE,
        **options,
    }
    found = []
    for way in ways:
        steps, warm, limit = (4, 2, 280) if toy else STEPS[way]
        job = common | {"way": way, "steps": steps}
        length = longest + job["max_completion_length"]
        job["accumulation"] = grpo_speed.accumulation_of(way, job["group"], length, job["micro_tokens"])
        if way in grpo_speed.OURS:
            job["group_attention"] = not toy
        if way in grpo_speed.OURS[1:]:
            job |= LEAN | {"layer_kernels": not toy and find_spec("liger_kernel") is not None}
            if toy:  # without what needs vLLM
                learner = LEAN["learner"] | {"old_log_probs": "pass"}
                job |= {"learner": learner, "generations": 2}
        if way == "grouped":
            job["vllm"] = False
        if way.endswith("_fp8") and not toy:
            job["weight_dtype"] = "fp8"
        if way == "lean_one":
            job |= {"shared_weights": not toy, "share": options.get("share", SHARE_OF_ONE_COPY)}
        if way in ("once", "once_fp8", "ahead"):
            job |= {"generations": 1, "ahead": way == "ahead" and not toy}
        found.append((job, warm, limit))
    return found


def floor(job: dict, on_gpu: bool) -> dict[str, float]:
    """Seconds that a step of ours cannot fall below: operations counted, cache and weights read."""
    config, prompt = model_shapes.model_config(job["shape"]), job["prompt_tokens"][1]
    group, tokens = job["group"], job["max_completion_length"]
    learner = job.get("learner", {})
    rate = 7e14 if on_gpu else 1e12
    trained = round(group * learner.get("trained_part", 1.0))
    referred = max(1, round(trained * learner.get("reference_part", 1.0)))
    run = shared_prefix.floor(shared_prefix.operations(config, prompt, trained, tokens), rate)
    reference = shared_prefix.floor(shared_prefix.operations(config, prompt, referred, tokens), rate)
    layers, heads = config.num_hidden_layers, config.num_key_value_heads
    cache = 2 * 2 * layers * heads * config.hidden_size // config.num_attention_heads  # bytes a token
    once = shared_prefix.operations(config, 0, 1, 1)
    # Two operations and, in half precision, two bytes a weight.
    weights = once["linear"] / (2 if job["weight_dtype"] == "fp8" else 1) + once["head"]
    read = tokens * (weights / job["generations"] + cache * (prompt + group * tokens / 2))
    found = {
        "generation": read / (4.8e12 if on_gpu else 2e10),
        "old and reference": reference["reference"],
        "forward": run["forward"],
        "backward": run["backward"],
    }
    if job["generations"] > 1 and learner.get("old_log_probs", "pass") == "pass":
        found["old and reference"] += run["forward"]
    return found


def table(results: list[dict]) -> str:
    """One row a way, one column a part; the floor of each of ours below it."""
    head = ["way", "prompts", "step", *PARTS, "peak GB", "completions/s", "timed"]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for one in results:
        prompts = str(one["prompt_tokens"][1])
        if "step_seconds" not in one:
            lines.append(f"| {one['way']} | {prompts} | {one.get('failed', '')} |" + " |" * (len(PARTS) + 3))
            continue
        parts = [f"{one['parts'].get(name, 0.0):.2f}" for name in PARTS]
        numbers = [one["peak_gb"], one["completions_per_second"], one["steps"]]
        low, middle, high = one["step_seconds"]
        step = f"{middle:.2f} ({low:.2f} to {high:.2f})"
        cells = [one["way"], prompts, step, *parts, *map(str, numbers)]
        lines.append("| " + " | ".join(cells) + " |")
        if "floor" in one:
            parts = [f"{one['floor'][name]:.2f}" if name in one["floor"] else "" for name in PARTS]
            cells = [f"floor of {one['way']}", prompts, f"{sum(one['floor'].values()):.2f}", *parts]
            lines.append("| " + " | ".join([*cells, "", "", ""]) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("size", choices=["3800", "8600", "toy"])
    parser.add_argument(
        "--ways", nargs="+", choices=list(STEPS), default=["shared", "lean", "ahead", "trl", "async"]
    )
    parser.add_argument("--seconds", type=float, default=580, help="for everything together")
    parser.add_argument("--limit", type=float, help="seconds of one way, in place of its own")
    parser.add_argument(
        "--share", type=float, help="of the GPU's memory for vLLM, in place of each way's own"
    )
    parser.add_argument("--micro-tokens", type=int, help="of a part of a step of stock TRL and unsloth")
    parser.add_argument("--models", type=Path, default=Path(tempfile.gettempdir()) / "grpo_speed_models")
    parser.add_argument("--json", type=Path, help="results are added to this file after every run")
    args = parser.parse_args()
    grpo_speed.keep_what_is_measured()
    began, toy = time.monotonic(), args.size == "toy"
    results = json.loads(args.json.read_text()) if args.json and args.json.is_file() else []
    model = grpo_speed.made("tiny" if toy else "8b", args.models)
    asked = {"share": args.share, "micro_tokens": args.micro_tokens}
    options = {name: value for name, value in asked.items() if value is not None}
    for job, warm, limit in jobs(args.size, args.ways, model, **options):
        left = args.seconds - (time.monotonic() - began)
        if left < 30:
            print(f"{job['way']}: no time left", flush=True)
            continue
        # Before the run: what was measured shall not wait for imports, which a time limit may interrupt.
        below = {"floor": floor(job, on_gpu=not toy)} if job["way"] in grpo_speed.OURS else {}
        results.append(result := grpo_speed.run(job, min(left, args.limit or limit), warm) | below)
        print(json.dumps(result), flush=True)
        if args.json:
            args.json.write_text(json.dumps(results, indent=1))
        if result.get("failed") == grpo_speed.STOPPED:
            break
    print(table(results))


if __name__ == "__main__":
    main()
