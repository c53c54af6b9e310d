"""Files of conversations, Parquet or JSON lines: `refine.parquet` and `sft.parquet` of notebook 04."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from arcnb.errors import ArcnbError
from arcnb.machine.reading import read_rows, text_of, unpacked
from arcnb.plans import refusals

_OTHER = {
    "answer": "a refine.parquet, whose conversations have no answer yet: it is for refine_conversations of "
    "notebook 05; sft_conversations takes the sft.parquet beside it",
}


def read_conversations(
    path: str | Path, texts: Sequence[str], others: Sequence[str] = ()
) -> Iterator[tuple[str, dict]]:
    """(place, row) of each conversation: `messages`, each with a role and a content, `prefix` ("" where none
    is given), and the named fields, of which `texts` hold text. ArcnbError names file, row and field.
    """
    for place, row in read_rows(path):
        if missing := [name for name in ("messages", *texts, *others) if name not in row]:
            kind = _OTHER.get(
                ", ".join(missing), f"no file of such conversations: it has no {', '.join(missing)}"
            )
            raise ArcnbError(f"{path} is {kind}")
        messages = unpacked(row["messages"], f"{place}: messages")
        if not isinstance(messages, list) or not messages:
            raise ArcnbError(f"{place}: messages is no list of messages")
        for number, message in enumerate(messages):
            where = f"{place}: message {number}"
            if not isinstance(message, dict):
                raise ArcnbError(f"{where} is {type(message).__name__}, not an object with role and content")
            text_of(message, "role", where), text_of(message, "content", where)
        said = {name: text_of(row, name, place) for name in texts}
        prefix = text_of(row, "prefix", place, optional=True) or ""
        yield place, {**row, **said, "messages": messages, "prefix": prefix}


def conversation_problems(
    parameter: str, path: str, texts: Sequence[str], others: Sequence[str] = ()
) -> list[str]:
    """What is wrong with the file that a parameter names, by its first row, a sentence each."""
    return [f"{parameter}: {said}" for said in refusals(next, read_conversations(path, texts, others), None)]
