"""The reward function that TRL calls: completions in, programs run, one number a completion out.

Every rollout becomes a prediction record, judged by the same code as inference, and is kept: the
rollouts of a training run are a prediction set like any other (round = optimizer step before which they were
sampled). Numbers about the batch go to TRL's `log_metric`, columns to its completions table by `log_extra`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from arcnb.arc.predictions.prediction import Prediction
from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.arc.tasks.task import Task
from arcnb.arc.views import COLUMNS
from arcnb.programs.executor.executor import Executor
from arcnb.programs.judging import judge as judge_programs
from arcnb.rl.rewards.cheating import find_cheats
from arcnb.rl.rewards.metrics import batch_metrics, error_classes, groups_of, guided_metrics
from arcnb.rl.rewards.rollout import Rollout, Scores, answer_columns
from arcnb.rl.rewards.terms import RewardPlan
from arcnb.rl.rows.history import SignalHistory


@dataclass(frozen=True)
class Outcome:
    """What all processes know of one completion. row: which row, hence group, it belongs to. status,
    fingerprint, error_type: the executor's verdict. lines: of a known solution that it began with. first: the
    rollout of an episode's first answer, where its reward needs that one, too."""

    process: int
    row: int
    task_id: str
    status: str
    fingerprint: str | None
    rollout: Rollout
    lines: int = 0
    first: Rollout | None = None
    error_type: str | None = None


Answers = list[tuple[Prediction, Rollout]]  # of one completion: the judged answers in it, nearly always one


@dataclass(eq=False)
class ProgramReward:
    """Callable with TRL's signature for reward functions; the columns it reads: `arcnb.rl.rows.prompt_rows`.

    history: learns which groups had signal. process, n_processes: this process among those that train
    together; each judges and writes its own share, and groups may be spread over several. judge: runs the
    programs of predictions; rollout: what rewards are made of, from a judged prediction; logged: further
    numbers about this process's judged answers; all three are ARC's unless said. ends: tokens that end an
    answer; the trainer's, once there is one. latest: the judged predictions of the last call with their
    rewards, for whoever wants to show them. credit: of the last call, all processes' values and groups, which
    advantages are made of (`arcnb.rl.trainer.crediting`).
    """

    plan: RewardPlan
    tasks: Iterable[Task]  # by id, once made
    executor: Executor
    rollouts: PredictionSet | None = None
    guided: PredictionSet | None = field(default=None, kw_only=True)
    history: SignalHistory | None = None
    model: str = ""
    adapter: str | None = None
    detect_cheating: bool = True
    process: int = 0
    n_processes: int = 1
    judge: Callable[..., Iterable[Prediction]] | None = None
    rollout: Callable[[Prediction, Task], Rollout] | None = None
    logged: Callable[[Answers], dict[str, float]] | None = None
    ends: Collection[int] = ()
    latest: list[tuple[Prediction, float]] = field(default_factory=list)
    credit: tuple[list[float], list] = ((), ())

    def __post_init__(self):
        self.tasks = {task.task_id: task for task in self.tasks}
        self.judge = self.judge or partial(judge_programs, executor=self.executor)
        self.rollout = self.rollout or program_rollout
        self.__name__ = self.plan.scheme.rpartition(":")[2]  # TRL names the metric after it

    def __call__(
        self, completions, completion_ids, trainer_state=None, log_metric=None, log_extra=None, **columns
    ) -> list[float]:
        """Judge the completions and return their rewards, in order."""
        from accelerate.utils import gather_object

        started = time.monotonic()
        step = trainer_state.global_step if trainer_state else 0
        answers = self._answers(step, completions, completion_ids, columns)
        chosen = [self._chosen(of_completion) for of_completion in answers]
        own = self._outcomes(columns, chosen, answers)
        seconds = time.monotonic() - started
        # The one exchange of a step, which all processes make together; every process computes rewards,
        # history and metrics of all completions from it.
        everyone = gather_object(own)
        of_all = self._rewards(everyone)
        rewards = [
            reward for one, reward in zip(everyone, of_all, strict=True) if one.process == self.process
        ]
        self._remember(everyone, of_all)
        self.credit = self._credit(everyone, of_all)
        self.latest = [(one, reward) for (one, _), reward in zip(chosen, rewards, strict=True)]
        if log_metric:
            for name, value in self._metrics(everyone, of_all, chosen, columns).items():
                log_metric(name, value)
            log_metric("executor_seconds", seconds)
        if log_extra:
            for name, values in self._extras(chosen, columns).items():
                log_extra(name, values)
        self._write(step, answers, columns)
        return rewards

    def _write(self, step: int, answers: Sequence[Answers], columns: Mapping) -> None:
        """Keep the predictions, guided ones apart: whoever counts successes counts free ones."""
        lines = columns.get("lines", [0] * len(answers))
        for rollouts, guided in ((self.rollouts, False), (self.guided, True)):
            if rollouts is not None:
                of_completions = [own for own, n in zip(answers, lines, strict=True) if bool(n) is guided]
                every = [prediction for own in of_completions for prediction, _ in own]
                rollouts.write_part(every, round=step, shard=self.process, n_shards=self.n_processes)

    def _answers(self, step: int, completions, completion_ids, columns: Mapping) -> list[Answers]:
        """The judged answers of each completion."""
        made = [
            self._prediction(i, step, completions[i], completion_ids[i], columns)
            for i in range(len(completions))
        ]
        parents = parent_scores(columns, self.tasks)
        found = self._as_rollouts(list(self.judge(made, self.tasks)), completion_ids)
        return [
            [(prediction, replace(rollout, parent=parent))]
            for (prediction, rollout), parent in zip(found, parents, strict=True)
        ]

    def _as_rollouts(self, judged: Sequence[Prediction], ids: Sequence[Sequence[int]]) -> Answers:
        """Judged predictions with their rollouts; cheats are looked for in all of them together."""
        cheats: Sequence[str | None] = [None] * len(judged)
        if self.detect_cheating:
            cheats = find_cheats(judged, self.tasks, self.executor)
        found = []
        for prediction, tokens, cheat in zip(judged, ids, cheats, strict=True):
            rollout = self.rollout(prediction, self.tasks[prediction.task_id])
            truncated = prediction.finish_reason == "length"
            solved = rollout.solved and not cheat
            known = replace(rollout, tokens=tokens, solved=solved, cheating=cheat, truncated=truncated)
            found.append((prediction, known))
        return found

    def _chosen(self, answers: Answers) -> tuple[Prediction, Rollout]:
        """The answer of a completion that counts."""
        return answers[-1]

    def _prediction(self, i: int, step: int, completion, ids: Sequence[int], columns: Mapping) -> Prediction:
        text = completion if isinstance(completion, str) else completion[-1]["content"]
        later = {name: columns[name][i] for name in ("turn", "parent") if name in columns}
        return Prediction(
            **answer_columns(self.tasks[columns["task_id"][i]], ids, self.ends),
            round=step,
            index=self.process * len(columns["row"]) + i,
            seed=columns["row"][i],
            **{name: columns[name][i] for name in COLUMNS},
            model=self.model,
            adapter=self.adapter,
            completion=text,
            completion_prefix=columns["prefix"][i],
            **later,
        )

    def _outcomes(self, columns: Mapping, chosen: Answers, answers: Sequence[Answers]) -> list[Outcome]:
        """What all processes are told of this one's completions."""
        rows = columns["row"]
        lines = columns.get("lines", [0] * len(rows))
        return [
            Outcome(
                self.process,
                row,
                prediction.task_id,
                prediction.status,
                prediction.fingerprint,
                rollout,
                n_lines,
                error_type=prediction.error_type,
            )
            for row, n_lines, (prediction, rollout) in zip(rows, lines, chosen, strict=True)
        ]

    def _rewards(self, everyone: Sequence[Outcome]) -> list[float]:
        """Of all outcomes, group by group; a group that is spread over processes is one."""
        return self._by_group([one.row for one in everyone], [one.rollout for one in everyone])

    def _credit(self, everyone: Sequence[Outcome], rewards: Sequence[float]) -> tuple[list[float], list]:
        """What advantages are made of: the value of each completion, and the group it is compared with."""
        return list(rewards), [one.row for one in everyone]

    def _by_group(self, rows: Sequence[int], rollouts: Sequence[Rollout]) -> list[float]:
        rewards = [0.0] * len(rows)
        for members in groups_of(rows).values():
            of_group = self.plan.rewards([rollouts[i] for i in members])
            for i, reward in zip(members, of_group, strict=True):
                rewards[i] = reward
        return rewards

    def _remember(self, everyone: Sequence[Outcome], rewards: Sequence[float]) -> None:
        """Tell the history, which has to be the same in all processes, about every group of all of them."""
        if self.history is None:
            return
        for row, members in groups_of([one.row for one in everyone]).items():
            solved = [everyone[i].rollout.solved for i in members]
            first = everyone[members[0]]
            self.history.record(row, first.task_id, [rewards[i] for i in members], solved, first.lines)

    def _metrics(
        self, everyone: Sequence[Outcome], rewards: Sequence[float], chosen: Answers, columns: Mapping
    ) -> dict[str, float]:
        rows = [one.row for one in everyone]
        verdicts = [(one.status, one.fingerprint) for one in everyone]
        values = batch_metrics(verdicts, [one.rollout for one in everyone], rewards, rows)
        values |= error_classes([(one.status, one.error_type) for one in everyone])
        if "lines" in columns:
            values |= guided_metrics(
                [one.rollout.solved for one in everyone], [one.lines for one in everyone]
            )
        if self.history is not None and self.history.visits:
            silent = self.history.silent(max(rows) + 1)
            values["silent_prompts_ratio"] = len(silent) / len(self.tasks)
        return values | (self.logged(chosen) if self.logged else {})

    def _extras(self, chosen: Answers, columns: Mapping) -> dict[str, list]:
        """Columns for TRL's table of completions."""
        return {
            "prediction": [prediction.id for prediction, _ in chosen],
            "status": [prediction.status for prediction, _ in chosen],
            "solved": [rollout.solved for _, rollout in chosen],
            "cheating": [rollout.cheating or "" for _, rollout in chosen],
        }


def program_rollout(prediction: Prediction, task: Task) -> Rollout:
    """What rewards are made of, from a judged program for an ARC task."""
    scores = Scores.of(prediction, len(task.train), len(task.test))
    return Rollout(scores, (), prediction.solved)


def parent_scores(columns: Mapping, tasks: Mapping[str, Task]) -> list[Scores | None]:
    """Scores of the programs that the completions were asked to improve (`FrozenRows`)."""
    if "parent_status" not in columns:
        return [None] * len(columns["row"])
    return [
        Scores(
            has_program=columns["parent_status"][i] != "no_code",
            has_outputs=columns["parent_status"][i] == "ok",
            train_correct=columns["parent_train_correct_grids"][i] or 0.0,
            test_correct=columns["parent_test_correct_grids"][i],
            train_pixel=columns["parent_train_pixel_score"][i] or 0.0,
            test_pixel=columns["parent_test_pixel_score"][i],
            n_train=len(tasks[task_id].train),
            n_test=len(tasks[task_id].test),
        )
        for i, task_id in enumerate(columns["task_id"])
    ]
