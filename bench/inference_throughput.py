"""The whole sampling stage beside plain `LLM.generate`: the same prompts, the same sampling, the same engine.

    python bench/inference_throughput.py       # embedded model on a CPU, about 3 minutes
    python bench/inference_throughput.py --prompts 256 --n 8 --max-tokens 400 --prompt-tokens 3800   # a GPU
    ... --llama-8b FOLDER --prompts 64         # the shape of Llama-3.1-8B with random weights

"plain" gets token ids made beforehand and is timed from the call of `LLM.generate` to its return, text
included. "arcnb" is `predict` from its call to its return: prompts rendered and tokenized, completions
generated, programs run and scored on the CPUs, every part on disk. The ways take turns (the order turns round
each time), so that what else the machine does hits all alike; the prefix cache is emptied before each turn.

Tasks are those of ARC-AGI-1 and -2 whose prompts come closest to --prompt-tokens; --rounds asks each of them
so often, through other views. Real completions end at different lengths. So each prompt has a length of its
own, drawn between --shortest times --max-tokens and --max-tokens, the same in all ways, and its completions
run to it (no stop at the end token): all ways generate the same number of tokens. With --shortest 1 all have
one length, and the programs of the last wave arrive at once.

A line says besides what the engine's outputs tell, in all ways alike: "start_seconds" from the call until
the first completion ends, "tokens_a_second_between" from then until the last one ends, "steps" of the engine
and "tokens_a_step". "between" of the result is the ratio without start and tail, what long runs come to. With
--turn-seconds 180 the rounds are chosen after the warm-up, for a turn of the plain way to take about so long.

A stage's line ends with "tail_seconds": the time from the last completion until the last program was run,
scored and on disk. It is part of "seconds" and of the ratio, and does not grow with the number of prompts: at
most what the slowest programs may take, and what is left to run where programs keep all workers busy. The
executor remembers verdicts: a later turn finds those of programs that met the same prompt again.

Untrained models write no programs: the stage is given RE-ARC's in place of their texts, so that the executor
has real work (most on tasks that they were not written for; some of them run into the time limit: about ten
times the work of programs that a trained model writes). With --adapter the model writes programs of its own,
which end where they end; what is compared is then tokens a second, since the ways draw different samples.
"plain-free" and "arcnb-free" sample without seeds, which vLLM does faster; "backend" and "backend-free" are
the stage without programs and rows: what is between them and plain is the way in which the engine is fed.

--llama-8b takes a folder to put a config and the embedded model's tokenizer in.
"""

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.arc.tasks.task_set import load_tasks
from arcnb.models.prompts.chat import prompt_ids
from arcnb.models.prompts.format import prompt_format
from arcnb.models.prompts.lengths import longest_prompt
from arcnb.models.registry import load_tokenizer, resolve_model
from arcnb.models.sampling.backends import EngineOptions, Request, Sampling, open_backend
from arcnb.models.sampling.engine_guard import marked_processes
from arcnb.programs.executor.executor import Executor
from arcnb.search.sampling.predict import predict
from arcnb.search.sampling.rounds import RoundPlan
from arcnb.search.sampling.sampled_set import SampledSet
from arcnb.synth.rearc.programs import rearc_ids
from arcnb.synth.rearc.tasks import rearc_program

SOURCES = ("arc-agi-1/training", "arc-agi-1/evaluation", "arc-agi-2/training", "arc-agi-2/evaluation")
LLAMA_8B = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16",
    "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256, "max_position_embeddings": 131072,
    "rope_theta": 500000.0, "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": False,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip

Lengths = dict[tuple[int, ...], int]  # tokens of a prompt's completions, by the prompt's token ids


class WithPrograms:
    """The backend, its completions' texts replaced by programs that do something."""

    def __init__(self, backend):
        self._backend = backend
        self._programs = [rearc_program(task_id) + "\n```" for task_id in rearc_ids()]

    def __getattr__(self, name):
        return getattr(self._backend, name)

    def generate(self, requests, sampling):
        for number, completion in enumerate(self._backend.generate(requests, sampling)):
            yield replace(completion, text=self._programs[number % len(self._programs)])


def make_llama_8b(folder: Path) -> Path:
    """A model folder with config and tokenizer only, for load_format="dummy"."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(LLAMA_8B))
    load_tokenizer(resolve_model("default")).save_pretrained(folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]  # every token that a random model draws has to be decodable
    vocabulary |= {f"extra{i}": i for i in range(len(vocabulary), LLAMA_8B["vocab_size"])}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder


def tasks_of_length(backend, n: int, wanted: int, longest: int) -> list:
    """The n tasks whose prompt is closest to `wanted` tokens and at most `longest`."""
    found = {}
    for source in SOURCES:
        for task in load_tasks(source):
            size = sum(pair.input.size + pair.output.size for pair in task.train)
            if task.task_id not in found and 0.4 * wanted < size < 1.6 * wanted:
                found[task.task_id] = (task, longest_prompt(task, prompt_format(), backend.tokenizer))
    fitting = [pair for pair in found.values() if pair[1] <= longest]
    chosen = sorted(fitting, key=lambda pair: abs(pair[1] - wanted))[:n]
    if len(chosen) < n:
        raise SystemExit(f"only {len(chosen)} tasks have prompts of about {wanted} tokens; lower --prompts")
    return [task for task, _ in chosen]


def prompts_of(backend, tasks, plan: RoundPlan) -> list[list[int]]:
    """The prompts of the plan as token ids, in the order in which the stage asks for them."""
    shown = [plan.view(task, round_).apply(task) for round_ in range(plan.n_rounds) for task in tasks]
    return [prompt_ids(backend.tokenizer, prompt_format().prompt(task)) for task in shown]


def lengths_of(prompts: list[list[int]], longest: int, shortest: float) -> Lengths:
    """Tokens that the completions of each prompt have, drawn evenly from shortest * longest to longest."""
    draw = random.Random(0)
    return {tuple(ids): draw.randint(max(1, round(shortest * longest)), longest) for ids in prompts}


def hold_to_lengths(backend, lengths: Lengths) -> None:
    """Has the backend's engine end each completion at its prompt's length."""
    add = backend.engine.add

    def add_with_length(name, prompt_ids, params, lora_request):
        params.max_tokens = lengths[tuple(prompt_ids)]
        add(name, prompt_ids, params, lora_request)

    backend.engine.add = add_with_length


class Steps:
    """Watches what the engine sends: at what time how many tokens, and whether a completion ended."""

    def __init__(self, backend):
        self._watch(backend.engine.llm.llm_engine.engine_core)
        self.begin()

    def _watch(self, core) -> None:
        get_output = core.get_output

        def watched():
            outputs = get_output()
            made = outputs.outputs
            ended = any(output.finish_reason is not None for output in made)
            self._seen.append((time.perf_counter(), sum(len(output.new_token_ids) for output in made), ended))
            return outputs

        core.get_output = watched

    def begin(self) -> None:
        self._began, self._seen = time.perf_counter(), []

    def figures(self) -> dict:
        """Of what was seen since `begin`."""
        steps = [(at, tokens) for at, tokens, _ in self._seen if tokens]
        ends = [at for at, _, ended in self._seen if ended]
        first, last = ends[0], ends[-1]
        between = sum(tokens for at, tokens in steps if first < at <= last)
        return {
            "start_seconds": round(first - self._began, 2),
            "tokens_a_second_between": round(between / max(last - first, 1e-9)),
            "steps": len(steps),
            "tokens_a_step": round(statistics.mean(tokens for _, tokens in steps), 1),
        }


def plain(
    backend, prompts: list[list[int]], n: int, sampling: Sampling, lengths: Lengths | None
) -> tuple[float, int]:
    """Seconds of the engine's own `LLM.generate`, with its fan-out into n completions, and tokens made."""
    from vllm import SamplingParams

    params = [
        SamplingParams(
            n=n,
            temperature=sampling.temperature,
            max_tokens=lengths[tuple(ids)] if lengths else sampling.max_tokens,
            ignore_eos=sampling.ignore_eos,
            seed=number if sampling.seeded else None,
        )
        for number, ids in enumerate(prompts)
    ]
    start = time.perf_counter()
    outputs = backend.engine.llm.generate(
        [{"prompt_token_ids": ids} for ids in prompts],
        params,
        use_tqdm=False,
        lora_request=backend._lora_request(backend.adapter),
    )
    seconds = time.perf_counter() - start
    made = sum(len(one.token_ids) for output in outputs for one in output.outputs)
    assert lengths is None or made == tokens_in(prompts, n, lengths)
    return seconds, made


def tokens_in(prompts: list[list[int]], n: int, lengths: Lengths) -> int:
    """Completion tokens of n completions for each prompt."""
    return n * sum(lengths[tuple(ids)] for ids in prompts)


def generated(backend, prompts: list[list[int]], n: int, sampling: Sampling) -> tuple[float, int]:
    """Seconds of our backend alone, without programs and rows, and tokens made."""
    start = time.perf_counter()
    asked = (Request(ids, n, number, number) for number, ids in enumerate(prompts))
    made = sum(len(completion.token_ids) for completion in backend.generate(asked, sampling))
    return time.perf_counter() - start, made


def stage(backend, tasks, plan: RoundPlan, sampling: Sampling, executor: Executor):
    """Seconds of `predict`, and its report."""
    with tempfile.TemporaryDirectory() as folder:
        predictions = PredictionSet(Path(folder) / "predictions")
        start = time.perf_counter()
        writing = backend if backend.adapter else WithPrograms(backend)
        made = SampledSet(tasks, predictions, prompt_format(), sampling)
        report = predict(made, writing, executor, plan)
        seconds = time.perf_counter() - start
        assert len(predictions) == report.made == len(tasks) * plan.n_predictions
    return seconds, report


def cpu_seconds(backend) -> tuple[float, float]:
    """CPU time of this process, and of the engine's: steadier than the clock where others use the machine."""
    ticks = 0
    for pid in marked_processes(backend.engine.mark):
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return time.process_time(), ticks / os.sysconf("SC_CLK_TCK")


def measure(backend, arguments, say=print) -> dict:
    """Takes the turns, says each as a line, and returns the medians and ratios."""
    plan = plan_of(arguments.rounds, arguments)
    own_programs = backend.adapter is not None
    sampling = Sampling(max_tokens=arguments.max_tokens, ignore_eos=not own_programs)
    longest = backend.context - arguments.max_tokens
    tasks = tasks_of_length(backend, arguments.prompts, arguments.prompt_tokens, longest)
    written = None
    if not own_programs:
        written = {}
        hold_to_lengths(backend, written)

    def asked_of(tasks) -> list[list[int]]:
        asked = prompts_of(backend, tasks, plan)
        if written is not None:
            written.update(lengths_of(asked, arguments.max_tokens, arguments.shortest))
        return asked

    hours: dict[str, list[float]] = {way: [] for way in arguments.ways.split(",")}
    cpus: dict[str, list[tuple[float, float]]] = {way: [] for way in hours}
    speeds: dict[str, list[float]] = {way: [] for way in hours}
    tails: dict[str, list[float]] = {way: [] for way in hours if way.startswith("arcnb")}
    between: dict[str, list[float]] = {way: [] for way in hours}
    steps, last_report, plain_rate, began = Steps(backend), None, 0.0, time.monotonic()
    with Executor(arguments.workers or None) as executor:
        for turn in range(arguments.turns + 1):  # the first turn warms up, with a quarter of the work
            some = tasks if turn else tasks[: max(1, len(tasks) // 4)]
            if turn and time.monotonic() - began > arguments.budget:
                break
            if turn == 1 and arguments.turn_seconds:
                plan = plan_of(rounds_for(arguments.turn_seconds, plain_rate, len(tasks)), arguments)
            if turn <= 1:
                asked = asked_of(some)
                say(described(asked, plan, arguments, written))
            for way in list(hours)[:: 1 if turn % 2 else -1]:
                backend.engine.llm.reset_prefix_cache()
                cpu = cpu_seconds(backend)
                drawn = replace(sampling, seeded=not way.endswith("-free"))
                steps.begin()
                if way.startswith("plain"):
                    seconds, tokens = plain(backend, asked, arguments.n, drawn, written)
                elif way.startswith("backend"):
                    seconds, tokens = generated(backend, asked, arguments.n, drawn)
                else:
                    seconds, report = stage(backend, some, plan, drawn, executor)
                    tokens = report.completion_tokens
                    assert own_programs or tokens == tokens_in(asked, arguments.n, written)
                    last_report = report if turn else None
                figures = steps.figures()
                rate = 3600 * len(asked) * arguments.n / seconds
                if way.startswith("plain"):
                    plain_rate = len(asked) / seconds
                here, engine = (
                    after - before for before, after in zip(cpu, cpu_seconds(backend), strict=True)
                )
                if turn:
                    hours[way].append(rate)
                    speeds[way].append(tokens / seconds)
                    cpus[way].append((here, engine))
                    between[way].append(figures["tokens_a_second_between"])
                line = {
                    "turn": turn,
                    "way": way,
                    "seconds": round(seconds, 2),
                    "an_hour": round(rate),
                    "tokens_a_second": round(tokens / seconds),
                }
                line |= {"cpu_here": round(here, 2), "cpu_engine": round(engine, 2)} | figures
                if way in tails:
                    line["tail_seconds"] = round(report.tail_seconds, 2)
                    tails[way] += [report.tail_seconds] if turn else []
                say(json.dumps(line))
    medians = {way: statistics.median(rates) for way, rates in hours.items() if rates}
    medians_of_tokens = {way: statistics.median(rates) for way, rates in speeds.items() if rates}
    outcome = {"predictions_a_turn": len(asked) * arguments.n}
    outcome |= {"prompt_tokens": statistics.mean(map(len, asked)), "an_hour": hours}
    outcome["cpu_seconds_here_and_engine"] = {
        way: [round(statistics.median(part), 2) for part in zip(*pairs, strict=True)]
        for way, pairs in cpus.items()
    }
    outcome |= {"median_an_hour": medians, "median_tokens_a_second": medians_of_tokens}
    medians_between = {way: statistics.median(rates) for way, rates in between.items() if rates}
    outcome |= {"to_plain": ratios(medians_of_tokens), "between": ratios(medians_between)}
    outcome |= {"tail_seconds": tails}
    if last_report:
        outcome["rates_of_the_last_stage"] = last_report.rates
    say("RESULT " + json.dumps(outcome))
    return outcome


def plan_of(rounds: int, arguments) -> RoundPlan:
    return RoundPlan(arguments.n * rounds, arguments.n)


def rounds_for(seconds: float, prompts_a_second: float, n_tasks: int) -> int:
    """Rounds of n_tasks prompts that take about so long."""
    return max(1, round(seconds * prompts_a_second / n_tasks))


def described(asked: list[list[int]], plan: RoundPlan, arguments, written: Lengths | None) -> str:
    """A turn's prompts and completions in words."""
    lengths = sorted(map(len, asked))
    ending = f"completions of at most {arguments.max_tokens}"
    if written is not None:
        own = [written[tuple(ids)] for ids in asked]
        ending = f"completions of {statistics.mean(own):.0f} ({min(own)} to {max(own)})"
    return (
        f"{len(asked)} prompts ({plan.n_rounds} rounds) of {statistics.mean(lengths):.0f} tokens "
        f"({lengths[0]} to {lengths[-1]}), {ending}"
    )


def ratios(speeds: dict[str, float]) -> dict[str, float]:
    """Of each other way to its plain one."""
    others = [way for way in speeds if not way.startswith("plain")]
    plain_of = {way: "-".join(["plain", *way.split("-")[1:]]) for way in others}
    return {way: round(speeds[way] / speeds[own], 4) for way, own in plain_of.items() if own in speeds}


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    made.add_argument("--model", default="default")
    made.add_argument("--adapter", help="of that model: it writes its own programs")
    made.add_argument("--max-lora-rank", type=int, help="keep the adapter apart from a small model's weights")
    made.add_argument("--llama-8b", type=Path, help="folder to make and take the 8B shape in")
    made.add_argument("--prompts", type=int, default=8, help="tasks")
    made.add_argument("--rounds", type=int, default=1, help="prompts of each task")
    made.add_argument("--turn-seconds", type=float, help="of the plain way: chooses the rounds")
    made.add_argument("--prompt-tokens", type=int, default=500)
    made.add_argument("--n", type=int, default=4, help="completions a prompt")
    made.add_argument("--max-tokens", type=int, default=64)
    made.add_argument("--shortest", type=float, default=0.25, help="share of --max-tokens, 1: all the same")
    made.add_argument("--max-num-seqs", type=int, default=None)
    made.add_argument("--turns", type=int, default=2)
    made.add_argument("--ways", default="plain,arcnb", help="of plain, backend, arcnb, and each with -free")
    made.add_argument("--block-size", type=int, help="tokens of a block of vLLM's cache")
    made.add_argument("--budget", type=float, default=600, help="seconds after which no turn begins")
    made.add_argument("--gpu-memory", type=float, default=0.9)
    made.add_argument("--workers", type=int, default=0, help="of the executor; 0 is one a core")
    return made


def main() -> None:
    arguments = parser().parse_args()
    if arguments.turn_seconds and not any(way.startswith("plain") for way in arguments.ways.split(",")):
        raise SystemExit("--turn-seconds takes the speed of a plain way from the warm-up; add one to --ways")
    model = str(make_llama_8b(arguments.llama_8b)) if arguments.llama_8b else arguments.model
    options = EngineOptions(
        max_model_len=min(8192, 2 * arguments.prompt_tokens + arguments.max_tokens),
        max_num_seqs=arguments.max_num_seqs,
        block_size=arguments.block_size,
        max_lora_rank=arguments.max_lora_rank,
        gpu_memory_utilization=arguments.gpu_memory,
        load_format="dummy" if arguments.llama_8b else "auto",
    )
    with open_backend("vllm", model, arguments.adapter, options) as backend:
        measure(backend, arguments, say=lambda line: print(line, flush=True))


if __name__ == "__main__":
    main()
