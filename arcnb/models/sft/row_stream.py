"""Rows for fine-tuning made while the training runs: blocks of them in a folder, read in order.

    with row_stream(tasks, builder, run.path / "rows", plan) as stream:
        train_sft(sft_plan, stream, run.path)

One process makes the rows, ahead of the training; any number of processes read them, each all of them, and
take their share, also on other machines that share the disk. A block is a Parquet file, complete once it has
its name, so a training that resumes reads what is there at once, while the maker works its way back to where
it was: everything in a block derives from the seed. Memory does not grow with the number of rows.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

import psutil

from arcnb.arc.seeds import rng
from arcnb.arc.tasks.task import Task
from arcnb.errors import ArcnbError
from arcnb.machine.beats import LOST_SECONDS, beating, text_in
from arcnb.machine.files import new_file, remove_abandoned, write_whole
from arcnb.machine.processes import ending_with_parent, leave, pid_place
from arcnb.machine.progress import progress
from arcnb.machine.reading import named_errors, read_object
from arcnb.models.registry import only_tokenise
from arcnb.models.sft.rows import CHUNK, RowBuilder, RowTable, packed_rows

END = "end"  # file that says: no block follows
FAILED = "failed.txt"
MAKER = "maker.pid"  # its pid, and the place where that has a meaning
ALIVE = "maker.alive"  # its signs of life, for everywhere else
COUNTS = "counts.json"
MADE_OF = "made_of.txt"  # what the blocks of the folder were made of
ENOUGH = 2000  # tasks or rows in a row without use before the maker gives up
GRACE = 20  # seconds the maker gets to end its processes


@dataclass(frozen=True)
class RowPlan:
    """What becomes of the rows.

    n_rows: rows to make in all, packed ones where packing. block_rows: rows that are shuffled (and packed)
    together, before packing. batch: rows of similar length are put side by side, so many at a time. workers:
    processes that tokenise.
    """

    n_rows: int
    max_length: int
    packing: bool = False
    block_rows: int = 2048
    batch: int = 1
    workers: int = 1


class RowStream:
    """A folder of row blocks, some still to come. `dataset` is what a trainer reads."""

    def __init__(self, folder: Path):
        self.folder = Path(folder)

    def dataset(self):
        """A datasets.IterableDataset of input_ids, labels (and seq_lengths); every iteration starts anew."""
        from datasets import IterableDataset

        return IterableDataset.from_generator(read_rows, gen_kwargs={"folder": str(self.folder)})

    def counts(self) -> dict:
        """rows, tokens, too_long (task id -> tokens), n_without_program, n_reserved: so far."""
        path = self.folder / COUNTS
        return read_object(path) if path.is_file() else _no_counts()

    def lengths(self) -> list[int]:
        """Tokens of the rows of all blocks so far."""
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        columns = (pq.read_table(path, columns=["input_ids"])["input_ids"] for path in _blocks(self.folder))
        return [n for column in columns for n in pc.list_value_length(column).to_pylist()]


@contextmanager
def row_stream(
    tasks: Iterable[tuple[Task | None, int]], builder: RowBuilder, folder: Path, plan: RowPlan
) -> Iterator[RowStream]:
    """The stream, with its maker at work in a process of its own until the end of the context.

    tasks: (task, how often it was seen before), picklable, and iterated there alone; those without a program
    and those left out, in whose place None stands, are counted and passed over. Blocks of an earlier try are
    taken over where its tasks, builder and plan have the same text; damaged ones are made again. ArcnbError
    when no row can be made; later errors of the maker are raised in the readers.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    remove_abandoned(folder)
    made_of = repr((tasks, builder, replace(plan, n_rows=0, workers=1)))
    others = text_in(folder / MADE_OF) != made_of
    for block in _blocks(folder):
        if others or not _is_whole(block):
            block.unlink()
    if others:
        (folder / COUNTS).unlink(missing_ok=True)
    write_whole(folder / MADE_OF, made_of)
    for name in (FAILED, MAKER, ALIVE, END):  # the end of an earlier try may come before the one now wanted
        (folder / name).unlink(missing_ok=True)
    maker = get_context("spawn").Process(target=_make, args=(tasks, builder, folder, plan, os.getpid()))
    maker.start()
    try:
        write_whole(folder / MAKER, f"{maker.pid} {pid_place()}")
        with progress(None, "making the first rows", 1, "block") as bar:
            next(read_rows(str(folder)))
            bar.update(1)
        yield RowStream(folder)
    finally:
        _end(maker)


def read_rows(folder: str) -> Iterator[dict]:
    """The rows of all blocks, in order, waiting for those to come. ArcnbError when their maker failed."""
    import pyarrow.parquet as pq

    root = Path(folder)
    number, maker = 0, None
    while True:
        path = _block(root, number)
        ended = (root / END).exists()
        if path.exists():
            with named_errors(path):
                table = pq.read_table(path)
            for values in zip(*(column.to_numpy() for column in table.columns), strict=True):
                arrays = (value.copy() for value in values)  # Arrow's own are read-only
                yield dict(zip(table.column_names, arrays, strict=True))
            number, maker = number + 1, None
        elif ended:
            return
        else:
            maker = maker or _Maker(root)
            maker.check()
            time.sleep(0.1)


def _block(root: Path, number: int) -> Path:
    return root / f"{number:05}.parquet"


def _blocks(root: Path) -> list[Path]:
    return sorted(root.glob("[0-9]*.parquet"))


def _is_whole(block: Path) -> bool:
    """Whether a block can be opened: Parquet ends with what says where everything stands."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        pq.read_metadata(block)
    except (OSError, pa.ArrowException):
        return False
    return True


class _Maker:
    """The process that makes the rows, as whoever waits for a block hears of it, from then on."""

    def __init__(self, root: Path):
        self._root = root
        self._sign, self._heard = "", time.monotonic()

    def check(self) -> None:
        """ArcnbError when it failed or has died."""
        if sentence := text_in(self._root / FAILED):
            raise ArcnbError(sentence)
        lost = self._lost()
        if lost and not (self._root / FAILED).exists() and not (self._root / END).exists():  # ended since
            raise ArcnbError(f"the process that makes the rows in {self._root} {lost}")

    def _lost(self) -> str:
        """What became of it; nothing while it lives. Elsewhere another process may have its pid."""
        pid, _, place = text_in(self._root / MAKER).partition(" ")
        if place and place == pid_place():
            return "" if _is_running(pid) else "has died"
        sign, now = text_in(self._root / ALIVE), time.monotonic()
        if sign != self._sign:
            self._sign, self._heard = sign, now
        silent = now - self._heard
        return f"is lost: no sign of it for {silent:.0f} s" if silent > LOST_SECONDS else ""


def _is_running(pid: str) -> bool:
    """Whether there is such a process on this machine, other than as a zombie of its parent."""
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(int(pid)).status() != psutil.STATUS_ZOMBIE
    return False


# --------------------------------------------------------------------------- the maker


def _make(tasks, builder: RowBuilder, root: Path, plan: RowPlan, parent: int) -> None:
    only_tokenise()
    os.environ["HF_DATASETS_DISABLE_PROGRESS_BARS"] = "1"
    os.setsid()  # so that it can be ended with everything it started
    signal.signal(signal.SIGTERM, lambda *_: os.killpg(0, signal.SIGKILL))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ending_with_parent(parent=parent)()
    with beating(root / ALIVE):
        try:
            _write_blocks(tasks, builder, root, plan)
        except ArcnbError as error:  # says all that there is to say
            write_whole(root / FAILED, str(error))
            sys.exit(1)
        except Exception as error:
            write_whole(root / FAILED, f"making rows: {type(error).__name__}: {error}")
            raise
    leave()


def _write_blocks(tasks, builder: RowBuilder, root: Path, plan: RowPlan) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    counts = _no_counts()
    known = RowStream(root).counts()["rows"]  # of an earlier try, which stand until there are more
    for number, table in enumerate(_tables(tasks, builder, plan, counts)):
        if plan.packing:
            rows = packed_rows(table.dataset(), plan.max_length).with_format("arrow")[:]
        else:  # without the package datasets, whose import takes longer than a block
            rows = pa.table(table.columns).drop_columns("length")
        counts["rows"] += len(rows)
        counts["tokens"] += sum(table.columns["length"])
        if not _block(root, number).exists():  # else an earlier try has made the block
            with new_file(_block(root, number)) as file:
                ordered = rows.take(_order(rows, plan, builder.seed, number))
                pq.write_table(ordered, file, compression="zstd")
        if counts["rows"] > known:
            write_whole(root / COUNTS, json.dumps(counts))
        if counts["rows"] >= plan.n_rows:
            (root / END).touch()  # before the tasks' processes are ended, which takes its time
            return
    if counts["rows"] < plan.n_rows:
        raise ArcnbError(f"the tasks ended after {counts['rows']:,} of {plan.n_rows:,} rows")


def _tables(tasks, builder: RowBuilder, plan: RowPlan, counts: dict) -> Iterator[RowTable]:
    """Tables of block_rows rows; the last may have fewer."""
    table = RowTable(plan.max_length, counts["too_long"])
    fruitless = 0
    drawn = _learnable(tasks, counts)
    for rows in builder.rows(drawn, plan.workers, min(CHUNK, plan.block_rows)):
        for row in rows:
            fruitless = 0 if table.add(*row) else fruitless + 1
            if len(table) == plan.block_rows:
                yield table
                table = RowTable(plan.max_length, counts["too_long"])
        if fruitless > ENOUGH:
            raise ArcnbError(
                f"{fruitless:,} rows in a row exceed max_length={plan.max_length}; "
                f"the shortest has {min(counts['too_long'].values())}"
            )
    if len(table):
        yield table


def _no_counts() -> dict:
    return {"rows": 0, "tokens": 0, "too_long": {}, "n_without_program": 0, "n_reserved": 0}


def _learnable(tasks, counts: dict) -> Iterator[tuple[int, Task, int]]:
    index = fruitless = 0
    for task, number in tasks:
        if task is not None and task.program:
            yield index, task, number
            index, fruitless = index + 1, 0
            continue
        fruitless += 1
        counts["n_reserved" if task is None else "n_without_program"] += number == 0
        if fruitless > ENOUGH:
            raise ArcnbError(
                f"tasks: none of {fruitless:,} in a row can be learnt from; so far "
                f"{counts['n_without_program']:,} different ones have no program (rearc, dsl and BARC-style "
                f"rows have some), {counts['n_reserved']:,} are reserved (train_on_held_out=True takes them) "
                "or eval tasks"
            )


def _order(rows, plan: RowPlan, seed: int, number: int) -> list[int]:
    """A block's rows in runs of similar length, the runs in an order drawn from (seed, block)."""
    random = rng(seed, "rows", number)
    lengths = [len(ids) for ids in rows["input_ids"]]
    shuffled = [int(i) for i in random.permutation(len(lengths))]
    if plan.packing or plan.batch == 1:
        return shuffled
    ranked = sorted(shuffled, key=lambda i: lengths[i])
    runs = [ranked[start : start + plan.batch] for start in range(0, len(ranked), plan.batch)]
    return [i for run in random.permutation(len(runs)) for i in runs[int(run)]]


def _end(maker) -> None:
    """End the maker and all it started."""
    if maker.is_alive():
        with suppress(ProcessLookupError):
            maker.terminate()
        maker.join(GRACE)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(maker.pid, signal.SIGKILL)
    maker.join()
