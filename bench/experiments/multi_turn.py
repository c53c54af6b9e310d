"""The experiment on refinement in turns on one node: is it better to refine than to sample again?

    python bench/experiments/multi_turn.py --out DIR --seconds 1400            # one GPU; again and again until DONE
    python bench/experiments/multi_turn.py --out DIR --seconds 1400 --gpus 4 --train-seeds 3
    python bench/experiments/multi_turn.py --out DIR --table                   # of whatever there is, also of a copy
    python bench/experiments/multi_turn.py --out /tmp/x --rehearse [--gpus 2]  # tiny, on a CPU

Arms (the first 64 predictions of each task and seed are the same, by the shipped adapter):
  independent     64 more samples by the shipped adapter
  untrained       64 refinements by the shipped adapter, which was never trained to refine
  sft             64 refinements after supervised fine-tuning on refinements that succeeded (siblings)
  frozen          64 refinements by one trained with GRPO on frozen second turns
  onpolicy        64 refinements by one trained with on-policy episodes of two turns
  onpolicy-warm   the same, begun from sft
Training sees trainable ids of ARC-AGI-1 training only; the arms are compared on the 80 held-out ids.

All at once, as far as one thing does not wait for another (multi_turn_plan.py): samplers, --samplers of them, keep one
engine each and take units of sampling, those first that need no training; trainings, --trainers a GPU, run
beside them. Everything is resumable after a kill: finished units are not done twice, sampling goes on where it was, GRPO
from its last checkpoint. Two calls on one folder at the same time share the work.

DIR/results/ is what to fetch (below 1 MB): counts-ARM-SEED.json, written every 20 seconds while the arm is sampled,
table.txt, and at the end study.txt and study.json; DIR/done/NAME.json and DIR/NAME/metrics.jsonl tell of trainings.

Found on one H200 with 16 cores (24 November, docs/log.md): `--samplers 4 --sampler-kv-gb 6 --rl-seconds 900
--rl-steps 150 --sft-seconds 120` is DONE after 1,420 s, table and study included. Samplers and the first training stand
after 50 to 70 s; each of four samplers beside three trainings makes 38 to 41 first turns a second, 34 to 96 refinements
by arm; 6,176 first turns on 193 training tasks take 135 s, conversations of them 29 s, sft 140 s, a step of
on-policy training 8 to 12 s, one of frozen turns 2 to 7; DIR/NAME/parts.jsonl says what each is made of. Three seeds are 30,000 first turns and 12,500 refinements an arm.

GPU memory of the default sizes (estimates): a sampler 17 GB (12 of them cache); a GRPO trainer at most its cap, a third of
88% of what the samplers leave, about 31 GB on one GPU (needed: cache 6, weights and rest 2, hidden states of a step's 128
conversations, up to 160,000 tokens, 6, and tiles of logits); sft 8 to 15 GB.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from multi_turn_plan import ARMS, Plan
from multi_turn_stages import GO_ON, NOTHING_READY, on_gpu, plan_of, sampler, study, train
from multi_turn_table import table
from one_gpu import quiet_port, start_service, stop_service  # before arcnb: it makes that importable

from arcnb.machine.processes import end_session, ending_with_parent

TIME_UP, FAILED = 75, 1
CRASHES = 3  # of samplers in a row that got nowhere; then no more are started in this call
GPU_GB = 141
REHEARSAL = {
    "train_tasks": 2,
    "train_predictions": 4,
    "eval_tasks": 2,
    "first": 2,
    "budget": 4,
    "per_prompt": 2,
    "seeds": 1,
    "max_tokens": 48,
    "max_model_len": 2048,
    "sft_steps": 2,
    "rl_steps": 1,
    "group": 2,
    "prompts": 1,
    "accumulation": 1,
    "rl_prompt_tokens": 400,
    "rl_context": 1400,
    "rl_completion": 160,
    "workers": 1,
    "rl_seconds": 200,
    "trainers": 1,
    "patience": 0,
}


def arguments(given=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=560, help="of this call, everything included")
    parser.add_argument(
        "--table", action="store_true", help="print the table of what DIR/results holds, no more"
    )
    parser.add_argument("--stage", help="of one process (for the script's own use)")
    parser.add_argument("--arms", default=",".join(ARMS))
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--samplers", type=int, default=0, help="0: two on one GPU, else one a GPU")
    parser.add_argument(
        "--trainings-first", action="store_true", help="no sampling while anything can be trained"
    )
    parser.add_argument("--trainers", type=int, default=3, help="at the same time on a GPU")
    parser.add_argument("--train-seeds", type=int, default=1, help="trainings of each arm")
    parser.add_argument("--model", default="default")
    parser.add_argument("--adapter", default="default")
    parser.add_argument("--train-tasks", type=int, default=0, help="of the trainable ones that fit; 0: all")
    parser.add_argument("--train-predictions", type=int, default=32, help="a task, for conversations and sft")
    parser.add_argument("--eval-tasks", type=int, default=0, help="of the held-out ones; 0: all")
    parser.add_argument(
        "--also-evaluation", type=int, default=0, help="so many tasks of the evaluation set as well"
    )
    parser.add_argument("--first", type=int, default=64)
    parser.add_argument("--budget", type=int, default=128)
    parser.add_argument("--per-prompt", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=3, help="of sampling")
    parser.add_argument("--chooser", default="promising")
    parser.add_argument("--max-tokens", type=int, default=384)
    parser.add_argument("--max-model-len", type=int, default=4096)
    parser.add_argument("--sft-seconds", type=float, default=90)
    parser.add_argument("--sft-steps", type=int, default=200)
    parser.add_argument("--sft-lr", type=float, default=1e-4)
    parser.add_argument("--rl-seconds", type=float, default=330, help="of each GRPO run's steps")
    parser.add_argument("--rl-steps", type=int, default=400)
    parser.add_argument("--rl-lr", type=float, default=4e-5)
    parser.add_argument("--save-steps", type=int, default=10)
    parser.add_argument("--group", type=int, default=16)
    parser.add_argument("--prompts", type=int, default=8, help="a step")
    parser.add_argument("--accumulation", type=int, default=1)
    parser.add_argument(
        "--packed-tokens", type=int, default=8192, help="of a row of conversations that share a prompt"
    )
    parser.add_argument("--turn-reward", default="last")
    parser.add_argument("--rl-prompt-tokens", type=int, default=1000, help="longest first prompt in training")
    parser.add_argument("--rl-context", type=int, default=3072)
    parser.add_argument("--rl-completion", type=int, default=384)
    parser.add_argument("--kv-gb", type=float, default=6.0, help="of vLLM's cache in a training process")
    parser.add_argument("--sampler-kv-gb", type=float, default=12.0, help="of vLLM's cache in a sampler")
    parser.add_argument("--workers", type=int, default=0, help="programs at the same time, of each process")
    parser.add_argument(
        "--patience", type=float, default=1e9, help="seconds that a sampler waits for work before it ends"
    )
    parser.add_argument("--no-service", action="store_true", help="without CUDA's multi-process service")
    args = parser.parse_args(given)
    if unknown := set(args.arms.split(",")) - set(ARMS):
        parser.error(f"there is no arm {', '.join(sorted(unknown))}; there are {', '.join(ARMS)}")
    if args.rehearse:
        for name, value in REHEARSAL.items():
            setattr(args, name, value)
        args.seconds, args.samplers = max(args.seconds, 1500), args.gpus
    args.samplers = args.samplers or (2 if args.gpus == 1 else args.gpus)
    return args


# ---------------------------------------------------------------- the driver


@dataclass
class Running:
    """name: of a training, or "sampler-N"."""

    name: str
    gpu: int
    place: int
    process: subprocess.Popen
    began: float

    @property
    def samples(self) -> bool:
        return self.name.startswith("sampler-")


class Driver:
    """Starts what can be started, notices what has ended, until nothing is left or the time is up."""

    def __init__(self, args, plan: Plan, environment: dict[str, str]):
        self.args, self.plan, self.environment = args, plan, environment
        self.end = time.time() + args.seconds
        self.running: list[Running] = []
        self.crashes, self.known, self.told = 0, None, time.time()

    def run(self) -> int:
        while time.time() < self.end - 5:
            self.begin()
            if not self.running:
                break
            time.sleep(0.5)
            for one in [one for one in self.running if one.process.poll() is not None]:
                self.running.remove(one)
                self.ended(one)
            if time.time() > self.told + 30:
                self.told = time.time()
                table(self.args.out)
        self.stop()
        print(table(self.args.out), flush=True)
        return self.verdict()

    def verdict(self) -> int:
        """The exit status, with a sentence on what is left."""
        left = [name for name in self.plan.needs if not self.plan.is_done(name)]
        failed = [name for name in left if self.plan.failures(name)]
        if not self.plan.is_settled(self.plan.needs):
            print(f"NOT all done, {len(left)} left: run the same command again", flush=True)
            return FAILED if self.crashes >= CRASHES else TIME_UP
        if failed:
            print(f"NOT all done, failed: {', '.join(failed)}", flush=True)
            return FAILED
        print("DONE", flush=True)
        return 0

    def begin(self) -> None:
        """Start what there is work and room for."""
        if self.end - time.time() < 30:
            return
        n_ready, n_samplers = len(self.plan.ready(self.plan.units)), sum(one.samples for one in self.running)
        names, trainings = {one.name for one in self.running}, self.plan.ready(self.plan.trainings)
        if self.args.trainings_first and trainings:  # also those under way
            n_ready = 0
        for number in range(self.args.samplers):
            wanted = f"sampler-{number}" not in names and n_ready > n_samplers and self.crashes < CRASHES
            if wanted and self.start(f"sampler-{number}"):
                n_samplers += 1
        for name in trainings:
            if name not in names:
                self.start(name)

    def start(self, name: str) -> bool:
        """Whether there was room for it."""
        samples = name.startswith("sampler-")
        loads = dict.fromkeys(range(self.args.gpus), 0)
        for one in self.running:
            if one.samples == samples or self.args.rehearse:
                loads[one.gpu] += 1
        gpu = min(loads, key=loads.get)
        most = 1 if self.args.rehearse else self.args.samplers if samples else self.args.trainers
        if loads[gpu] >= most:
            return False
        environment = os.environ | self.environment
        environment |= {
            "EXP_END": str(self.end - 10),
            "EXP_FRACTION": f"{self.fraction():.3f}",
            "MASTER_PORT": str(quiet_port(self.place())),
            "PYTHONUNBUFFERED": "1",
        }
        environment.setdefault("OMP_NUM_THREADS", "2")
        if on_gpu():
            environment["CUDA_VISIBLE_DEVICES"] = self.device(gpu)
        words = [sys.executable, __file__, *sys.argv[1:], "--stage", name, "--workers", str(self.workers())]
        with (self.args.out / f"{name}.log").open("a") as log:
            process = subprocess.Popen(
                words,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=environment,
                preexec_fn=ending_with_parent(),
            )
        self.running.append(Running(name, gpu, self.place(), process, time.time()))
        self.say(f"{name} begins on GPU {gpu}")
        return True

    def place(self) -> int:
        """The least number that no running process has."""
        return min(set(range(len(self.running) + 1)) - {one.place for one in self.running})

    def device(self, gpu: int) -> str:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        return visible.split(",")[gpu] if visible else str(gpu)

    def fraction(self) -> float:
        """Of a GPU's memory, for each of its trainers: what the samplers leave, but for a reserve."""
        samplers = -(-self.args.samplers // self.args.gpus) * (self.args.sampler_kv_gb + 5) / GPU_GB
        return 0.88 * (1 - samplers) / self.args.trainers

    def workers(self) -> int:
        """Programs at the same time of each process, so that all of them have about as many as there are cores."""
        processes = self.args.samplers + self.args.gpus * self.args.trainers
        return self.args.workers or max(2, len(os.sched_getaffinity(0)) // max(1, processes - 1))

    def ended(self, one: Running) -> None:
        code = one.process.returncode
        text = (self.args.out / f"{one.name}.log").read_text(errors="replace").replace("\r", "\n")
        lines = [line for line in text.splitlines() if line.strip() and "it/s]" not in line]
        last = " ".join(lines[-1:])[:200]
        self.say(f"{one.name} ended with {code} after {time.time() - one.began:.0f} s: {last}")
        if code in (0, GO_ON, NOTHING_READY):
            return
        print("\n".join(lines[-20:]), flush=True)
        if one.samples:
            known = self.progress()
            self.crashes = self.crashes + 1 if known == self.known else 1
            self.known = known
        else:
            self.plan.fail(one.name, last)

    def progress(self) -> tuple[int, int]:
        """Units done, and failures written down, which are limited for each unit."""
        units = self.plan.units
        return sum(map(self.plan.is_done, units)), sum(len(self.plan.failures(name)) for name in units)

    def stop(self) -> None:
        for one in self.running:
            with suppress(ProcessLookupError):
                os.killpg(one.process.pid, signal.SIGTERM)
        patience = time.time() + 15
        for one in self.running:
            end_session(one.process, max(0.1, patience - time.time()))

    @staticmethod
    def say(sentence: str) -> None:
        print(f"[{time.strftime('%H:%M:%S')}] {sentence}", flush=True)


def drive(args) -> int:
    args.out.mkdir(parents=True, exist_ok=True)
    plan = plan_of(args)
    plan.forget_failures()
    service = {} if args.no_service or not on_gpu() else start_service(args.out / "mps")
    try:
        code = Driver(args, plan, service).run()
        whole = [arm for arm in ("rest", *plan.arms) if all(plan.is_done(f"{arm}@{s}") for s in plan.seeds)]
        if "rest" in whole and len(whole) > 1:
            words = [sys.executable, __file__, *sys.argv[1:], "--stage", "study"]
            if subprocess.run(words, check=False).returncode:
                print("the whole study failed; the table above stands", flush=True)
    finally:
        stop_service(service)
    return code


def main() -> int:
    args = arguments()
    if args.table:
        print(table(args.out))
        return 0
    if args.stage is None:
        return drive(args)
    if args.stage == "study":
        return study(args)
    code = sampler(args) if args.stage.startswith("sampler-") else train(args, args.stage)
    sys.stdout.flush()
    os._exit(code)  # engines leave processes and threads that may not end by themselves


if __name__ == "__main__":
    sys.exit(main())
