"""Seeds: every random choice of the project comes from one integer seed and the keys of what it is for.

`rng(seed, "augmentation", task_id, round, index)` gives the same stream on every machine and in any order
of the work, so one item can be made alone, again, or on another node.
"""

import hashlib
import json
import operator

import numpy as np


def derive_seed(seed: int, *keys: str | int) -> int:
    """A 63-bit seed from `seed` and `keys`: SHA-256 over the canonical JSON of [seed, *keys].

    Text and number keys differ ("1" is not 1). Raises TypeError for other kinds of key, bools included.
    """
    parts = [_plain(part) for part in (seed, *keys)]
    if isinstance(parts[0], str):
        raise TypeError(f"the seed is an integer, not {seed!r}")
    text = json.dumps(parts, separators=(",", ":"), ensure_ascii=True)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def rng(seed: int, *keys: str | int) -> np.random.Generator:
    """A fresh generator for the stream named by `seed` and `keys`."""
    return np.random.default_rng(derive_seed(seed, *keys))


def _plain(part: str | int) -> str | int:
    if isinstance(part, str):
        return str(part)
    if isinstance(part, bool | np.bool_):
        raise TypeError(f"a seed key is text or an integer, not {part!r}")
    return operator.index(part)
