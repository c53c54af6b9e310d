"""Files written whole or not at all."""

import errno
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from arcnb.errors import ArcnbError
from arcnb.machine.files import new_file, new_folder, replaced_file, write_whole


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_write_without_space_or_quota_leaves_the_previous_copy(tmp_path, monkeypatch, number):
    path = tmp_path / "manifest.json"
    write_whole(path, "old")

    def full_disk(descriptor):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(ArcnbError, match=rf"cannot write .*manifest.json: {os.strerror(number)}; files"):
        write_whole(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_fails_inside_the_block_leaves_nothing_behind(tmp_path):
    path = tmp_path / "rows"
    for opened in (new_file, replaced_file):
        with pytest.raises(ZeroDivisionError), opened(path) as file:
            file.write(b"half" + bytes(1 // 0))
    assert list(tmp_path.iterdir()) == []


def test_a_copy_without_space_is_one_sentence_and_leaves_nothing_behind(tmp_path):
    source, target = tmp_path / "source", tmp_path / "below" / "target"
    (source / "inner").mkdir(parents=True)
    (source / "inner" / "weights").write_text("many")

    def full_disk(*paths, **options):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    full = rf"^cannot write {target}: \[Errno 28\] No space left on device; files already there"
    with pytest.raises(ArcnbError, match=full), new_folder(target) as work:
        shutil.copytree(source, work / "copy", copy_function=full_disk)
    assert list(target.parent.iterdir()) == []
    with (
        pytest.raises(ArcnbError, match="a file stands where its folder"),
        new_folder(source / "inner" / "weights" / "target"),
    ):
        pass


def refused(number, *paths):
    """An error as the system raises it, of a path, or from one to another."""
    return OSError(number, os.strerror(number), *map(str, paths[:1]), None, *map(str, paths[1:]))


@pytest.mark.parametrize("opened", [new_file, replaced_file, new_folder])
@pytest.mark.parametrize(
    "error",
    [
        OSError("no file named model.safetensors found in /models/x"),
        refused(errno.ENOENT, "/models/x/config.json"),
        refused(errno.EACCES, "/models/x/config.json"),
        refused(errno.ENOSPC, "/another/disk/file"),
        ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)),
        FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), "/models/x"),
        shutil.Error([("/models/x", "/y", "[Errno 13] Permission denied: '/models/x'")]),
        shutil.SameFileError("/x and /x are the same file"),
    ],
    ids=repr,
)
def test_what_the_block_raises_of_something_else_stays_as_it_is(tmp_path, opened, error):
    with pytest.raises(type(error)) as caught, opened(tmp_path / "target"):
        raise error
    assert caught.value is error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("opened", [new_file, replaced_file, new_folder])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_disk_that_is_full_within_the_block_is_one_sentence(tmp_path, opened, number):
    words = f"cannot write {tmp_path / 'target'}: {os.strerror(number)}; files already"
    with pytest.raises(ArcnbError, match=words), opened(tmp_path / "target"):
        raise OSError(number, os.strerror(number))  # as of a write to an open file
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO])
def test_a_file_of_the_folder_that_cannot_be_written_is_one_sentence(tmp_path, monkeypatch, number):
    monkeypatch.chdir(tmp_path)
    words = f"cannot write target: .*{os.strerror(number)}.*; files already"
    with pytest.raises(ArcnbError, match=words), new_folder(Path("target")) as work:
        raise refused(number, "/models/x", (work / "weights").absolute())  # as of a copy
    read = ("/models/x/a", "/y/a", "[Errno 13] Permission denied: '/models/x/a'")
    with pytest.raises(ArcnbError, match=words), new_folder(Path("target")) as work:
        raise shutil.Error([read, ("/models/x/b", f"{work}/b", str(refused(number, work / "b")))])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("opened", [new_file, replaced_file, new_folder])
def test_after_the_block_every_error_of_the_disk_is_one_sentence(tmp_path, monkeypatch, opened):
    def failing_disk(descriptor):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", failing_disk)
    failed = r"cannot write .*target: Input/output error; files"
    with pytest.raises(ArcnbError, match=failed), opened(tmp_path / "target") as work:
        work.write(b"few") if opened is not new_folder else (work / "file").write_bytes(b"few")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_was_removed_is_not_made_again(tmp_path):
    with pytest.raises(ArcnbError, match=r"cannot write .*gone/heartbeat.json: No such file or directory"):
        write_whole(tmp_path / "gone" / "heartbeat.json", "{}")
    assert not (tmp_path / "gone").exists()


def test_text_is_utf_8_and_bytes_are_bytes(tmp_path):
    write_whole(tmp_path / "text", "é\n")
    write_whole(str(tmp_path / "bytes"), b"\xff")
    assert [(tmp_path / name).read_bytes() for name in ("text", "bytes")] == [b"\xc3\xa9\n", b"\xff"]


def test_threads_that_write_one_file_do_not_mix(tmp_path):
    path = tmp_path / "file"
    texts = [f"{number}\n" * 20_000 for number in range(4)]
    writers = [threading.Thread(target=lambda t=t: [write_whole(path, t) for _ in range(5)]) for t in texts]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert path.read_text() in texts
    assert list(tmp_path.iterdir()) == [path]


def test_a_writer_killed_while_writing_leaves_a_whole_file(tmp_path):
    script = """
import itertools, sys
from arcnb.machine.files import write_whole
for number in itertools.count():
    write_whole(sys.argv[1], f"{number}\\n" * 200_000)
    print(flush=True)
"""
    path = tmp_path / "file.json"
    for _ in range(3):
        process = subprocess.Popen([sys.executable, "-c", script, path], stdout=subprocess.PIPE)
        process.stdout.readline()
        process.kill()
        process.communicate()
        lines = path.read_text().splitlines()
        assert len(lines) == 200_000
        assert len(set(lines)) == 1
