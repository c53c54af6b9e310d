"""What the processes inherit that one thread spawns, while nothing changes for the other threads.

vLLM starts its engine by multiprocessing, whose processes have this one's environment and descriptors. To
change these for the time of a start would change them for all threads, which print and start programs.
"""

import contextlib
import os
import threading
from collections.abc import Iterator
from multiprocessing import util

_TURN = threading.Lock()

# Python looks for garbage after 50,000 new objects in place of 700: a sixth of what vLLM's import takes.
_RARELY = "import gc; gc.set_threshold(50_000); "


@contextlib.contextmanager
def spawning(variables: dict[str, str], output: int) -> Iterator[None]:
    """Within the block, what this thread spawns by multiprocessing has also these variables in its
    environment, and prints to the descriptor `output`. Waits until other threads have left theirs."""
    with _TURN:
        thread, plain = threading.get_ident(), util.spawnv_passfds

        def spawn(path, args, passfds) -> int:
            if threading.get_ident() != thread:
                return plain(path, args, passfds)
            kept = sorted(map(int, passfds))
            moves = [(output, 1), (output, 2), *zip(kept, kept, strict=True)]  # onto itself: stays open
            arguments = list(args)
            if "-c" in args:
                arguments[args.index("-c") + 1] = _RARELY + args[args.index("-c") + 1]
            actions = [(os.POSIX_SPAWN_DUP2, *move) for move in moves]
            return os.posix_spawn(path, arguments, os.environ | variables, file_actions=actions)

        util.spawnv_passfds = spawn
        try:
            yield
        finally:
            util.spawnv_passfds = plain
