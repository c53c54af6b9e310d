"""`arcnb bundle kaggle OUT`: what an offline Kaggle notebook needs, checked and rehearsed before it is sent.

    OUT/dataset/    bundle.json, package/ (with the notebooks), model/, adapter/, wheels/, profiles
    OUT/kernel/     arcnb-submission.ipynb, kernel-metadata.json

    kaggle datasets create -p OUT/dataset -r zip;  kaggle kernels push -p OUT/kernel

The kernel runs notebook 07 of the workspace until the time is up. The limits are Kaggle's for notebook
competitions: 12 hours, 20 GB of output, no network.
"""

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from arcnb.arc.scores.submission import SubmissionScore, score_submission
from arcnb.arc.tasks.json_files import solutions_path, write_arc_json
from arcnb.arc.tasks.task_set import TaskSet
from arcnb.errors import ArcnbError, some
from arcnb.lab.workspace.folders import notebooks_folder, shipped
from arcnb.machine.files import new_folder, write_whole
from arcnb.machine.gpus import Gpu
from arcnb.models.memory.fitting import memory_problem
from arcnb.models.memory.shape import GIB
from arcnb.models.prompts.rendering import template_path
from arcnb.models.registry import adapter_name, resolve_adapter, resolve_model
from arcnb.search.learning.plan import SearchPlan

TEMPLATES = Path(__file__).with_name("templates")
KERNEL = "arcnb-submission"
NOTEBOOK = "07_search_and_learn"  # which the kernel runs
COMPETITION = {"tasks": "arc-agi-1/evaluation", "n_tasks": 0, "task_ids": ""}  # in the place of its tasks
OF_KERNEL = (*COMPETITION, "submission", "submission_file", "time_budget_hours")  # which it says itself
HOURS, MARGIN_HOURS = 12.0, 0.5  # Kaggle's limit; installing, starting and the last page take from it
OUTPUT_GB = 20
BYTES_PER_PREDICTION = 2000  # of a prediction set on disk, about
_OFFLINE = ["unshare", "-rn", "sh", "-c", 'ip link set lo up && exec "$0" "$@"']  # nothing but this machine
_ONE_PYTHON = re.compile(r"-(cp\d+)-cp\d+t?-[^-]+\.whl$")  # a wheel for this Python alone
CARDS = {
    "L4x4": ("NvidiaL4", 4, 22.0),
    "T4x2": ("NvidiaTeslaT4", 2, 14.7),
}  # shape, cards, usable GiB of each


@dataclass(frozen=True)
class KaggleBundle:
    """What to bundle.

    profiles: files for notebook 07; parameters: as of `arcnb run 07 -p`; wheels: a folder of wheels for the
    kernel's Python (`pip download --no-deps -r requirements.txt`), None where it has all packages.
    """

    model: str = "default"
    adapter: str = "auto"
    profiles: Sequence[Path] = ()
    parameters: dict[str, Any] = field(default_factory=dict)
    wheels: Path | None = None
    python: str = ".".join(platform.python_version_tuple()[:2])
    gpu: str = "L4x4"
    hours: float = 11.3
    user: str = "YOUR-NAME"
    competition: str = "arc-prize-2026"

    def problems(self, plan: SearchPlan, n_tasks: int = 240) -> list[str]:
        """Why this cannot run on Kaggle: a sentence each. n_tasks: of the competition."""
        found = []
        if self.gpu not in CARDS:
            return [f"--gpu must be {' or '.join(CARDS)}, got {self.gpu!r}"]
        if not 0 < self.hours <= HOURS - MARGIN_HOURS:
            most = HOURS - MARGIN_HOURS
            sentence = f"--hours must be above 0 and at most {most}, got {self.hours}"
            found.append(f"{sentence}: Kaggle ends a run after {HOURS}")
        if own := [name for name in OF_KERNEL if name in self.parameters]:
            found.append(
                f"-p {own[0]} cannot be given: the kernel takes all tasks of the competition, writes "
                "submission.json, and has the time of --hours"
            )
        if template_path(plan.template).name != f"{plan.template}.jinja":  # a path
            found.append(
                f"template {plan.template} is a file of yours, which no bundle carries: put it beside "
                f"{template_path('arc_code')} and give its name"
            )
        rows = n_tasks * (plan.budget.n_predictions or 1000) * BYTES_PER_PREDICTION / 1e9
        disk = rows * len(plan.searches) + plan.rounds.adapter_gb
        if disk > 0.9 * OUTPUT_GB:
            found.append(
                f"predictions of {n_tasks} tasks and adapters may take {disk:.0f} GB, and Kaggle has "
                f"{OUTPUT_GB} for output; lower n_predictions or adapter_gb"
            )
        _, n_cards, gib = CARDS[self.gpu]
        cards = [Gpu(0, self.gpu, int(gib * GIB), int(gib * GIB))] * n_cards
        model = resolve_model(self.model)
        if problem := memory_problem(model.folder, plan.engine.max_length, plan.engine.options(), cards):
            found.append(f"{self.gpu}: {problem}")
        if self.wheels is not None:
            names = sorted(path.name for path in self.wheels.glob("*.whl"))
            tag = f"cp{self.python.replace('.', '')}"
            if not names:
                found.append(f"{self.wheels} holds no wheels")
            if others := [name for name in names if (own := _ONE_PYTHON.search(name)) and own[1] != tag]:
                found.append(f"{self.wheels}: not for Python {self.python} (--python): {some(others)}")
        return found


def write_bundle(bundle: KaggleBundle, folder: Path) -> Path:
    """Write OUT; it appears whole or not at all. Raises ArcnbError where it is there already."""
    model = resolve_model(bundle.model)
    adapter = resolve_adapter(adapter_name(bundle.adapter, bundle.model) or None, model)
    with new_folder(folder) as out:
        dataset, kernel = out / "dataset", out / "kernel"
        package = dataset / "package" / "arcnb"
        traces = shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints", out.name)
        shutil.copytree(Path(__file__).parents[2], package, ignore=traces)
        shutil.copytree(shipped(), package / "notebooks", ignore=traces, dirs_exist_ok=True)
        for path in notebooks_folder().glob("*.ipynb"):  # which somebody may have edited
            shutil.copy(path, package / "notebooks")
        shutil.copytree(model.folder, dataset / "model")
        if adapter is not None:
            shutil.copytree(adapter, dataset / "adapter")
        if bundle.wheels is not None:
            shutil.copytree(bundle.wheels, dataset / "wheels")
        for number, profile in enumerate(bundle.profiles):
            shutil.copy(profile, dataset / f"profile{number}.yaml")
        facts = {
            "python": bundle.python,
            "hours": bundle.hours,
            "parameters": bundle.parameters,
            "profiles": [f"profile{number}.yaml" for number in range(len(bundle.profiles))],
            "adapter": adapter is not None,
            "kernel": _kernel_version(),
        }
        write_whole(dataset / "bundle.json", json.dumps(facts, indent=1))
        title = {
            "title": f"{KERNEL}-bundle",
            "id": f"{bundle.user}/{KERNEL}-bundle",
            "licenses": [{"name": "other"}],
        }
        write_whole(dataset / "dataset-metadata.json", json.dumps(title, indent=1))
        kernel.mkdir()
        write_whole(kernel / f"{KERNEL}.ipynb", json.dumps(_kernel(), indent=1))
        about = {
            "id": f"{bundle.user}/{KERNEL}",
            "title": KERNEL,
            "code_file": f"{KERNEL}.ipynb",
            "language": "python",
            "kernel_type": "notebook",
            "is_private": True,
            "enable_gpu": True,
            "enable_internet": False,
            "machine_shape": CARDS[bundle.gpu][0],
            "dataset_sources": [title["id"]],
            "competition_sources": [bundle.competition],
            "kernel_sources": [],
            "model_sources": [],
        }
        write_whole(kernel / "kernel-metadata.json", json.dumps(about, indent=1))
    return folder


def rehearse(folder: Path, tasks: TaskSet, hours: float, work: Path) -> SubmissionScore:
    """Run a bundle's kernel as Kaggle would, on tasks whose test outputs it does not see, and score it.

    Without network where this system can take it away; with wheels, in an environment that holds nothing
    else. Files are left in `work`. Raises ArcnbError where the kernel ends with an error.
    """
    inputs, working = work / "input", work / "working"
    for path in (inputs, working):
        path.mkdir(parents=True)
    shutil.copytree(folder / "dataset", inputs / "bundle", copy_function=_linked)
    challenges = inputs / "rehearsal_test_challenges.json"
    write_arc_json(tasks, challenges)
    if solutions := solutions_path(challenges):  # not for the kernel's eyes
        solutions.unlink()
    cells = _cells(TEMPLATES / "kaggle_kernel.py")
    values = {
        "inputs": str(inputs),
        "working": str(working),
        "scratch": str(work / "scratch"),
        "hours_of_commit": hours,
        "tasks_of_commit": 0,
        "kernel": _kernel_version(),
    }
    given = "\n".join(f"{name} = {value!r}" for name, value in values.items())
    script = work / "kernel.py"
    write_whole(script, "\n\n".join([given, *cells[1:]]))
    environment = {
        name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "ARCNB_RUNS")
    }
    python = Path(sys.executable)
    if (folder / "dataset" / "wheels").is_dir():
        made = subprocess.run([python, "-m", "venv", work / "environment"], capture_output=True, text=True)
        if made.returncode:
            why = " ".join(f"{made.stdout} {made.stderr}".split())
            raise ArcnbError(f"no environment can be made for the rehearsal: {why[:600]}")
        python = work / "environment" / "bin" / "python"
    with open(work / "log.txt", "w") as log:
        command = [*offline(), python, script]
        code = subprocess.run(command, env=environment, stdout=log, stderr=log).returncode
    lines = (work / "log.txt").read_text(errors="replace").strip().splitlines() or ["it printed nothing"]
    if code or lines[-1].startswith("arcnb ended"):
        raise ArcnbError(f"the rehearsal failed: {' / '.join(lines[-4:])}; see {work / 'log.txt'}")
    return score_submission(json.loads((working / "submission.json").read_text()), tasks)


def offline() -> list[str]:
    """Words before a command that leave it no network; none where this system lets nobody take it away."""
    try:
        allowed = subprocess.run([*_OFFLINE, "true"], capture_output=True).returncode == 0
    except OSError:  # no unshare
        allowed = False
    return _OFFLINE if allowed else []


def _linked(source: str, target: str) -> None:
    """The file itself under another name: a model is not copied for a rehearsal, unless that is elsewhere."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _kernel_version() -> str:
    """Of what kernel and bundle expect of each other."""
    return hashlib.sha256((TEMPLATES / "kaggle_kernel.py").read_bytes()).hexdigest()[:12]


def _kernel() -> dict[str, Any]:
    """The kernel as a notebook, without outputs."""
    about = (TEMPLATES / "kaggle_kernel.md").read_text(encoding="utf-8")
    cells = [{"cell_type": "markdown", "id": "about", "metadata": {}, "source": about}]
    for number, source in enumerate(_cells(TEMPLATES / "kaggle_kernel.py")):
        metadata = {"tags": ["parameters"]} if number == 0 else {}
        source = source.replace('kernel = ""', f'kernel = "{_kernel_version()}"')
        cell = {"cell_type": "code", "id": f"cell{number}", "metadata": metadata, "source": source}
        cells.append(cell | {"execution_count": None, "outputs": []})
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def _cells(path: Path) -> list[str]:
    """The cells of a script in percent format."""
    parts = ("\n" + path.read_text(encoding="utf-8")).split("\n# %%")[1:]
    return [part.partition("\n")[2].strip() for part in parts]
