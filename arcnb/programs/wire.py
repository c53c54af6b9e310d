"""The bytes that executor, server and sandboxed child exchange: structs and raw cells, never pickles.

Two messages exist. A *task* goes from the executor to a server: limits, then programs with their inputs. A
*record* comes back: the verdict on one program, with its outputs. A record is written by the child that ran
the program, so whoever reads one treats every byte as forged until ``parse_record`` has checked it.

    task    u32 length | TASK header | per job: u32 program length, u16 inputs, program, inputs as grids
    record  RECORD header | error type | error message | outputs as grids
    grid    u8 height | u8 width | height * width cells, one byte each
    reply   u32 length | u8 what (0 records, 1 records and the task is done, 2 hello) | records or text
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

LENGTH = struct.Struct("<I")
TASK = struct.Struct("<BHddddIIq")  # Orders
JOB = struct.Struct("<IH")
# Payload length after this header, job index, status, outputs, error line (0 = none),
# wall seconds, cpu seconds, memory MB, error type bytes, error message bytes
RECORD = struct.Struct("<IHBHIddfHH")

_SIZE, _INDEX, _STATUS = struct.Struct("<I"), struct.Struct("<4xH"), struct.Struct("<6xB")

ENTRY = "transform"  # the function that a program has to define
SHARED, ALONE = 0, 1  # lanes
RECORDS, DONE, HELLO = 0, 1, 2  # replies

# Verdicts that travel as one byte; the last three are orders to the executor, not verdicts.
STATUS_CODES = (
    "ok",
    "unsafe",
    "syntax",
    "error",
    "timeout",
    "memory",
    "output_limit",
    "invalid_output",
    "crashed",
    "lost",  # the process died through no fault of the program: run it again
    "isolate",  # it harmed the process that it shared: run it in one of its own
    "slow",  # takes longer than its lane waits: run it after the quick ones
)
ORDERS = STATUS_CODES.index("lost")
CODE_OF_STATUS = {name: code for code, name in enumerate(STATUS_CODES)}

MAX_TYPE, MAX_MESSAGE, MAX_SIDE = 100, 300, 30
MAX_LINE = 2**31 - 1  # as prediction sets keep it
DIGITS = bytes(range(10))


class Orders(NamedTuple):
    """How a task's programs are to be run.

    A program is handed back as slow after ``patience`` seconds of processor time or ``wall_patience`` seconds
    of wall time (0: never).
    """

    lane: int
    n_jobs: int
    seconds: float
    seconds_per_input: float
    patience: float
    wall_patience: float
    memory_mb: int
    output_bytes: int
    seed: int


class WireError(ValueError):
    """Bytes that are no record; the message says what is wrong."""


@dataclass(slots=True)
class Record:
    """One verdict as it crosses the wire; ``outputs`` are uint8 grids."""

    status: str
    outputs: tuple[np.ndarray, ...] = ()
    error_type: str | None = None
    error_message: str | None = None
    error_line: int | None = None
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    memory_mb: float = 0.0


def encode_job(program: bytes, grids: list[bytes]) -> bytes:
    """One job of a task; ``grids`` are encoded already."""
    return JOB.pack(len(program), len(grids)) + program + b"".join(grids)


def encode_task(orders: Orders, jobs: list[bytes]) -> bytes:
    """A task with its length in front; ``jobs`` come from ``encode_job``."""
    body = b"".join([TASK.pack(*orders), *jobs])
    return LENGTH.pack(len(body)) + body


def decode_task(data: bytearray) -> tuple[Orders, list[tuple[bytes, list[tuple[int, int, bytes]]]]]:
    """A task (its length already taken off): how to run, and programs with inputs as height, width, cells."""
    orders = Orders._make(TASK.unpack_from(data))
    jobs, at = [], TASK.size
    for _ in range(orders.n_jobs):
        program_length, n_inputs = JOB.unpack_from(data, at)
        at += JOB.size
        program = bytes(data[at : at + program_length])
        at += program_length
        grids = []
        for _ in range(n_inputs):
            height, width = data[at], data[at + 1]
            end = at + 2 + height * width
            grids.append((height, width, bytes(data[at + 2 : end])))
            at = end
        jobs.append((program, grids))
    return orders, jobs


def encode_record(
    index: int,
    status: str,
    outputs: list[bytes] | tuple = (),
    error_type: str | None = None,
    error_message: str | None = None,
    error_line: int | None = None,
    seconds: float = 0.0,
    cpu_seconds: float = 0.0,
    memory_mb: float = 0.0,
) -> bytes:
    """A verdict as bytes; ``outputs`` are encoded grids, texts are cut to what a record may hold."""
    kind = (error_type or "")[:MAX_TYPE].encode("utf-8", "replace")[:MAX_TYPE]
    message = (error_message or "")[:MAX_MESSAGE].encode("utf-8", "replace")[:MAX_MESSAGE]
    payload = b"".join([kind, message, *outputs])
    return (
        RECORD.pack(
            len(payload),
            index,
            CODE_OF_STATUS[status],
            len(outputs),
            min(error_line or 0, 0xFFFFFFFF),
            seconds,
            cpu_seconds,
            memory_mb,
            len(kind),
            len(message),
        )
        + payload
    )


def end_of_record(data: bytes | bytearray, at: int = 0) -> int:
    """Where the record at ``data[at:]`` claims to end; beyond the data if its header is not all there."""
    if len(data) - at < RECORD.size:
        return at + RECORD.size
    return at + RECORD.size + _SIZE.unpack_from(data, at)[0]


def is_framed(data: bytes | bytearray) -> bool:
    """Whether ``data`` is exactly as long as the record in it claims."""
    return len(data) >= RECORD.size and end_of_record(data) == len(data)


def is_verdict(data: bytes | bytearray) -> bool:
    """Whether a record holds a verdict, not an order to the executor, which is not a program's to give."""
    return _STATUS.unpack_from(data)[0] < ORDERS


def index_of_record(data: bytes | bytearray, at: int = 0) -> int:
    """The job that a record claims to be about."""
    return _INDEX.unpack_from(data, at)[0]


def restamp(data: bytearray, seconds: float, cpu_seconds: float, memory_mb: float) -> bytes:
    """A child's record as the first of its task, with the measurements that its parent vouches for."""
    size, _, code, n_outputs, line, _, _, _, n_kind, n_message = RECORD.unpack_from(data)
    RECORD.pack_into(
        data, 0, size, 0, code, n_outputs, line, seconds, cpu_seconds, memory_mb, n_kind, n_message
    )
    return bytes(data)


def printable(text: bytes | str, longest: int) -> str:
    """A text that any file and terminal takes, whoever wrote it; line ends and tabs stay.

    Control characters, terminal escapes and marks that reorder or hide text come back as escapes (\\x1b),
    lone surrogates as question marks.
    """
    if isinstance(text, str):
        text = text.encode("utf-8", "replace")
    characters = text.decode("utf-8", "replace")
    if not characters.isprintable():
        characters = "".join(
            c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in characters
        )
    return characters[:longest]


def measurements(data: bytes, at: int = 0) -> tuple[float, float, float]:
    """Seconds, processor seconds and MB of the record at ``data[at:]``: `restamp` wrote them, no program."""
    return RECORD.unpack_from(data, at)[5:8]


def parse_record(data: bytes, n_inputs: int) -> Record:
    """The one record that ``data`` holds; raises ``WireError`` unless every byte of it is in order.

    Outputs are one an input, or none of what is not "ok"; they are checked for 1..30 sides, cells 0..9 and
    exact length, and come back read-only.
    """
    if not is_framed(data):
        raise WireError(f"{len(data)} bytes are no record")
    _, _, code, n_outputs, line, seconds, cpu, memory, n_kind, n_message = RECORD.unpack_from(data)
    start = RECORD.size + n_kind + n_message
    if code >= len(STATUS_CODES) or n_kind > MAX_TYPE or n_message > MAX_MESSAGE or start > len(data):
        raise WireError(f"record header out of range (status {code}, texts {n_kind} and {n_message})")
    if line > MAX_LINE:
        raise WireError(f"line {line} is in no program")
    if n_outputs != (n_inputs if STATUS_CODES[code] == "ok" else 0):
        raise WireError(f"{n_outputs} outputs for {n_inputs} inputs")
    texts = data[RECORD.size : start]
    outputs = []
    for number in range(n_outputs):
        if start + 2 > len(data):
            raise WireError(f"output {number} is missing")
        height, width = data[start], data[start + 1]
        stop = start + 2 + height * width
        if not (0 < height <= MAX_SIDE and 0 < width <= MAX_SIDE) or stop > len(data):
            raise WireError(f"output {number} claims {height}x{width}")
        cells = data[start + 2 : stop]
        if cells.translate(None, DIGITS):
            raise WireError(f"output {number} holds a cell outside 0..9")
        outputs.append(np.frombuffer(cells, np.uint8).reshape(height, width))
        start = stop
    if start != len(data):
        raise WireError(f"record has {len(data) - start} bytes left over")
    return Record(
        STATUS_CODES[code],
        tuple(outputs),
        printable(texts[:n_kind], MAX_TYPE) if n_kind else None,
        printable(texts[n_kind:], MAX_MESSAGE) if n_message else None,
        line or None,
        seconds,
        cpu,
        memory,
    )
