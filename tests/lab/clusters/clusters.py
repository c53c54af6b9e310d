"""What the tests of the schedulers share: a patient notebook, submitting it, and looking at its runs."""

import json

from arcnb.lab import cli

# Waits for a file called `go` beside the run folders; when it is stopped it saves, and afterwards goes on.
PATIENT = """
import os, time
from arcnb.machine.progress import progress
(run.path / 'started').write_text(os.environ['ARCNB_JOB'])
try:
    for _ in progress(range(3000), 'waiting', unit='turn'):
        if label == 'quick' or (run.path.parent / 'go').exists() or (run.path / 'saved').exists():
            break
        time.sleep(0.1)
except KeyboardInterrupt:
    (run.path / 'saved').write_text('x')
    raise
"""
RECORD = "run.record({'n': n, 'gpu': os.environ.get('CUDA_VISIBLE_DEVICES', 'none')}, artifacts=['started'])"
SMALL = ["--cpus", "1", "--memory", "1G", "--time", "10m"]


def submit_to(cluster: str, *arguments, options=SMALL) -> int:
    """Exit status of `arcnb submit`."""
    return cli.main(["submit", "--on", cluster, *map(str, arguments), *options])


def status(capsys, *arguments) -> list[str]:
    """Lines of `arcnb status`."""
    capsys.readouterr()
    assert cli.main(["status", *arguments]) == 0
    return capsys.readouterr().out.splitlines()


def started(run) -> bool:
    """Whether the run's notebook has begun to wait."""
    return (run.path / "started").is_file()


def task_of(run) -> str:
    """The scheduler's own name of the run."""
    return json.loads((run.path / "job" / "job.json").read_text())["task"]
