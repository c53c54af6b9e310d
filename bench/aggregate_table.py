"""The table over 400 tasks of 128 predictions each, from Parquet parts on disk; the acceptance mark is 3 s.

python bench/aggregate_table.py
"""

import tempfile
import time

from arcnb.arc.metrics import METRIC_COLUMNS, aggregate, pass_at_k_curve, score
from arcnb.arc.predictions import Prediction, PredictionSet, output_fingerprint
from arcnb.arc.seeds import rng
from arcnb.arc.tasksets import TaskSet, load_tasks

ROUNDS, PER_ROUND = 16, 8


def write_round(predictions: PredictionSet, tasks: TaskSet, round: int) -> None:
    """One prediction in ten gives the expected outputs, half of the others the inputs, the rest none."""
    rows = []
    for task in tasks:
        for index in range(PER_ROUND):
            drawn = rng(0, task.task_id, round, index).random()
            expected = [pair.output for pair in (*task.train, *task.test)]
            outputs = expected if drawn < 0.1 else task.inputs if drawn < 0.55 else None
            valid = outputs is not None
            row = Prediction(task.task_id, task.fingerprint, round, index, completion="x = 1\n" * 250)
            row.status, row.outputs = ("ok" if valid else "error"), outputs
            row.fingerprint = output_fingerprint(outputs) if valid else None
            for name, value in score(outputs, task).items():
                setattr(row, name, value)
            rows.append(row)
    predictions.write_part(rows, round)


def main() -> None:
    tasks = load_tasks("arc-agi-1/evaluation")
    with tempfile.TemporaryDirectory() as folder:
        predictions = PredictionSet(folder)
        for round in range(ROUNDS):
            write_round(predictions, tasks, round)
        start = time.perf_counter()
        frame = predictions.read(METRIC_COLUMNS)
        read = time.perf_counter()
        aggregate(frame, tasks)
        table = time.perf_counter()
        pass_at_k_curve(frame, task_ids=tasks)
        curve = time.perf_counter()
    print(f"{len(frame)} predictions: read {read - start:.2f} s, table {table - read:.2f} s, ", end="")
    print(f"pass@k with intervals {curve - table:.2f} s")


if __name__ == "__main__":
    main()
