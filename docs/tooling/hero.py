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
    """A column a pair: input, expected output, what the program made of it; the program at the right."""
    task = load_tasks(data)[one.task_id]
    shown = [*range(len(task.train))[:3], len(task.train)]
    pairs = [*task.train, *task.test]
    figure = plt.figure(figsize=(1.5 * len(shown) + 5, 4.6), dpi=130, facecolor="white")
    places = figure.add_gridspec(
        3, len(shown) + 1, width_ratios=[1] * len(shown) + [3.4], wspace=0.12, hspace=0.12
    )
    for column, index in enumerate(shown):
        cells = (pairs[index].input, pairs[index].output, one.outputs[index])
        for row, (name, picture) in enumerate(zip(("input", "expected", "produced"), cells, strict=True)):
            axes = figure.add_subplot(places[row, column])
            axes.imshow(picture, cmap=COLORS, vmin=0, vmax=9, interpolation="nearest")
            axes.set_xticks([x - 0.5 for x in range(1, picture.shape[1])], [])
            axes.set_yticks([y - 0.5 for y in range(1, picture.shape[0])], [])
            axes.grid(color="#555555", linewidth=0.5)
            axes.tick_params(length=0)
            if column == 0:
                axes.set_ylabel(name)
            if row == 0:
                axes.set_title("test" if index == len(task.train) else f"train {index + 1}", fontsize=10)
    text = figure.add_subplot(places[:, -1])
    text.axis("off")
    text.text(0.02, 0.5, one.program.strip(), va="center", family="monospace", fontsize=9, linespacing=1.5)
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
