"""Rows for supervised fine-tuning out of conversations: all turns so far are read, the last answer is learnt.

    rows = conversation_rows(run / "sft.parquet", model, max_length=4096)
    train_sft(model, rows.dataset, ...)

The file is that of notebook 04: columns task_id, messages, prefix, answer. Works with any model's chat
template, since tokens are made here.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from arcnb.errors import ArcnbError
from arcnb.models.prompts.chat import answer_ids, render
from arcnb.models.registry import ModelPath, load_tokenizer
from arcnb.models.sft.rows import RowTable, SftRows

COLUMNS = ("task_id", "messages", "prefix", "answer")


def conversations_problem(path: str | Path) -> str | None:
    """Why nothing can be learnt from this file, as a sentence; None where its columns are right."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        there = pq.read_schema(path).names
    except (OSError, pa.ArrowException) as error:
        first = str(error).strip().splitlines()[0]
        return f"{path} is no file of conversations to learn from ({first})"
    missing = [name for name in COLUMNS if name not in there]
    if missing == ["answer"]:
        return (
            f"{path} is a refine.parquet, whose conversations have no answer yet: it is for "
            "refine_conversations of notebook 05; sft_conversations takes the sft.parquet beside it"
        )
    if missing:
        return f"{path} is no file of conversations to learn from (it has no {', '.join(missing)})"
    return None


def conversation_rows(path: str | Path, model: ModelPath, *, max_length: int) -> SftRows:
    """Tokenised rows `input_ids, labels, length`; labels count the last answer and its end token only.

    Rows beyond max_length are left out and counted. ArcnbError when none is left or the file is another one.
    """
    import pyarrow.parquet as pq

    if problem := conversations_problem(path):
        raise ArcnbError(problem)
    found = pq.read_table(path, columns=list(COLUMNS)).to_pylist()
    tokenizer = load_tokenizer(model)
    table = RowTable(max_length, {})
    for row in found:
        read = render(tokenizer, row["messages"], row["prefix"])
        learnt = answer_ids(tokenizer, row["answer"])
        table.add(row["task_id"], np.array(read + learnt, dtype=np.int32), len(read))
    if not len(table):
        too_long = table.too_long
        longest = f"; the shortest has {min(too_long.values())} tokens" if too_long else ""
        raise ArcnbError(f"{path}: none of {len(found)} conversations fits max_length={max_length}{longest}")
    return SftRows(table.dataset(), table.too_long)
