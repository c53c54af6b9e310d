"""Rows for supervised fine-tuning out of conversations: all turns so far are read, the last answer is learnt.

    rows = conversation_rows(run / "sft.parquet", model, max_tokens=4096)
    train_sft(model, rows.dataset, ...)

The file is that of notebook 04: columns task_id, messages, prefix, answer. Works with any model's chat
template, since tokens are made here.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from arcnb.models.chat import answer_ids, render
from arcnb.models.registry import ModelPath, load_tokenizer
from arcnb.models.sft_rows import RowTable, SftError, SftRows


def conversation_rows(path: str | Path, model: ModelPath, *, max_tokens: int) -> SftRows:
    """Tokenised rows `input_ids, labels, length`; labels count the last answer and its end token only.

    Rows beyond max_tokens are left out and counted. SftError when none is left or the file is another one.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        found = pq.read_table(path, columns=["task_id", "messages", "prefix", "answer"]).to_pylist()
    except (OSError, pa.ArrowException) as error:
        first = str(error).strip().splitlines()[0]
        raise SftError(f"{path} is no file of conversations to learn from ({first})") from None
    tokenizer = load_tokenizer(model)
    table = RowTable(max_tokens, {})
    for row in found:
        read = render(tokenizer, row["messages"], row["prefix"])
        learnt = answer_ids(tokenizer, row["answer"])
        table.add(row["task_id"], np.array(read + learnt, dtype=np.int32), len(read))
    if not len(table):
        too_long = table.too_long
        longest = f"; the shortest has {min(too_long.values())} tokens" if too_long else ""
        raise SftError(f"{path}: none of {len(found)} conversations fits max_tokens={max_tokens}{longest}")
    return SftRows(table.dataset(), table.too_long)
