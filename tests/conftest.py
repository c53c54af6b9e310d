"""Fixtures of several rooms, and what holds for a session: no test is long without a reason, and nothing
outlives it."""

import atexit
import gc
import os
import signal
import sys
import tempfile
import time
import uuid
from multiprocessing.util import _exit_function
from pathlib import Path

import psutil
import pytest

from arcnb.errors import ArcnbError
from arcnb.models.registry import ModelPath, load_tokenizer, resolve_model
from tests.random_llama import first_tokens, random_llama

# A shell starts background jobs with SIGINT ignored, and what they start inherits that; tests of interrupts
# start processes as a terminal would.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests that run at the same time share the cores: the threads of a training or an engine wait for each other
# by looking, and two such on one core take ten times as long.
if _workers := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0")):
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // _workers)))

# What tests start, their workers too, keeps the memory of large arrays, as kernels do: `_KEEPING_MEMORY` of
# arcnb.lab.execution.execute.
os.environ.setdefault("MALLOC_MMAP_MAX_", "0")
os.environ.setdefault("MALLOC_TRIM_THRESHOLD_", str(4 * 2**30))

# Tests and what they start keep the bytecode of the package, as Python does unless it is told otherwise:
# hundreds of processes would compile it anew, a seventh of what a small notebook takes.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Garbage is looked for after 50,000 new objects: after 700 it is a tenth of a session's time. A power cut is
# no test's matter, and each file that is to outlive one is waited for.
gc.set_threshold(50_000, 10, 10)
os.fsync = lambda file: None

LONGEST = 30.0  # seconds that a test may take which gives no reason
SESSION = "ARCNB_TEST_SESSION"  # in the environment of whatever tests start
FOLDERS = (Path(tempfile.gettempdir()), Path("/dev/shm"))


@pytest.fixture(scope="session")
def small_model(tmp_path_factory) -> ModelPath:
    """A random two-layer Llama with a context of 2,048 tokens and the first 2,000 of the embedded model's
    49,152 tokens: a training step with all of them takes ten times as long."""
    tokenizer = first_tokens(load_tokenizer(resolve_model("default")), 2000)
    return random_llama(tmp_path_factory.mktemp("small_model"), tokenizer)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """A test that takes more than LONGEST seconds and is not marked long with a reason is named at the end.
    It does not fail: the machine may have been busy."""
    report = yield
    if report.when == "call" and report.duration > LONGEST and item.get_closest_marker("long") is None:
        told = f"{item.nodeid} took {report.duration:.0f} s: make it shorter, or mark it long(reason)"
        item.warn(pytest.PytestWarning(told))
    return report


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item):
    """What large packages made when they were imported is not looked through for garbage any more: a trainer
    collects it several times a run, a third of a second each time where TRL and vLLM are loaded."""
    if len(sys.modules) > item.config.arcnb_imported + 1000:
        item.config.arcnb_imported = len(sys.modules)
        gc.collect()
        gc.freeze()


def pytest_collection_modifyitems(items):
    """Files with long tests come first, so that no process is left alone with them at the end. A mark without
    a reason is refused."""
    files = {item.path for item in items if any(item.get_closest_marker(name) for name in ("long", "slow"))}
    items.sort(key=lambda item: item.path not in files)
    for item in items:
        for mark in item.iter_markers("long"):
            if len(mark.args) != 1 or not isinstance(mark.args[0], str):
                raise ArcnbError(f"{item.nodeid}: pytest.mark.long takes one text, the reason")


def pytest_configure(config):
    config.arcnb_imported = len(sys.modules)
    if hasattr(config, "workerinput"):
        atexit.register(_end_at_once)  # the first to be registered comes last
    else:  # the one process that outlives the others
        os.environ[SESSION] = uuid.uuid4().hex
        config.arcnb_folders = set(own_folders())


def _end_at_once():
    """Children of multiprocessing end; all that was imported is not taken apart, object by object."""
    _exit_function()
    os._exit(0)


def pytest_sessionfinish(session):
    """Fails a session that leaves processes or folders behind, and names them."""
    if hasattr(session.config, "workerinput"):
        return
    for _ in range(50):  # what was told to end takes a moment
        if not own_processes():
            break
        time.sleep(0.2)
    folders = sorted(set(own_folders()) - session.config.arcnb_folders)
    left = [f"folder {path}" for path in folders] + [f"process {name}" for name in own_processes()]
    session.config.arcnb_left = left
    if left:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_unconfigure(config):
    """The last line of all says why a session failed whose tests passed."""
    if hasattr(config, "workerinput"):
        return
    gc.unfreeze()  # else packages count what is left as leaks
    if left := getattr(config, "arcnb_left", None):
        print(f"\nleft behind by this session: {', '.join(left)}")


def own_folders() -> list[Path]:
    """Temporary folders that are called after this project, without those of others' living processes."""
    found = [path for folder in FOLDERS if folder.is_dir() for path in folder.glob("arcnb*")]
    found = [
        path for path in found if not path.name.startswith("arcnb-gpus-")
    ]  # all of a user's runs share it
    return [path for path in found if not any(_is_anothers(part) for part in path.name.split("-"))]


def _is_anothers(part: str) -> bool:
    """Whether this part of a folder's name is a living process that somebody else looks after."""
    try:
        process = psutil.Process(int(part))
        above = [one for one in process.parents() if one.pid > 1]  # none above one that was left behind
        return bool(above) and not any(one.environ().get(SESSION) == os.environ[SESSION] for one in above)
    except (ValueError, psutil.Error):  # no number, no such process
        return False


def own_processes() -> list[str]:
    """Processes, other than pytest's own, that were started with this session's mark and are still alive."""
    mark = f"{SESSION}={os.environ[SESSION]}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            marked = mark in (folder / "environ").read_bytes().split(b"\0")
            name = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:  # it ended meanwhile, or is another user's
            continue
        # Trackers and fork servers of multiprocessing and compile workers of torch end with their process,
        # which is pytest's.
        words = ("pytest", "execnet", "resource_tracker", "forkserver", "_inductor/compile_worker")
        ours = any(word in name for word in words)
        if marked and name and int(folder.name) != os.getpid() and not ours:
            found.append(f"{folder.name} {name[:120]}")
    return found
