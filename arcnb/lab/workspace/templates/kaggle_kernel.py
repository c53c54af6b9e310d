# %% parameters
inputs = "/kaggle/input"  # datasets and the competition's files, somewhere below
working = "/kaggle/working"  # where Kaggle looks for submission.json
scratch = "/tmp/arcnb"  # packages
hours_of_commit = 0.2  # of a run that is not scored
tasks_of_commit = 4
kernel = ""  # the version of this kernel, which the bundle must be of
# %%
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

started = time.monotonic()
submission = Path(working, "submission.json")
padding = {"attempt_1": [[0]], "attempt_2": [[0]]}


def submit(found):
    """Whole or not at all: the file before stays where this is stopped."""
    part = submission.with_name(".submission.json.part")
    part.write_text(json.dumps(found))
    part.replace(submission)


challenges = min(Path(inputs).rglob("*test_challenges.json"), default=None)
if challenges is None:
    sys.exit(f"no *test_challenges.json below {inputs}: add the competition's data to this notebook")
tasks = json.loads(challenges.read_text())
submit({name: [padding] * len(task["test"]) for name, task in tasks.items()})
print(f"{challenges}: {len(tasks)} tasks; {submission} is padded so far")
# %%
description = next(Path(inputs).rglob("bundle.json"), None)
if description is None:
    sys.exit(f"no bundle.json below {inputs}: add the data set of `arcnb bundle kaggle` to this notebook")
bundle, made = description.parent, json.loads(description.read_text())
if made.get("kernel") != kernel:
    sys.exit("the bundle is of another version than this kernel: send both again, of one `arcnb bundle`")
wheels, site = bundle / "wheels", Path(scratch, "site")
if wheels.is_dir():
    version = platform.python_version()
    if made["python"] != ".".join(version.split(".")[:2]):
        sys.exit(f"the wheels are for Python {made['python']}, this is {version}: make the bundle anew")
    packages = [str(path) for path in sorted(wheels.glob("*.whl"))]
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-index",
        "--no-deps",
        "--target",
        str(site),
        *packages,
    ]
    if subprocess.run(install).returncode:
        sys.exit("the wheels of the bundle cannot be installed; pip says above why")
places = [str(bundle / "package"), str(site), os.environ.get("PYTHONPATH", "")]
environment = os.environ | {
    "PYTHONPATH": os.pathsep.join(filter(None, places)),
    "ARCNB_RUNS": str(Path(working, "runs")),
    "HF_HUB_OFFLINE": "1",
}
scored = bool(os.environ.get("KAGGLE_IS_COMPETITION_RERUN"))
hours = made["hours"] - (time.monotonic() - started) / 3600 if scored else hours_of_commit
given = made["parameters"] | {
    "tasks": str(challenges),
    "task_ids": "",
    "model": str(bundle / "model"),
    "adapter": str(bundle / "adapter") if made["adapter"] else "",
    "submission": True,
    "submission_file": str(submission),
    "time_budget_hours": round(hours, 4),
    "n_tasks": 0 if scored else tasks_of_commit,
}
command = [
    sys.executable,
    "-m",
    "arcnb.lab.cli",
    "run",
    str(bundle / "package" / "arcnb" / "notebooks" / "07_search_and_learn.ipynb"),
]
command += [word for profile in made["profiles"] for word in ("-f", str(bundle / profile))]
command += [
    word
    for name, value in given.items()
    for word in ("-p", name, value if isinstance(value, str) else json.dumps(value))
]
print(f"{'scored run' if scored else 'commit'}: {hours:.2f} hours")
code = subprocess.run(command, env=environment, cwd=working).returncode
# %%
found = json.loads(submission.read_text())
if not scored and set(found) != set(tasks):  # of a commit, which works on a few tasks
    found = {name: found.get(name, [padding] * len(task["test"])) for name, task in tasks.items()}
    submit(found)
outputs = [entry for entries in found.values() for entry in entries]
padded = sum(grid == [[0]] for entry in outputs for grid in entry.values())
attempts = f"{padded} of {2 * len(outputs)} attempts padded"
print(f"submission.json: {len(found)} tasks, {len(outputs)} outputs, {attempts}")
if code:
    print(f"arcnb ended with {code}: what had been found until then is in the file")
