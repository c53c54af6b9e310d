"""Submit files from the templates of this folder: what is sent to a scheduler can be read and sent by
hand."""

import shlex
from pathlib import Path
from typing import Any

from arcnb.errors import ArcnbError
from arcnb.lab.clusters.environments import archive_path, environment_name
from arcnb.lab.clusters.jobs import ClusterJob
from arcnb.lab.runs.run import runs_root
from arcnb.lab.workspace import folders


def render(template: str, **values: Any) -> str:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("arcnb.lab.clusters"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["shell"] = lambda value: shlex.quote(str(value))
    return environment.get_template(template).render(**values)


def script_texts(job: ClusterJob, scheduler: str) -> dict[Path, str]:
    """What is to be written into runs.txt, one run folder a line, and task.sh, which starts one of them."""
    for folder in (job.folder, *(run.path for run in job.runs)):
        if set(str(folder)) & set("\n\r\"'%$`\\"):
            raise ArcnbError(
                f"{folder}: quotes, backticks, %, $, backslashes, line breaks in a path are too much to ask"
            )
    repository = folders.repository()
    packed = job.environment.packed
    binds = [runs_root(), repository, *(notebook.parent for notebook in job.notebooks)]
    text = render(
        "task.sh.jinja",
        job=job,
        scheduler=scheduler,
        runs_root=runs_root(),
        repository=repository,
        binds=list(dict.fromkeys(str(folder) for folder in binds if folder)),
        words=shlex.split(job.resources.serve),
        packed_name=environment_name(packed) if packed else "",
        packed_archive=archive_path(packed) if packed else "",
    )
    return {
        job.folder / "runs.txt": "".join(f"{run.path}\n" for run in job.runs),
        job.folder / "task.sh": text,
    }
