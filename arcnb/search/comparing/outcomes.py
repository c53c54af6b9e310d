"""What came of prediction sets, as the few flat numbers that manifests, sweeps and indexes show."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import TYPE_CHECKING

from arcnb.arc.scores.tables import Counted, aggregate
from arcnb.search.comparing.evaluation import curves

if TYPE_CHECKING:
    import pandas as pd


def outcomes(
    frames: Mapping[str, pd.DataFrame], tasks: Counted, stopped: Container[str] = ()
) -> dict[str, dict[str, float]]:
    """{set: its numbers}: solved of `of` tasks whose test outputs are known, pass@1, pass@k of the most
    predictions k of a task (shares, 0..1), short_tasks (those with fewer than k, which count with what they
    have; left out where none is), tokens (of completions).

    pass@k is left out where `curves` draws none: of sets that refine, learn or stop early.
    """
    drawn, found = curves(frames, tasks, stopped=stopped), {}
    for name, frame in frames.items():
        known = aggregate(frame, tasks)["is_correct"].dropna()
        numbers = {"solved": int(known.sum()), "of": len(known)} if len(known) else {}
        if len(known) and len(curve := drawn.get(name, ())):
            last = curve.iloc[-1]
            numbers |= {f"pass@{int(row.k)}": float(row["mean"]) for row in (curve.iloc[0], last)}
            numbers |= {"short_tasks": int(last.n_short)} if last.n_short else {}
        found[name] = numbers | {"tokens": int(frame["n_tokens"].fillna(0).sum())}
    return found
