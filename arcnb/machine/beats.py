"""Signs of life on a shared disk, for processes of other machines, to which a pid says nothing.

Whoever listens compares them by a clock of its own: those of other machines may jump.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from arcnb.errors import ArcnbError
from arcnb.machine.files import write_whole

BEAT_SECONDS = 1.0
LOST_SECONDS = 60.0  # without a beat; shared disks show what another node wrote after up to half a minute


@contextmanager
def beating(path: Path, name: str = "it", seconds: float = BEAT_SECONDS) -> Iterator[None]:
    """Count in the file, after a name, while the block lasts; the first sign is there before it begins."""
    write_whole(path, f"{name} 0", synced=False)
    ended = threading.Event()

    def count() -> None:
        number = 0
        while not ended.wait(seconds):
            number += 1
            with suppress(ArcnbError):  # a full disk: the work is worth more than the news of it
                write_whole(path, f"{name} {number}", synced=False)

    beat = threading.Thread(target=count, daemon=True)
    beat.start()
    try:
        yield
    finally:
        ended.set()
        beat.join()
