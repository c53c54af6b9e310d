"""Tasks of 128 predictions: their space, and the time to the table. Marks: 1/5 of gzip JSON, 3 s for 400.

    python bench/aggregate_table.py                   # 50 tasks, half a minute
    python bench/aggregate_table.py --tasks 400       # about three minutes
    python bench/aggregate_table.py --distinct 128    # every program is another one
    python bench/aggregate_table.py --set runs/.../predictions --tasks-from arc-agi-1/training    # real ones

Without --set, programs are RE-ARC's, each prediction's with lines of other programs and other numbers in it;
a task has --distinct different ones, the first more frequent than the last; what a program puts out is its
own. The rows of a set are written anew, as parts and then packed; the set itself is left as it is.
gzip JSON (level 6, an object a line) has the same fields, outputs as nested lists: once in the order in which
a stage makes predictions (round by round), and once task by task.
"""

import argparse
import gzip
import io
import json
import re
import tempfile
import time
from collections.abc import Iterator
from itertools import islice

from arcnb.arc.predictions.prediction import Prediction, output_fingerprint
from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.arc.scores.pass_rates import pass_at_k_curve
from arcnb.arc.scores.similarity import score
from arcnb.arc.scores.tables import METRIC_COLUMNS, aggregate
from arcnb.arc.seeds import rng
from arcnb.arc.tasks.task import Task
from arcnb.arc.tasks.task_set import load_tasks
from arcnb.synth.rearc.tasks import rearc_program

ROUNDS, PER_ROUND, PART = 16, 8, 2048


def variant(task: Task, number: int, programs: list[str]) -> Prediction:
    """What is the same in all predictions of one program: its text, its outputs or error, its scores."""
    draw = rng(0, "variant", task.task_id, number)
    head, *lines = rearc_program(task.task_id).split("\n")
    others = programs[draw.integers(len(programs))].split("\n")[1:]
    for i in range(len(lines)):
        if draw.random() < 0.2:
            lines[i] = others[draw.integers(len(others))]
        elif draw.random() < 0.2:
            lines[i] = re.sub(r"\d+", lambda found: str(draw.integers(10)), lines[i])
    program = "\n".join([head, *lines])
    made = Prediction(task.task_id, task.fingerprint, 0, 0, program=program, completion=program + "\n```")
    made.completion_prefix, made.extraction, made.status = "```python\n", "fenced", "ok"
    fate = draw.random()
    if fate < 0.05:
        made.outputs = [pair.output for pair in (*task.train, *task.test)]
    elif fate < 0.6:
        made.outputs = [grid.copy() for grid in task.inputs]
        for grid in made.outputs:
            top, left = draw.integers(grid.shape[0]), draw.integers(grid.shape[1])
            grid[top : top + 4, left : left + 4] = draw.integers(10)
    else:
        made.status, made.error_type = "error", "IndexError"
        made.error_message, made.error_line = f"index {draw.integers(30)} is out of bounds", len(lines)
    made.fingerprint = output_fingerprint(made.outputs) if made.outputs else None
    for name, value in score(made.outputs, task).items():
        setattr(made, name, value)
    return made


def prediction(task: Task, variants: list[Prediction], round_: int, index: int) -> Prediction:
    draw, view_draw = rng(0, task.task_id, round_, index), rng(0, "view", task.task_id, round_)
    chosen = vars(variants[int(len(variants) * draw.random() ** 2)])
    view = {"hflip": bool(view_draw.integers(2)), "n_rot90": int(view_draw.integers(4)), "test_index": 0}
    view |= {
        "color_map": view_draw.permutation(10).tolist(),
        "pair_order": view_draw.permutation(len(task.train)).tolist(),
    }
    sampled = {"n_prompt_tokens": 100 * len(task.train), "n_tokens": len(chosen["completion"]) // 3}
    seconds = {"seconds": round(draw.random() / 100, 6), "cpu_seconds": round(draw.random() / 100, 6)}
    names = {"model": "default", "finish_reason": "stop"}
    return Prediction(**(chosen | {"round": round_, "index": index} | view | sampled | seconds | names))


def as_json(row: Prediction) -> str:
    outputs = row.outputs and [grid.tolist() for grid in row.outputs]
    return json.dumps(vars(row) | {"outputs": outputs}) + "\n"


class Gzip:
    """Counts the bytes of what is written to it."""

    def __init__(self):
        self.buffer = io.BytesIO()
        self.file = gzip.GzipFile(fileobj=self.buffer, mode="wb", compresslevel=6)

    def size(self) -> int:
        self.file.close()
        return self.buffer.tell()


def synthetic(tasks: list[Task], distinct: int) -> Iterator[Prediction]:
    """Predictions in the order in which a stage makes them."""
    programs = [rearc_program(task.task_id) for task in tasks]
    variants = {t.task_id: [variant(t, i, programs) for i in range(distinct)] for t in tasks}
    for round_ in range(ROUNDS):
        for task in tasks:
            for index in range(PER_ROUND):
                yield prediction(task, variants[task.task_id], round_, index)


def of_set(folder: str) -> Iterator[Prediction]:
    """A set's predictions round by round, times in the steps in which they are kept today."""
    rows = sorted(
        PredictionSet(folder).iter_predictions(), key=lambda row: (row.round, row.task_id, row.index)
    )
    for row in rows:
        for name in ("seconds", "cpu_seconds"):
            if getattr(row, name) is not None:
                setattr(row, name, round(getattr(row, name), 4))
        yield row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--distinct", type=int, default=40, help="different programs of a task")
    parser.add_argument("--tasks", type=int, default=50, help="without --set")
    parser.add_argument("--set", help="folder of a prediction set, to count its rows instead")
    parser.add_argument("--tasks-from", default="arc-agi-1/training", help="the tasks that the set answers")
    arguments = parser.parse_args()
    tasks = list(load_tasks(arguments.tasks_from))[: None if arguments.set else arguments.tasks]
    rows = of_set(arguments.set) if arguments.set else synthetic(tasks, arguments.distinct)
    by_round, by_task = Gzip(), Gzip()
    with tempfile.TemporaryDirectory() as folder:
        predictions, writing = PredictionSet(folder), []
        while part := list(islice(rows, PART)):
            by_round.file.writelines(as_json(row).encode() for row in part)
            began = time.process_time()
            predictions.write_part(part, part[0].round)
            writing.append(time.process_time() - began)
        for row in predictions.iter_predictions():
            by_task.file.write(as_json(row).encode())
        sizes = {"gzip JSON by round": by_round.size(), "gzip JSON by task": by_task.size()}
        sizes["parts"] = sum(path.stat().st_size for path in predictions.parts())
        began = time.process_time()
        predictions.pack()
        packing = time.process_time() - began
        sizes["packed"] = sum(path.stat().st_size for path in predictions.parts())
        start = time.perf_counter()
        frame = predictions.read(METRIC_COLUMNS)
        read = time.perf_counter()
        answered = set(frame["task_id"])
        tasks = [task for task in tasks if task.task_id in answered]
        aggregate(frame, tasks)
        table = time.perf_counter()
        pass_at_k_curve(frame, task_ids=tasks)
        curve = time.perf_counter()
    print(
        f"{len(frame):,} predictions of", arguments.set or f"{arguments.distinct} programs a task", end=": "
    )
    print(", ".join(f"{name} {size / 1e6:.2f} MB" for name, size in sizes.items()))
    print(f"processor time: {max(writing):.2f} s for a part of {PART:,} at most, packed in {packing:.1f} s")
    for name in ("parts", "packed"):
        ratios = [sizes[f"gzip JSON by {order}"] / sizes[name] for order in ("round", "task")]
        print(f"{name}: {ratios[0]:.2f} times smaller than gzip JSON by round, {ratios[1]:.2f} than by task")
    print(
        f"read {read - start:.2f} s, table {table - read:.2f} s, pass@k with intervals {curve - table:.2f} s"
    )


if __name__ == "__main__":
    main()
