"""The papermill engine of arcnb: `arcnb run` uses it, and so does `papermill --engine arcnb`.

papermill's own engine cannot be trusted with a night's work: after a kernel died or an interrupt it marks
cells as completed that never ran, it ends on SIGTERM without telling the kernel, it writes its output in
place and only warns about an unknown parameter. This one

* refuses unknown and ill-typed parameters before the kernel starts (arcnb.lab.notebooks.parameters);
* passes SIGTERM, SIGINT and SIGHUP on: the running cell sees KeyboardInterrupt and may save what it has;
  after a grace time, or at a second signal some seconds later, the kernel and everything it started are
  killed (arcnb.lab.execution.stopping);
* tells the truth: manifest.json and the executed notebook say done, failed, preempted or killed, with the
  cell and the cause, and a beating heartbeat.json says that a run lives (arcnb.lab.execution.execute,
  arcnb.lab.runs.heartbeat);
* writes the executed notebook whole or not at all, at every cell and every few seconds within one.
"""

import sys
from pathlib import Path
from typing import Any

if "papermill" not in sys.modules:
    # papermill imports this module by its entry point while it is being imported itself. Whoever comes here
    # first therefore steps aside, lets papermill do that, and gets the module it made.
    del sys.modules[__name__]
    import papermill  # noqa: F401
else:
    from papermill.engines import NBClientEngine

    from arcnb.lab.execution.stopping import GRACE_SECONDS

    class ArcnbEngine(NBClientEngine):
        """See the module; the parameters of `execute_notebook` beyond papermill's are the engine's own."""

        @classmethod
        def execute_notebook(
            cls,
            nb: Any,
            kernel_name: str,
            output_path: str | None = None,
            run_folder: str | None = None,
            grace_seconds: float = GRACE_SECONDS,
            **settings: Any,
        ) -> Any:
            """Check the parameters, make a run folder unless `run_folder` names one, execute.

            Raises ArcnbError before the kernel starts, RunStopped for a run that was
            preempted or killed; for a failing cell papermill raises PapermillExecutionError after this
            returns.
            """
            from arcnb.lab.execution.execute import execute
            from arcnb.lab.notebooks.parameters import check_parameters, default_values, notebook_parameters
            from arcnb.lab.runs.run import Run, new_run, run_name

            source = Path(str(settings.pop("input_path", None) or "notebook.ipynb"))
            declared = notebook_parameters(nb, source.name)
            given = check_parameters(nb.metadata.papermill.get("parameters", {}), declared, source.name)
            if run_folder is None:
                values = default_values(declared) | given
                notebook = {"path": str(source.absolute()), "sha256": None}
                run = new_run(run_name(source.stem), values, notebook, owner="engine", command=sys.argv)
            else:
                run = Run(Path(run_folder))
            settings["timeout"] = settings.pop("execution_timeout", None)
            settings["startup_timeout"] = settings.pop("start_timeout", 60)
            return execute(nb, kernel_name, run, output_path, grace_seconds, **settings)
