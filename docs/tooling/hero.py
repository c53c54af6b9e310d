"""The picture on the README: a task that a run solved, the program that the model wrote, what it produced.

python docs/tooling/hero.py runs/20261126-011358-demo-inference/predictions
python docs/tooling/hero.py PREDICTIONS --task 3c9b0459 -o docs/pictures/hero.png
"""

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.colors import ListedColormap

from arcnb.arc import PredictionSet, load_tasks
from arcnb.arc.pictures.palettes import PALETTES
from arcnb.arc.predictions.prediction import Prediction

COLORS = ListedColormap(PALETTES["arc"])


def solved(folder: Path, task_id: str) -> Prediction:
    """The prediction that solves its task with the longest program of at most 24 lines."""
    found = [
        one
        for one in PredictionSet(folder).iter_predictions()
        if one.train_is_correct and one.test_is_correct
    ]
    found = [one for one in found if task_id in ("", one.task_id) and one.program.count("\n") < 24]
    if not found:
        raise SystemExit(f"{folder} has no such prediction that solves {task_id or 'its task'}")
    return max(found, key=lambda one: len(one.program))


def draw(one: Prediction, path: Path, data: str) -> None:
    """A row a pair: input, expected output, what the program made of it; the program at the right."""
    task = load_tasks(data)[one.task_id]
    pairs = [*task.train[:3], *task.test[:1]]
    figure = plt.figure(figsize=(11, 1.5 * len(pairs) + 0.6), dpi=130, facecolor="white")
    grid = figure.add_gridspec(len(pairs), 4, width_ratios=[1, 1, 1, 3.4], wspace=0.15, hspace=0.3)
    shown = [*range(min(3, len(task.train))), len(task.train)]
    for row, (pair, index) in enumerate(zip(pairs, shown, strict=True)):
        cells = (pair.input, pair.output, one.outputs[index])
        for column, (title, picture) in enumerate(
            zip(("input", "expected", "program's output"), cells, strict=True)
        ):
            axes = figure.add_subplot(grid[row, column])
            axes.imshow(picture, cmap=COLORS, vmin=0, vmax=9, interpolation="nearest")
            axes.set_xticks([x - 0.5 for x in range(1, picture.shape[1])], [])
            axes.set_yticks([y - 0.5 for y in range(1, picture.shape[0])], [])
            axes.grid(color="#555555", linewidth=0.5)
            axes.tick_params(length=0)
            if row == 0:
                axes.set_title(title, fontsize=9)
            if column == 0:
                axes.set_ylabel("test" if row == len(pairs) - 1 else f"train {row + 1}", fontsize=9)
    text = figure.add_subplot(grid[:, 3])
    text.axis("off")
    text.text(0, 1, one.program.strip(), va="top", family="monospace", fontsize=8)
    figure.savefig(path, bbox_inches="tight")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("predictions", type=Path)
    parser.add_argument("--task", default="", help="this task (default: the one with the longest program)")
    parser.add_argument("--tasks", default="arc-agi-1/training", help="the task set")
    parser.add_argument("-o", type=Path, default=Path("docs/pictures/hero.png"))
    options = parser.parse_args()
    one = solved(options.predictions, options.task)
    draw(one, options.o, options.tasks)
    print(f"{options.o}: task {one.task_id}, {one.id}, adapter {one.adapter}")


if __name__ == "__main__":
    main()
