"""Locks: ours, held, unsupported and failed are told apart."""

import errno
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from arcnb.errors import ArcnbError
from arcnb.machine.locks import Lock, locked

HOLD = """
import sys
from pathlib import Path
from arcnb.machine.locks import Lock
assert Lock(Path(sys.argv[1])).take(0)
print("held", flush=True)
sys.stdin.read()
"""

TAKEN_BY_ANOTHER = """
import os, sys
from pathlib import Path
from arcnb.machine.locks import Lock
os.setuid(65534)
print(Lock(Path(sys.argv[1])).take(0))
"""


@pytest.fixture
def flock_says(monkeypatch):
    """flock_says(number): what a disk answers to every lock."""

    def say(number):
        def flock(descriptor, operation):
            raise OSError(number, errno.errorcode[number])

        monkeypatch.setattr("fcntl.flock", flock)

    return say


def test_a_lock_is_held_until_its_process_ends_however_it_ends(tmp_path):
    path = tmp_path / "a.lock"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(ArcnbError, match="somebody is at work"), locked(path, "somebody is at work", 0.1):
        pass
    holder.kill()
    holder.communicate()
    with locked(path, "somebody is at work", 5) as supported:
        assert supported


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_a_file_that_another_user_made_can_be_locked():
    with tempfile.TemporaryDirectory() as folder:  # pytest's folders are closed to others
        os.chmod(folder, 0o755)
        path = Path(folder, "a.lock")
        path.touch(0o644)
        lock = Lock(path)
        assert lock.take(0)
        command = [sys.executable, "-c", TAKEN_BY_ANOTHER]
        taken = [subprocess.run([*command, path], capture_output=True, text=True).stdout]
        lock.release()
        taken.append(subprocess.run([*command, path], capture_output=True, text=True).stdout)
        assert taken == ["False\n", "True\n"]


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_disk_without_locks_stops_nobody_and_is_told(tmp_path, flock_says, number):
    flock_says(number)
    with locked(tmp_path / "a.lock", "somebody is at work", 60) as supported:
        assert not supported
    with locked(tmp_path, is_folder=True) as supported:
        assert not supported


def test_a_lock_that_fails_is_neither_held_nor_unsupported(tmp_path, flock_says):
    flock_says(errno.EIO)
    with pytest.raises(ArcnbError, match=r"cannot lock .*a\.lock: EIO"), locked(tmp_path / "a.lock"):
        pass


def test_a_folder_that_is_gone_is_not_made_by_its_lock(tmp_path):
    with pytest.raises(ArcnbError, match=r"cannot open .*gone: No such file"):
        Lock(tmp_path / "gone", is_folder=True)
    assert not (tmp_path / "gone").exists()
