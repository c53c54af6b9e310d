"""What a GRPO run did: curves, evaluations of the eval tasks, outcome, and completions worth reading."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from arcnb.arc.predictions.prediction import KEY_COLUMNS, Prediction
from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.arc.predictions.tables import RANKING, best_first
from arcnb.arc.scores.change import NORMAL
from arcnb.arc.scores.intervals import percent, rate_text
from arcnb.arc.tasks.task import Task
from arcnb.errors import number_of
from arcnb.models.training.log import steps_in
from arcnb.rl.watching.evaluations import Evaluations

if TYPE_CHECKING:
    import pandas as pd

FIRST_LOOK = (
    "reward",
    "reward_std",
    "tests_passed_ratio",
    "kl",
    "sampling/logp_gap",
    "sampling/ess",
    "entropy",
    "grad_norm",
    "completions/mean_length",
    "truncated_completions_ratio",
    "solved_tasks_ratio",
    "unique_outputs",
    "groups_without_spread",
    "executor_seconds",
    "step_time",
)
_HELD_OUT = "held_out/"  # what the names of an evaluation begin with
_PASS = re.compile(r"pass@\d+")
ROLLED_BACK = "rolled back"  # where training goes on in other processes only, see arcnb.rl.launch


@dataclass
class TrainingReport:
    """What training did; `history` has one mapping a logged step, as written to metrics.jsonl.

    status: "done", "preempted" (a signal came; resume to go on) or "collapsed" (the guard stopped it).
    notes: sentences for whoever reads the results. config: asked against effective settings. adapter_moved:
    whether adapter/ is another than what training started from. trained: ids of the tasks that it drew from.
    seconds: since this start, which was at step `resumed_at`.
    """

    adapter: Path
    steps: int
    seconds: float
    history: list[dict]
    too_long: dict[str, int] = field(default_factory=dict)
    status: str = "done"
    rollbacks: int = 0
    best: dict | None = None
    pages: list[Path] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    config: pd.DataFrame | None = None
    adapter_moved: bool = True
    trained: list[str] = field(default_factory=list)
    resumed_at: int = 0

    @property
    def took(self) -> str:
        """Its steps and seconds, see `steps_in`."""
        return steps_in(self.steps, self.seconds, self.resumed_at)

    @property
    def headline(self) -> str:
        """What came of the run, in one sentence: the signal it had, and where reward went."""
        steps = [row for row in self.history if "groups_without_spread" in row]
        without = sum(row["groups_without_spread"] == 1 for row in steps)
        unit = "steps"
        if len(steps) < self.steps:  # a round can be several steps, and a line the mean of several
            lines = sum("loss" in row for row in self.history)
            unit = "rounds of samples" if lines > len(steps) else "logged means of steps"
        adapter = "" if self.adapter_moved else "the adapter is unchanged"
        if not steps:
            return adapter or "no step was trained"
        if without == len(steps) or adapter:
            silent = f"no group differed in {without} of {len(steps)} {unit}"
            return "; ".join(filter(None, (silent, adapter)))
        rewards = [row["reward"] for row in steps]
        part = max(1, len(rewards) // 4)
        first, last = (sum(some) / part for some in (rewards[:part], rewards[-part:]))
        guided = self._guided()
        differed = f"groups differed in {len(steps) - without} of {len(steps)} {unit}"
        rose = f"reward {first:.2f} in the first quarter of the steps, {last:.2f} in the last"
        return f"{rose}; {differed}{guided}"

    def _guided(self) -> str:
        """Success with and without guidance, as a part of the headline; "" where nothing was guided."""
        parts = []
        for name, what in (("guided/solved", "guided"), ("guided/free_solved", "free")):
            shares = [row[name] for row in self.history if name in row]
            if shares:
                parts.append(f"{sum(shares) / len(shares):.0%} of the {what} completions")
        guided = any("guided/solved" in row for row in self.history)
        return f"; {' and '.join(parts)} solved their task" if guided else ""

    @cached_property
    def sentences(self) -> str:
        """The headline, and where the samples for eval tasks went."""
        rows = [row for row in self.history if "held_out/pass@1" in row]
        first = f"{self.headline[0].upper()}{self.headline[1:]}."
        if not rows:
            return f"{first} No eval tasks were sampled while it trained."
        ends = rows if len(rows) == 1 else [rows[0], rows[-1]]
        rates = [f"{_with_interval(row)} after {number_of(int(row['step']), 'step')}" for row in ends]
        said = f"{first} Of the samples for eval tasks {', '.join(rates)} solve their task"
        return f"{said}." if len(ends) == 1 else f"{said}: {self._changes(rows)}"

    def _changes(self, rows: list[dict]) -> str:
        """What changed from the first evaluation to the last, and from the best one to the last."""
        evaluations = Evaluations.read(PredictionSet(self.adapter.with_name("held_out")))
        rates = {int(row["step"]): row["held_out/pass@1"] for row in rows}
        last = max(rates)
        change = evaluations.change(min(rates), last)
        if change is None:
            return "they are of other tasks."
        said = f"{'' if change.seen else 'no change is shown, '}{change}."
        best = self.best["step"] if self.best else last
        # the best may be of another run, whose checkpoint this one went on from
        if best not in rates or rates[best] <= rates[last]:
            return said
        fall = evaluations.change(best, last)
        seen = fall is not None and fall.seen
        verdict = f"from it to the last {fall}" if seen else "the last is not shown to be worse"
        return (
            f"{said} Best of {len(rates)} was that after {number_of(best, 'step')}, kept in best/; {verdict}."
        )

    def table(self) -> pd.DataFrame:
        """The columns to look at first, a row a step."""
        import pandas as pd

        rows = [row for row in self.history if "reward" in row]
        names = [name for name in FIRST_LOOK if any(name in row for row in rows)]
        return pd.DataFrame(rows, columns=["step", *names]).set_index("step")

    def curve_groups(self) -> dict[str, list[str]]:
        """{title: logged names that belong into one picture}; a picture without any of them is left out."""
        logged = sorted({name for row in self.history for name, value in row.items() if value})
        return {
            "reward by quantile": [f"reward_q{q}" for q in (90, 75, 50, 25, 10)],
            "solved, without spread": [
                "tests_passed_ratio",
                "solved_tasks_ratio",
                "groups_without_spread",
                "silent_prompts_ratio",
            ],
            "solved, guided and free": ["guided/solved", "guided/free_solved", "guided/ratio"],
            "guidance (lines)": ["guided/lines"],
            "completion length (tokens)": ["completions/max_length", "completions/mean_length"],
            "truncated": ["truncated_completions_ratio"],
            "KL, entropy (nats a token)": ["kl", "entropy"],
            "sampler against learner": ["sampling/logp_gap", "sampling/kl"],
            "importance ratio": ["sampling/importance_ratio", "sampling/ess", "sampling/clipped_share"],
            "repetition": ["unique_3gram_ratio", "unique_tokens_ratio", "unique_outputs"],
            "answers by parse": ["parse/strict", "parse/lenient", "parse/none"],
            "turns: solved on train by turn": [f"turns/solved_by_{n}" for n in range(1, 9)],
            "turns: against the answer before": ["turns/improved", "turns/worse", "turns/copied"],
            "turns: how episodes ended": [name for name in logged if name.startswith("turns/end_")],
            "tree: solved": ["tree/roots_solved", "tree/refined_solved"],
            "verdicts of the executor": [name for name in logged if name.startswith("status/")],
            "exceptions of programs": [name for name in logged if name.startswith("error/")],
        }

    def changed_settings(self) -> pd.DataFrame | None:
        """The settings that are other than asked, a row each by name; None where there is none."""
        changed = self.config[self.config["reason"] != ""] if self.config is not None else ()
        return changed.set_index("setting").rename_axis(index=None) if len(changed) else None

    def curves(self) -> list[str]:
        """The logged names that say most: reward, and samples of the eval tasks that solve their task."""
        return [name for name in ("reward", "held_out/pass@1") if any(name in row for row in self.history)]

    def held_out_table(self) -> pd.DataFrame:
        """The evaluations of the eval tasks, a row each; names without their `held_out/`."""
        import pandas as pd

        rows = [row for row in self.history if "held_out/pass@1" in row]
        names = dict.fromkeys(name for row in rows for name in row if name.startswith(_HELD_OUT))
        table = pd.DataFrame(rows, columns=["step", *names]).set_index("step")
        return table.rename(columns=lambda name: name.removeprefix(_HELD_OUT))

    def held_out_groups(self) -> dict[str, list[str]]:
        """{title: logged names that belong into one picture} of the evaluations of the eval tasks."""
        names = list(self.held_out_table())
        groups = {
            "solved (share)": [name for name in names if _PASS.fullmatch(name)],
            "samples (share)": ["valid_outputs", "unique_outputs", "truncated"],
            "turns: solved by turn": [name for name in names if "turn" in name],
        }
        return {title: [_HELD_OUT + name for name in some] for title, some in groups.items()}

    def outcome(self) -> dict:
        """Plain values for the run's manifest: last step's numbers; pass@k of the last evaluation of eval
        tasks; tokens of all rollouts, guided ones too."""
        table, held_out = self.table(), self.held_out_table()
        last = table.iloc[-1].to_dict() if len(table) else {}
        if len(held_out):
            last |= {name: rate for name, rate in held_out.iloc[-1].items() if _PASS.fullmatch(name)}
        written = [PredictionSet(self.adapter.with_name(name)) for name in ("rollouts", "guided")]
        return {
            "headline": self.sentences,
            "training": self.status,
            "steps": self.steps,
            "seconds": self.seconds,
            "tokens": sum(int(one.read(["n_tokens"])["n_tokens"].fillna(0).sum()) for one in written),
            "left_out_as_too_long": self.too_long,
            "rollbacks": self.rollbacks,
            "best_held_out": self.best or {},
            "notes": self.notes,
            "adapter_moved": self.adapter_moved,
            "alarm_pages": [page.name for page in self.pages],
        } | last


def _with_interval(row: dict) -> str:
    rate, error = row["held_out/pass@1"], row.get("held_out/pass@1_error")
    if error is None:
        return percent(rate)
    low, high = max(0.0, rate - NORMAL * error), min(1.0, rate + NORMAL * error)
    return rate_text(rate, low, high, "95% interval ")


@dataclass(frozen=True)
class ExampleRollouts:
    """Named rollouts that draw themselves in a notebook."""

    tasks: Mapping[str, Task]
    chosen: list[tuple[str, Prediction]]

    def _repr_html_(self) -> str:
        return "".join(self._card(name, prediction) for name, prediction in self.chosen)

    def __repr__(self) -> str:
        return "\n".join(f"{name}: {prediction.id}, {prediction.status}" for name, prediction in self.chosen)

    def _card(self, name: str, prediction: Prediction) -> str:
        said = prediction.failure or prediction.status or ""
        head = (
            f"{name}: {prediction.id} · step {prediction.round + 1} · {prediction.n_tokens} tokens · {said}"
        )
        return prediction.card(self.tasks[prediction.task_id], head)


def example_rollouts(rollouts: PredictionSet, tasks: Mapping[str, Task]) -> ExampleRollouts:
    """The two rollouts that came closest, each of another task, and the first that was truncated."""
    frame = rollouts.read(columns=[*KEY_COLUMNS, "status", "finish_reason", *RANKING])
    best = best_first(frame[frame["status"] == "ok"]).drop_duplicates("task_id").head(2)
    cut = frame[frame["finish_reason"] == "length"].sort_values(["round", "index"], kind="stable").head(1)
    wanted = [
        (name, (row.task_id, row.round, row.index, row.turn))
        for name, rows in {"best": best, "first truncated": cut}.items()
        for row in rows.itertuples()
    ]
    found = rollouts.get(key for _, key in wanted)
    return ExampleRollouts(tasks, [(name, found[key]) for name, key in wanted])
