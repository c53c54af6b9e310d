"""Host memory of the sampling stage over many rounds, and the rate at which it takes completions.

    python bench/inference_memory.py           # 60 rounds of 40 tasks, 8 completions each: a minute or more

An engine that answers at once with RE-ARC's programs takes the place of a real one, so the figures are those
of everything else: prompts, programs, scores, parts. Printed after every tenth of the rounds: resident memory
of this process and its peak so far, predictions a second; that rate is what the stage can keep up with.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path

from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.arc.tasks.task_set import load_tasks
from arcnb.models.prompts.format import prompt_format
from arcnb.models.registry import load_tokenizer, resolve_model
from arcnb.models.sampling.backends import Completion, Sampling
from arcnb.programs.executor.executor import Executor
from arcnb.search.sampling.predict import predict
from arcnb.search.sampling.rounds import RoundPlan
from arcnb.search.sampling.sampled_set import SampledSet
from arcnb.synth.rearc.tasks import rearc_ids, rearc_program


def memory_mb(name: str) -> float:
    """VmRSS or VmHWM (the peak) of this process."""
    lines = Path(f"/proc/{os.getpid()}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024


class InstantEngine:
    """Answers every request at once and says how the process is doing after every tenth of them."""

    context = 8192

    def __init__(self, n_requests: int):
        self.tokenizer = load_tokenizer(resolve_model("default"))
        self.programs = [rearc_program(task_id) + "\n```" for task_id in rearc_ids()]
        self.n_requests = n_requests

    def generate(self, requests, sampling):
        began = time.monotonic()
        for number, request in enumerate(requests, start=1):
            for index in range(request.n):
                # The number in the comment makes every program a new one: none is answered from memory.
                program = self.programs[(number * 7 + index) % len(self.programs)]
                text = f"# {number} {index}\n{program}"
                ids = [9] * (len(text) // 3)
                yield Completion(request.key, index, text, ids, "stop", None, len(request.prompt_ids), 0)
            if number % max(1, self.n_requests // 10) == 0:
                rate = number * request.n / (time.monotonic() - began)
                resident, peak = memory_mb("VmRSS"), memory_mb("VmHWM")
                print(
                    f"{number:7} prompts: {resident:.0f} MB, peak {peak:.0f} MB, {rate:.0f} predictions/s",
                    flush=True,
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--tasks", type=int, default=40)
    parser.add_argument("--workers", type=int, default=0, help="of the executor; 0 is one a core")
    arguments = parser.parse_args()
    tasks = list(load_tasks("arc-agi-1/training"))[: arguments.tasks]
    plan = RoundPlan(8 * arguments.rounds, 8)
    engine = InstantEngine(arguments.rounds * len(tasks))
    with tempfile.TemporaryDirectory() as folder, Executor(arguments.workers or None) as executor:
        made = SampledSet(tasks, PredictionSet(folder), prompt_format(), Sampling())
        report = predict(made, engine, executor, plan)
        print(report)


if __name__ == "__main__":
    main()
