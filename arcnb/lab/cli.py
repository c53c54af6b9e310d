"""The command line: run notebooks, look at runs.

    arcnb params 05                            # what notebooks/05_*.ipynb can be asked for
    arcnb run 03 -f cpu -p n_predictions 8     # notebooks/03_*.ipynb in a new run folder
    arcnb run --resume 20260101-120000-03      # the same folder and parameters, only the rest of the work
    arcnb sweep 05 --grid learning_rate=1e-5,2e-5 --name rates --jobs 2
    arcnb pipeline notebooks/pipelines/demo.yaml
    arcnb submit --on slurm 03 --shards 8 --gpus 1 --name eval
    arcnb status
    arcnb ls
    arcnb show 03_inference
    arcnb report RUN RUN -o index.html
    arcnb rm RUN

`arcnb run` prints the run folder, and nothing else, on standard output. It ends with 0 when the run is done,
1 when it failed, 2 when it could not start (notebook, parameter, run folder), 128 + signal when it was
stopped or killed (143 where only its trainer heard the signal). The commands are in arcnb.lab.commands.
"""

import argparse
import os
import signal
import sys

from arcnb.errors import ArcnbError
from arcnb.lab.commands import batch, cluster, runs, workspaces
from arcnb.lab.commands.options import say


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    if options.runs:
        os.environ["ARCNB_RUNS"] = options.runs  # notebooks look up earlier runs there, too
    try:
        return int(options.command(options))
    except ArcnbError as error:
        return say(error, 2)
    except KeyboardInterrupt:
        return say("interrupted before the notebook started", 128 + signal.SIGINT)
    except BrokenPipeError:  # `arcnb ls | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def parser() -> argparse.ArgumentParser:
    arcnb = argparse.ArgumentParser(
        prog="arcnb", description="Run notebooks and look at their runs.",
        epilog="`arcnb params 05` lists what notebook 05 can be asked for: `arcnb run 05 -p NAME VALUE`.",
    )  # fmt: skip
    commands = arcnb.add_subparsers(required=True, metavar="COMMAND")
    for group in (runs, batch, cluster, workspaces):
        group.add_commands(commands)
    return arcnb


if __name__ == "__main__":
    sys.exit(main())
