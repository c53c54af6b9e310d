"""Signs of life on a shared disk, for processes of other machines, to which a pid says nothing.

Whoever listens compares them by a clock of its own: those of other machines may jump.
"""

import threading
from collections.abc import Callable, Iterator
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

    def count(ended: threading.Event) -> None:
        number = 0
        while not ended.wait(seconds):
            number += 1
            with suppress(ArcnbError):  # a full disk: the work is worth more than the news of it
                write_whole(path, f"{name} {number}", synced=False)

    with beside(count):
        yield


@contextmanager
def beside(work: Callable[[threading.Event], object]) -> Iterator[None]:
    """Run work(ended) in a thread while the block lasts; it returns soon once `ended` is set."""
    ended = threading.Event()
    thread = threading.Thread(target=work, args=(ended,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def text_in(path: Path) -> str:
    """What another process has written; "" while there is nothing."""
    try:
        return path.read_text()
    except OSError:  # not there yet, or just being replaced on a shared disk
        return ""
