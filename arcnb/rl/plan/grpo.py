"""What a GRPO run is asked to do: one frozen tree, made of notebook 05's parameters.

    plan = GrpoPlan.of({"max_steps": 8, "guard_window": 10}, output="runs/x")
    report = run_grpo(plan, tasks, eval_tasks)

`plan.trl` holds settings of TRL's GRPOConfig by their own names. One group is all `num_generations`
completions of a prompt, whatever the accumulation and the number of processes: `completions_a_part` splits
the completions of one optimizer step evenly. What TRL or unsloth would choose silently has a default here, so
that a trainer that changes it is found out (arcnb.rl.trainer.effective_config). What cannot be asked for is
in arcnb.rl.checks.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import ClassVar, Self

from arcnb.arc.encodings import encoding_option
from arcnb.arc.views import augment_option
from arcnb.machine.files import write_whole
from arcnb.models.lora.options import Lora
from arcnb.models.training.nodes import job_server
from arcnb.models.training.processes import PARALLEL
from arcnb.plans import Plan, Settings, branch, library, option
from arcnb.rl.plan.guard import GuardOptions
from arcnb.rl.plan.settings import GRPO_CONFIG, Learner, Vllm
from arcnb.rl.shared_prompt.packing import TOKEN_BUDGET
from arcnb.values import COUNT, POSITIVE, SEED, SHARE, KeysOf

SHARE_BESIDE_TRAINING, SHARE_OF_SERVER = 0.3, 0.9  # of a GPU's memory, for vLLM, where a run does not say


@dataclass(frozen=True)
class Rewards:
    """Terms beside the reward scheme, see arcnb.rl.rewards.terms."""

    overlong_weight: float = option(0.0, "cost of a truncated completion, in reward")
    overlong_buffer: int = option(
        0, "distance from the limit at which overlong_weight begins to cost", "tokens"
    )
    repetition_weight: float = option(0.0, "cost of a completion that only repeats itself, in reward")
    improvement_weight: float = option(
        0.5,
        "of improvement over the parent (refine_conversations) or the first answer (turn_reward improvement)",
    )
    terms: dict[str, float] = option(
        dict, "weights of further terms by name: valid_code, shortest_of_solved, in reward"
    )
    detect_cheating: bool = option(True, "programs that memorise their task's pairs earn nothing")


@dataclass(frozen=True)
class Signal:
    """Prompts without signal, see arcnb.rl.rows.history.SignalHistory."""

    visits: int = option(0, "a task without signal in so many visits is shown less; 0: never")
    weight: float = option(
        0.0, "how often a task without signal is still shown, share of its turns", within=SHARE
    )


@dataclass(frozen=True)
class GuideOptions:
    """Completions of silent tasks that begin with a known solution, see arcnb.rl.rows.guides."""

    programs: str = option(
        "",
        'known solutions: gold (the tasks\' own), a folder of predictions, or several with commas; "": none',
    )
    after: int = option(
        1, "a task is guided when so many of its groups in a row solved nothing", within=COUNT
    )
    free: float = option(
        0.25, "how often a guided task is shown without guidance, share of its turns", within="[0, 1)"
    )


@dataclass(frozen=True)
class GrpoPlan(Plan):
    """output: the run folder. What `of` does not get has its default."""

    checks: ClassVar[str] = "arcnb.rl.checks.problems:plan_problems"
    subject_name: ClassVar[str] = "arcnb.rl.subject:Subject"

    output: Path = Path()

    tasks: str = option(
        "arc-agi-1/training", "task set: a name, a tasks.parquet of notebook 01, or ARC JSON", free=True
    )
    n_tasks: int = option(8, "tasks to sample from it, among those whose prompts fit; 0 takes all")
    learn_from: str = option(
        "",
        'predictions of the tasks (notebook 03): train on tasks that some of them solve; "": on all',
        free=True,
    )
    max_solved: float = option(
        0.9,
        "with learn_from: share of solving samples above which a task is too easy; 0: silent ones",
        free=True,
        within=SHARE,
    )
    train_on_held_out: bool = option(
        False,
        "train also on the 80 reserved tasks and the evaluation sets, which are left out otherwise",
        free=True,
    )
    refine_conversations: str = option(
        "", "train on the frozen later turns of a refine.parquet (notebook 04); n_tasks has no say then"
    )

    eval_tasks: str = option(
        "arc-agi-1/evaluation",
        "task set that is never trained on, for evaluation while training; kept: some of `tasks`, kept from "
        "training",
        free=True,
    )
    n_eval_tasks: int = option(2, "tasks to sample from it, among those whose prompts fit; 0 takes all")
    eval_steps: int = option(
        4, "steps between evaluations (and before the first, and after the last); 0: never"
    )
    num_generations_eval: int = option(2, "samples of each evaluation task: pass@1 to pass@this")

    model: str = option("default", "model to train: default, a folder or a hub id", free=True)
    adapter: str = option(
        "auto",
        'LoRA to start from: auto (the shipped one, if it fits), a folder, or "" for a fresh one',
        free=True,
    )
    fold_adapter: bool = option(
        False,
        "fold `adapter` into the model and train a fresh LoRA on that; adapter/ is then the sum of both",
        free=True,
    )
    load_in_4bit: bool = option(False, "quantize the base model by bitsandbytes")
    lora: Lora = branch(Lora)
    template: str = option("arc_code", "prompt template: a name or a path to a Jinja file", free=True)
    refine_template: str = option(
        "refine", "with turns: template of the feedback: refine (short), refine_full, or a path", free=True
    )
    encoding: str = encoding_option(free=True)
    augment: str = augment_option()
    max_prompt_length: int = option(
        700, "tasks with a longer prompt are left out, and named; 0: what max_length leaves", "tokens"
    )
    max_length: int = option(
        0, "longest sequence, prompt plus completion; 0: what the model was built for", "tokens"
    )

    reward: str = option(
        "right-grids",
        "reward scheme, or a function of yours: FILE.py:FUNCTION",
        within=KeysOf("arcnb.rl.rewards.schemes:SCHEMES", "arcnb.rl.rewards.schemes:reward_scheme"),
    )
    rewards: Rewards = branch(Rewards)
    advantages: str = option(
        "group",
        "how rewards become advantages: group, batch, none, max_rl, pass_at_k or unlikely",
        within=KeysOf("arcnb.rl.rewards.advantages:ADVANTAGES"),
    )
    pass_at_k: int = option(4, "with advantages pass_at_k: k, at the first step", within=COUNT)
    pass_at_k_last: int = option(0, "k at the last step, in a straight line from the first's; 0: it stays")
    self_teacher: float = option(
        0.0,
        "added to a failed answer's advantages: this times what feedback on it makes each token likelier, in "
        "rounds in which feedback makes right answers likelier",
    )
    turns: int = option(
        1, "answers of an episode, each with feedback on the one before; 1: no second turn", within=COUNT
    )
    turn_reward: str = option(
        "last",
        "with turns: the reward is the last or best answer's, or last plus improvement",
        within=("last", "best", "improvement"),
    )
    tree: int = option(
        0, "with turns 2: refinements of each failed first answer, in groups that are trees; 0: lines"
    )
    signal: Signal = branch(Signal)
    guide: GuideOptions = branch(GuideOptions)
    adaptive_groups: bool = option(
        False, "of a round's completions more for tasks solved half of the time, fewer for settled ones"
    )

    trainer: str = option("trl", "trl, or unsloth (GPU, in a process of its own)", within=("trl", "unsloth"))
    num_processes: int = option(1, "GPUs to train on, one process each, by accelerate launch", within=COUNT)
    parallel: str = option(
        "ddp", "how num_processes share the work: ddp, or zero3 (needs deepspeed)", free=True, within=PARALLEL
    )
    prompts_per_step: int = option(
        1, "prompts, each with its group, that one optimizer step trains", within=COUNT
    )
    use_vllm: bool | str = option(
        "auto",
        "vLLM samples instead of transformers; auto: where there are a GPU and vLLM",
        within=("auto", True, False),
    )
    vllm: Vllm = branch(Vllm)
    learner: Learner = branch(Learner)
    shared_prompt: bool = option(
        False, "compute a prompt once a group, not once a completion (trl); pays with long prompts", free=True
    )
    shared_prompt_tokens: int = option(
        TOKEN_BUDGET,
        "with shared_prompt: longest packed row; a shorter one takes less memory and more time",
        "tokens",
        free=True,
        within=COUNT,
    )
    shared_prompt_offload: bool = option(
        False,
        "with shared_prompt: hidden states wait in the host's memory until the backward pass",
        free=True,
    )

    guard: GuardOptions = branch(GuardOptions)
    resume: str = option(
        "auto", "auto: go on where this run folder stands; never; or a run or checkpoint folder", free=True
    )
    disk_budget_gb: float = option(
        0.0, "disk for checkpoints, the oldest go, the best is kept apart; 0: no limit", "GiB", free=True
    )
    accept_other_settings: bool = option(False, "resume from a checkpoint of other settings", free=True)
    accept_other_config: bool = option(
        False, "go on when the trainer changes settings for no known reason", free=True
    )
    workers: int = option(0, "programs run at the same time; 0 means one a core", free=True)
    program_memory_mb: int = option(512, "memory of one program", "MiB", free=True, within=COUNT)
    seconds_per_input: float = option(
        1.0, "time limit of a program for one grid; for all 5 s, or as long", "s", free=True, within=POSITIVE
    )
    seed: int = option(
        0, "prompts, order, samples and which n_tasks and n_eval_tasks are taken derive from it", within=SEED
    )

    trl: Settings = library(GRPO_CONFIG)

    @property
    def subject(self):
        """What the tasks are, an `arcnb.rl.subject.Subject`."""
        return resolve_name(self.subject_name)(self)

    @property
    def settings(self) -> dict:
        """What GRPOConfig is asked for, but for what the trainer derives: TRL's settings that have a
        value."""
        given = {name: value for name, value in self.trl.items() if value is not None}
        if self.by_server and self.server_address:
            given["vllm_server_base_url"] = self.server_address
        scaled = self.advantages if self.advantages in ("group", "batch") else "none"
        return given | {"use_vllm": self.samples_by_vllm, "scale_rewards": scaled}

    @property
    def samples_by_vllm(self) -> bool:
        """Whether vLLM samples; False where that is not decided yet (use_vllm="auto", see rl.launch)."""
        return self.use_vllm is True

    @property
    def half(self) -> bool:
        """Whether learner and sampler compute in float16."""
        return bool(self.trl.get("fp16"))

    @property
    def colocated(self) -> bool:
        """Whether vLLM samples in the training process."""
        return self.samples_by_vllm and self.trl["vllm_mode"] == "colocate"

    @property
    def by_server(self) -> bool:
        """Whether a vLLM server samples."""
        return self.samples_by_vllm and self.trl["vllm_mode"] == "server"

    @property
    def zero3(self) -> bool:
        """Whether the policy's weights are spread over several processes."""
        return self.parallel == "zero3" and self.num_processes > 1

    @property
    def server_address(self) -> str:
        """Of the vLLM server that samples, where one runs already, or on a node of this job; else ""."""
        host, port = self.trl.get("vllm_server_host"), self.trl.get("vllm_server_port", 8000)
        given = self.trl.get("vllm_server_base_url") or (f"http://{host}:{port}" if host else "")
        return given or job_server()

    @property
    def weights(self) -> dict[str, float]:
        """Reward terms by name."""
        parts = self.rewards
        return {
            "overlong": parts.overlong_weight,
            "repetition": parts.repetition_weight,
            "improvement": parts.improvement_weight if self.refine_conversations else 0.0,
            **parts.terms,
        }

    @property
    def completions_a_part(self) -> int:
        """Completions a process and accumulation step: TRL's per_device_train_batch_size."""
        parts = self.trl["gradient_accumulation_steps"] * self.num_processes
        return self.trl["num_generations"] * self.prompts_per_step // parts

    @property
    def keeps_tasks(self) -> bool:
        """Whether some of the tasks are kept from training, to be evaluated on."""
        return self.eval_tasks == "kept"

    @property
    def prompts_a_round(self) -> int:
        """Prompts, each with its group, of one round of sampling: those of several optimizer steps, whose
        parts TRL's steps_per_generation counts."""
        parts = self.trl["steps_per_generation"]
        steps = parts // self.trl["gradient_accumulation_steps"] if parts else 1
        return steps * self.prompts_per_step

    @property
    def steps_a_round(self) -> int:
        """Optimizer steps that one round of sampling serves: each of its prompts num_iterations times."""
        return self.prompts_a_round // self.prompts_per_step * self.trl["num_iterations"]

    def number_of_steps(self, n_tasks: int) -> int:
        """Optimizer steps: `max_steps` where positive, else `num_train_epochs` passes over the tasks, each
        of which is trained num_iterations times a pass."""
        if self.trl["max_steps"] > 0:
            return self.trl["max_steps"]
        once = max(1, math.ceil(self.trl["num_train_epochs"] * n_tasks / self.prompts_per_step))
        return once * self.trl["num_iterations"]

    def longest_prompt(self, context: int) -> int:
        """Tokens of the longest prompt that is shown, where the sequence has room for `context`."""
        room = context - self.trl["max_completion_length"]
        return min(room, self.max_prompt_length or room)

    def write(self, tasks: Sequence, eval_tasks: Sequence) -> Path:
        """`launch/launch.json` in the run folder with the tasks beside it, for another process to read."""
        folder = Path(self.output) / "launch"
        folder.mkdir(parents=True, exist_ok=True)
        for name, some in (("tasks", tasks), ("eval_tasks", eval_tasks)):
            path = folder / f"{name}{self.subject.suffix}"
            path.unlink(missing_ok=True)
            if some:
                self.subject.write(some, path)
        kind = f"{type(self).__module__}:{type(self).__name__}"
        path = folder / "launch.json"
        write_whole(path, json.dumps({"kind": kind, "plan": self.values()}, indent=1))
        return path

    @classmethod
    def read(cls, path: Path) -> tuple[Self, Sequence, Sequence]:
        """The inverse of write: (plan, tasks, evaluation tasks)."""
        content = json.loads(Path(path).read_text())
        folder = Path(path).resolve().parent
        plan = resolve_name(content["kind"]).of(content["plan"], output=folder.parent)
        files = [folder / f"{name}{plan.subject.suffix}" for name in ("tasks", "eval_tasks")]
        return plan, *(plan.subject.read(file) if file.is_file() else () for file in files)
