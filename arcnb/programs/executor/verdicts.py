"""From records to what the askers are told."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from arcnb.programs import wire
from arcnb.programs.executor.lanes import Ticket
from arcnb.programs.executor.limits import Execution


def execution_of(record: wire.Record, ticket: Ticket) -> Execution:
    """A final record as the first asker's execution."""
    return Execution(
        record.status,
        record.outputs if record.status == "ok" else None,
        record.error_type,
        record.error_message,
        record.error_line,
        record.seconds,
        record.cpu_seconds,
        record.memory_mb,
        ticket.askers[0].key,
    )


def compared(first: Execution, second: Execution) -> Execution:
    """The verdict after a second run on the inputs in reverse order.

    Out of time or memory it stays what it is: so ends a program near its limits, as alike as its runs are.
    """
    if second.status in ("timeout", "memory"):
        return second
    if second.status != "ok":
        message = f"a second run ended with {second.status}: {second.error_message or second.error_type}"
    else:
        pairs = zip(first.outputs, reversed(second.outputs), strict=True)
        differ = [n for n, (a, b) in enumerate(pairs, 1) if a.shape != b.shape or (a != b).any()]
        if not differ:
            return first
        message = f"a second run gave other outputs for inputs {', '.join(map(str, differ))}"
    return replace(
        first, status="nondeterministic", outputs=None, error_type="Nondeterministic", error_message=message
    )


def answer(ticket: Ticket, execution: Execution) -> None:
    """Tell everyone who asked, each with the key of its own job."""
    for key, deliver, *_ in ticket.askers:
        tell(deliver, execution if execution.key is key else replace(execution, key=key))


def tell(callback: Callable, what: Execution | BaseException) -> None:
    """What an asker's own code raises there is logged, as futures do, and keeps nobody from an answer."""
    try:
        callback(what)
    except BaseException:
        logging.getLogger(__name__).exception("exception calling the callback of a program")
