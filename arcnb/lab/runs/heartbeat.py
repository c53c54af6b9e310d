"""heartbeat.json: a small file that a living run rewrites every few seconds, so that anyone who sees the
folder (`arcnb ls`, a login node) knows that it lives and how far it is. It goes away when the run ends
properly."""

import contextlib
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from arcnb.errors import ArcnbError
from arcnb.lab.runs.manifest import BEAT, now, plain
from arcnb.machine.files import age_of, write_whole
from arcnb.values import misfit

HEARTBEAT = "heartbeat.json"
HEARTBEAT_SECONDS = 5.0


def read_heartbeat(folder: Path) -> dict[str, Any] | None:
    """The last heartbeat with its `age` in seconds (see `age_of`), or None."""
    try:
        path = folder / HEARTBEAT
        beat = json.loads(path.read_text(encoding="utf-8"))
        return None if misfit(beat, BEAT) else beat | {"age": age_of(path)}
    except (OSError, ValueError, RecursionError):
        return None


def place_text(beat: dict[str, Any]) -> str:
    """'cell 5/14 (Generate)' of a heartbeat; nothing for a run that no engine looks after."""
    cell = beat.get("cell")
    title = f" ({cell['title']})" if cell and cell["title"] else ""
    return f"cell {cell['index']}/{cell['of']}{title}" if cell else ""


class Heartbeat(threading.Thread):
    """Calls `facts` and writes its dictionary every HEARTBEAT_SECONDS until `finish`.

    A beat that cannot be written (a full disk, a folder removed by hand) is skipped: the run is worth more
    than the news of it. `tick`, if given, is called about five times a second, for duties that must not wait.
    """

    def __init__(
        self, folder: Path, facts: Callable[[], dict[str, Any]], tick: Callable[[], None] | None = None
    ):
        super().__init__(name="heartbeat", daemon=True)
        self.folder = folder
        self.facts = facts
        self.tick = tick
        self.over = threading.Event()
        self.urgent = False  # set it when something worth telling has changed

    def start(self) -> None:
        """The first beat comes before any work: a run that dies in its first second has been seen."""
        self._write()
        super().start()

    def _write(self) -> None:
        with contextlib.suppress(ArcnbError):
            beat = json.dumps(plain({"time": now(), **self.facts()}))
            write_whole(self.folder / HEARTBEAT, beat, synced=False)

    def run(self) -> None:
        due = time.monotonic() + HEARTBEAT_SECONDS
        while not self.over.is_set():
            if self.tick is not None:
                self.tick()
            if self.urgent or time.monotonic() >= due:
                self.urgent = False
                due = time.monotonic() + HEARTBEAT_SECONDS
                self._write()
            self.over.wait(0.2 if self.tick is not None else HEARTBEAT_SECONDS)

    def finish(self) -> None:
        """Stop beating and remove the file."""
        self.over.set()
        if self.is_alive():
            self.join(timeout=10)
        with contextlib.suppress(OSError):
            (self.folder / HEARTBEAT).unlink()
