"""How a backend feeds its engines and waits for them, one or several; stand-ins take their place here.

Real engines side by side: test_backends.py.
"""

import contextlib
import os
import queue
import tempfile
import threading
from types import SimpleNamespace

import pytest

from arcnb.errors import ArcnbError
from arcnb.models.memory import fitting, gpu_choice
from arcnb.models.memory.fitting import GIB, Gpu, weight_bytes
from arcnb.models.sampling import engine_group, vllm_engine
from arcnb.models.sampling.backends import EngineOptions, Request, Sampling, open_backend
from arcnb.models.sampling.by_vllm import VllmBackend
from arcnb.models.sampling.engine_group import EngineGroup
from arcnb.models.sampling.vllm_engine import EngineDied, EngineSettings, VllmEngine

SHORT = Sampling(max_tokens=2)


class CountingEngine:
    """Finishes the oldest completion at each step. waiting: how many it had before every step."""

    running, max_num_seqs, ready = True, 8, True

    def __init__(self, settings, gpus, arrived):
        self.names, self.waiting, self.given, self.aborted, self.starts = [], [], [], [], 0

    def start(self, running=0):
        self.starts += 1

    def add(self, name, prompt_ids, params, lora_request):
        self.names.append(name)
        self.given.append(tuple(prompt_ids))

    def step(self):
        self.waiting.append(len(self.names))
        made = SimpleNamespace(token_ids=[1], text="x", finish_reason="stop", cumulative_logprob=None)
        return [SimpleNamespace(request_id=self.names.pop(0), outputs=[made])]

    def restart(self):
        self.starts, self.names = self.starts + 1, []

    def abort(self, names):
        self.aborted += names
        self.names = [name for name in self.names if name not in names]

    def close(self):
        self.running = False


@pytest.fixture
def open_with(monkeypatch, tiny):
    """The function open_with(kind, engines=1): a backend whose engines are stand-ins of this kind."""
    monkeypatch.setattr(VllmBackend, "_sampling_params", lambda *_: None)

    def make(kind, engines=1):
        monkeypatch.setattr(engine_group, "VllmEngine", kind)
        backend = VllmBackend(tiny, None, EngineOptions(engines=engines))
        backend.engines.admit(wait=True)
        return backend

    return make


def asked(count, n=1):
    return [Request([1 + key, 2], n=n, seed=key, key=key) for key in range(count)]


def test_an_engine_is_given_completions_in_bursts_and_never_runs_short(open_with):
    backend = open_with(CountingEngine)
    made = list(backend.generate(asked(40), SHORT))
    assert sorted(completion.key for completion in made) == list(range(40))
    (engine,) = backend.engines
    assert engine.waiting[:9] == [16, 15, 14, 13, 16, 15, 14, 13, 16]
    assert min(engine.waiting[:-13]) > CountingEngine.max_num_seqs


class SlowEngine(CountingEngine):
    """Finishes something at every third step only."""

    steps = 0

    def step(self):
        self.steps += 1
        return [] if self.steps % 3 else super().step()


@pytest.mark.parametrize("n_seqs", [1, 3])
def test_engines_of_few_completions_are_filled_after_every_one(open_with, monkeypatch, n_seqs):
    monkeypatch.setattr(CountingEngine, "max_num_seqs", n_seqs)
    backend = open_with(SlowEngine)
    assert len(list(backend.generate(asked(20), SHORT))) == 20
    assert backend.engines[0].waiting[:10] == [2 * n_seqs] * 10


def test_each_of_several_engines_is_fed_so(open_with):
    backend = open_with(CountingEngine, 3)
    made = list(backend.generate(asked(120), SHORT))
    assert sorted(completion.key for completion in made) == list(range(120))
    for engine in backend.engines:
        assert engine.waiting[:9] == [16, 15, 14, 13, 16, 15, 14, 13, 16]
        assert min(engine.waiting[:-13]) > CountingEngine.max_num_seqs


def test_completions_of_a_prompt_go_to_one_engine_the_one_with_the_fewest(open_with):
    backend = open_with(CountingEngine, 2)
    sizes = [5, 1, 1, 1, 1, 2, 3, 1]
    requests = [Request([7 + key], n=n, key=key) for key, n in enumerate(sizes)]
    assert len(list(backend.generate(requests, SHORT))) == sum(sizes)
    first, second = ([prompt - 7 for (prompt,) in engine.given] for engine in backend.engines)
    assert first == [0] * 5 + [6] * 3
    assert second == [1, 2, 3, 4, 5, 5, 7]


@pytest.mark.parametrize("engines", [2, 3])
def test_prompts_and_seeds_are_those_of_one_engine(open_with, engines):
    def made(backend):
        found = [(c.key, c.index, c.seed) for c in backend.generate(asked(30, n=3), SHORT)]
        return sorted(found), sorted(prompt for engine in backend.engines for prompt in engine.given)

    assert made(open_with(CountingEngine, engines)) == made(open_with(CountingEngine))


def test_what_is_cancelled_and_left_is_dropped_in_every_engine(open_with):
    backend = open_with(CountingEngine, 2)
    stream = backend.generate([Request([key], n=4, key=key % 2) for key in range(1, 5)], SHORT)
    first = next(stream)
    backend.cancel(1 - first.key)
    assert {c.key for c in (next(stream), next(stream))} == {first.key}
    stream.close()
    assert all(engine.aborted and not engine.names for engine in backend.engines)
    assert sum(len(engine.aborted) for engine in backend.engines) == 16 - 3
    assert len(list(backend.generate(asked(4), SHORT))) == 4


class DyingEngine(CountingEngine):
    """Dies at its third step; when started anew it dies as soon as it is given something to do."""

    def add(self, *request):
        if self.starts > 1:
            raise EngineDied("no memory")
        super().add(*request)

    def step(self):
        if len(self.waiting) == 2:
            raise EngineDied("no memory")
        return super().step()


def test_an_engine_that_dies_while_it_is_fed_anew_has_died_twice(open_with):
    backend = open_with(DyingEngine)
    with pytest.raises(ArcnbError, match="the vllm engine died twice: no memory"):
        list(backend.generate(asked(4), SHORT))
    assert backend.engines[0].starts == 2
    assert not any(backend._flights.values())


class MortalEngine(CountingEngine):
    """Dies at the steps that `deaths` numbers, over all its lives."""

    deaths = ()

    def step(self):
        if len(self.waiting) in self.deaths:
            self.waiting.append("death")
            raise EngineDied("no memory")
        return super().step()


def test_an_engine_that_dies_is_restarted_alone_and_gets_its_own_requests_again(open_with):
    backend = open_with(MortalEngine, 3)
    backend.engines[1].deaths = (5,)
    keys = [completion.key for completion in backend.generate(asked(60), SHORT)]
    assert sorted(keys) == list(range(60)), "lost or made twice"
    assert [engine.starts for engine in backend.engines] == [1, 2, 1]
    sound = backend.engines[0].given + backend.engines[2].given
    assert len(sound) == len(set(sound)), "another engine was given its requests again"
    lost = set(backend.engines[1].given)
    assert not lost & set(sound)
    assert len(backend.engines[1].given) > len(lost)


def test_each_engine_may_die_once_a_call(open_with):
    backend = open_with(MortalEngine, 2)
    for engine in backend.engines:
        engine.deaths = (3,)
    assert len(list(backend.generate(asked(60), SHORT))) == 60
    assert [engine.starts for engine in backend.engines] == [2, 2]
    backend.engines[0].deaths = tuple(len(backend.engines[0].waiting) + step for step in (1, 4))
    with pytest.raises(ArcnbError, match="the vllm engine died twice: no memory"):
        list(backend.generate(asked(60), SHORT))
    assert [engine.starts for engine in backend.engines] == [3, 2]


def test_an_engine_that_cannot_be_restarted_ends_the_others(open_with, monkeypatch):
    backend = open_with(MortalEngine, 2)
    backend.engines[0].deaths = (1,)

    def restart():
        raise ArcnbError("vllm cannot start")

    backend.engines[0].restart = restart
    with pytest.raises(ArcnbError, match="vllm cannot start"):
        list(backend.generate(asked(9), SHORT))
    assert not any(engine.running for engine in backend.engines)
    with pytest.raises(ArcnbError, match="closed"):
        list(backend.generate(asked(1), SHORT))


class QueueEngine(VllmEngine):
    """An engine whose vLLM is only the queue that its process would fill. looks: questions for outputs."""

    def start(self, running=0):
        core = SimpleNamespace(outputs_queue=queue.Queue())
        self._llm = SimpleNamespace(
            llm_engine=SimpleNamespace(engine_core=core, has_unfinished_requests=lambda: True)
        )
        self.outputs, self.looks, self.while_looking = core.outputs_queue, 0, lambda: None
        vllm_engine._tell_arrivals(self._llm, self._arrived)

    @property
    def ready(self):
        self.looks += 1
        found = super().ready
        self.while_looking()
        return found

    def close(self):
        pass


class WatchedEvent(threading.Event):
    """Says when someone begins to wait."""

    def __init__(self):
        super().__init__()
        self.waits = threading.Semaphore(0)

    def wait(self, timeout=None):
        assert timeout is None, "that would be polling"
        self.waits.release()
        return super().wait()


@pytest.fixture
def group(monkeypatch, tiny):
    """Three QueueEngines. group.waits: released whenever next_ready begins to wait."""
    event = WatchedEvent()
    monkeypatch.setattr(engine_group, "VllmEngine", QueueEngine)
    monkeypatch.setattr(engine_group, "threading", SimpleNamespace(Event=lambda: event))
    made = EngineGroup(EngineSettings(tiny, 256, 0, EngineOptions(engines=3)))
    made.admit(wait=True)
    monkeypatch.undo()
    made.waits = event.waits
    return made


@contextlib.contextmanager
def waiting(group, busy):
    """Within the block a thread waits for one of the busy engines; the list gets the one that it found."""
    found = []
    thread = threading.Thread(target=lambda: found.append(group.next_ready(busy)), daemon=True)
    thread.start()
    assert group.waits.acquire(timeout=20)
    assert not found
    yield found
    thread.join(20)
    assert not thread.is_alive(), "it was not woken"


def found_at_once(group, busy):
    """What next_ready finds, if it needs nothing more to happen."""
    found = []
    thread = threading.Thread(target=lambda: found.append(group.next_ready(busy)), daemon=True)
    thread.start()
    thread.join(20)
    assert found, "it waits"
    return found[0]


def test_outputs_of_any_engine_end_the_wait_and_nobody_asks_before(group):
    first, second, third = group
    for sender in (second, third, first):
        looks = [engine.looks for engine in group]
        with waiting(group, [first, second, third]) as found:
            assert [engine.looks for engine in group] == [one + 1 for one in looks]
            sender.outputs.put_nowait("outputs")
        assert found == [sender]
        assert sum(engine.looks for engine in group) <= sum(looks) + 6
        sender.outputs.get_nowait()


def test_engines_with_outputs_take_turns(group):
    first, second, third = group
    for engine in (first, second):
        for _ in range(3):
            engine.outputs.put_nowait("outputs")
    found = []
    for _ in range(6):
        found.append(group.next_ready([first, second, third]))
        found[-1].outputs.get_nowait()
    assert found == [first, second] * 3


def test_what_comes_from_an_engine_without_requests_is_left_alone(group):
    first, second, third = group
    third.outputs.put_nowait("of a request that was dropped")
    with waiting(group, [first, second]) as found:
        third.outputs.put_nowait("one more")
        assert group.waits.acquire(timeout=20), "it waits again"
        second.outputs.put_nowait("outputs")
    assert found == [second]
    assert third.looks == 0


def test_outputs_that_come_between_looking_and_waiting_are_not_missed(group):
    first, third = group[0], group[2]
    third.while_looking = lambda: first.outputs.put_nowait("outputs")
    assert found_at_once(group, [first, third]) is first


def test_outputs_are_there_when_their_arrival_is_told():
    outputs = queue.Queue()
    vllm = SimpleNamespace(llm_engine=SimpleNamespace(engine_core=SimpleNamespace(outputs_queue=outputs)))
    told = []
    vllm_engine._tell_arrivals(vllm, SimpleNamespace(set=lambda: told.append(outputs.get_nowait())))
    outputs.put_nowait("outputs")
    assert told == ["outputs"]


def test_a_single_busy_engine_is_not_asked_at_all(group):
    assert group.next_ready([group[1]]) is group[1]
    assert group[1].looks == 0


def test_an_engine_that_lost_its_requests_is_not_waited_for(group):
    group[1].llm.llm_engine.has_unfinished_requests = lambda: False
    assert found_at_once(group, [group[0], group[1]]) is group[1]
    group[1]._log = SimpleNamespace(last_error=lambda: "")
    with pytest.raises(ArcnbError, match="lost its requests"):
        group[1].step()


def test_one_engine_has_no_event_and_its_queue_stays_as_vllm_made_it(monkeypatch, tiny):
    given = []
    monkeypatch.setattr(CountingEngine, "__init__", lambda self, *settings: given.append(settings))
    monkeypatch.setattr(CountingEngine, "start", lambda self: None)
    monkeypatch.setattr(engine_group, "VllmEngine", CountingEngine)
    group = EngineGroup(EngineSettings(tiny, 256, 0, EngineOptions()))
    ((_, _, arrived),) = given
    assert arrived is None
    assert len(group) == 1


@pytest.fixture
def two_gpus(tmp_path, monkeypatch):
    """A machine of two GPUs, the second one emptier."""
    gpus = [Gpu(0, "GPU-0", 140 * GIB, 70 * GIB), Gpu(1, "GPU-1", 140 * GIB, 140 * GIB)]
    monkeypatch.setattr(gpu_choice, "visible_gpus", lambda visible: gpus)
    monkeypatch.setattr(engine_group, "on_cpu", lambda: False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # where the locks are
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    monkeypatch.delenv(gpu_choice.VARIABLE, raising=False)


class GpuEngine(CountingEngine):
    """Takes the GPUs as engines do. The third one cannot start if it is to take one completion at a time."""

    def __init__(self, settings, gpus, arrived):
        super().__init__(settings, gpus, arrived)
        self.settings, self.gpus = settings, gpus

    def start(self, running=0):
        super().start()
        self.gpus.take()
        self.started_as = (running, self.gpus.description, os.environ[gpu_choice.VARIABLE])
        if (running, self.settings.options.max_num_seqs) == (2, 1):
            raise ArcnbError("vllm cannot start")


@pytest.fixture
def gpu_engines(monkeypatch):
    """The list of the GpuEngines that were started."""
    started = []

    def start(*settings):
        started.append(GpuEngine(*settings))
        return started[-1]

    monkeypatch.setattr(engine_group, "VllmEngine", start)
    return started


def emptier_one_is_free() -> bool:
    """Whether a process that looks for a GPU would take the emptier one."""
    other = gpu_choice.GpuChoice()
    before = os.environ.get(gpu_choice.VARIABLE)
    other.take()
    taken = [gpu.index for gpu in other.taken]
    other.release()
    assert os.environ.get(gpu_choice.VARIABLE) == before
    return taken == [1]


def test_engines_of_a_backend_share_the_gpu_that_it_chose(two_gpus, gpu_engines, tiny):
    group = EngineGroup(EngineSettings(tiny, 256, 0, EngineOptions(engines=3)))
    group.admit(wait=True)
    assert [engine.started_as for engine in gpu_engines] == [(n, "GPU 1", "1") for n in range(3)]
    assert group.device == "GPU 1"
    group[1].close()
    assert not group.running
    assert not emptier_one_is_free(), "given back while others use it"
    group.close()
    assert gpu_choice.VARIABLE not in os.environ
    assert emptier_one_is_free()


def test_nothing_is_left_of_a_group_that_cannot_start(two_gpus, gpu_engines, tiny):
    group = EngineGroup(EngineSettings(tiny, 256, 0, EngineOptions(engines=3, max_num_seqs=1)))
    for _ in range(2):
        with pytest.raises(ArcnbError, match="vllm cannot start"):
            group.admit(wait=True)
    assert len(group) == 2, "the second one runs"
    group.close()
    assert [engine.running for engine in gpu_engines] == [False, False, False]
    assert gpu_choice.VARIABLE not in os.environ
    assert emptier_one_is_free()


def test_a_restarted_engine_counts_those_beside_it(monkeypatch, tiny):
    started = []
    monkeypatch.setattr(VllmEngine, "start", lambda self, running: started.append(running))
    engine = VllmEngine(EngineSettings(tiny, 256, 0, EngineOptions(engines=3)), gpu_choice.GpuChoice())
    engine.restart()
    assert started == [2]


def test_an_impossible_number_of_engines_is_refused():
    with pytest.raises(ArcnbError, match="engines is -2, it must be at least 1"):
        EngineOptions(engines=-2)


@pytest.fixture
def small_on_gpu(two_gpus, gpu_engines, monkeypatch, tiny):
    """chosen(**options): the group that `engines` 0 starts for the tiny model, with 6 processors."""
    monkeypatch.setattr(engine_group, "usable_processors", lambda: 6)
    monkeypatch.setattr(vllm_engine, "_SMALL", weight_bytes(tiny.folder))
    groups = []

    def chosen(**options):
        groups.append(EngineGroup(EngineSettings(tiny, 256, 0, EngineOptions(engines=0, **options))))
        groups[-1].admit(wait=True)
        return groups[-1]

    yield chosen
    for group in groups:
        group.close()


def test_a_small_model_gets_two_engines(small_on_gpu, gpu_engines):
    assert len(small_on_gpu()) == 2
    assert [engine.started_as for engine in gpu_engines] == [(n, "GPU 1", "1") for n in range(2)]
    assert [engine.settings.options.engines for engine in gpu_engines] == [2, 2]


def test_one_engine_where_two_would_not_gain(small_on_gpu, gpu_engines, monkeypatch, tiny):
    assert len(small_on_gpu(tensor_parallel_size=2)) == 1
    changes = [
        (engine_group, "usable_processors", lambda: 5),
        (engine_group, "on_cpu", lambda: True),
        (vllm_engine, "_SMALL", weight_bytes(tiny.folder) - 1),
    ]
    for change in changes:
        with monkeypatch.context() as patch:
            patch.setattr(*change)
            assert len(small_on_gpu()) == 1
    assert {engine.settings.options.engines for engine in gpu_engines} == {1}


def test_one_engine_where_only_one_has_the_memory(small_on_gpu, monkeypatch, tiny):
    """The emptier GPU is the second one, where a sequence needs more than half of what the backend takes."""
    gpus = [Gpu(0, "GPU-0", 140 * GIB, 70 * GIB), Gpu(1, "GPU-1", 140 * GIB, 140 * GIB)]
    monkeypatch.setattr(fitting, "visible_gpus", lambda names: [gpus[int(names)]])
    for cache, engines in ((40, 2), (80, 1)):
        monkeypatch.setattr(fitting, "cache_bytes_per_token", lambda folder, gib=cache: gib * GIB // 256)
        group = small_on_gpu()
        assert len(group) == engines
        group.close()


def test_the_chosen_number_is_in_the_line_of_the_backend(small_on_gpu, tiny):
    lines = []
    with open_backend("vllm", tiny, None, EngineOptions(engines=0), lines.append) as backend:
        assert "(GPU 1, " in lines[0]
        assert " 2 engines)" in lines[0]
        backend.engines.admit(wait=True)
        assert "(GPU 1, 2 engines)" in backend.description


@pytest.mark.parametrize("backend", ["transformers", "server"])
def test_backends_that_cannot_run_several_engines_refuse_them(tiny, backend):
    sentence = f"^engines is 2, but only backend 'vllm' can run more than one, not '{backend}'$"
    with pytest.raises(ArcnbError, match=sentence):
        open_backend(backend, tiny, options=EngineOptions(engines=2))


class LateEngine(CountingEngine):
    """All but the first become ready, or fail, when `may_start` is set. started: those that were begun."""

    may_start, fails = threading.Event(), False

    def start(self, running=0):
        super().start(running)
        self.running = not running or (self.may_start.wait(20) and not self.fails)
        if not self.running:
            raise ArcnbError("vllm cannot start: no memory")

    def end_start(self):
        self.fails = True
        self.may_start.set()


@pytest.fixture
def open_late(monkeypatch, open_with, tiny):
    """open_late(fails=False): a backend of two engines, the second of which just starts."""
    open_with(CountingEngine)  # for what it replaces
    opened = []

    def make(fails=False, engines=2):
        kind = type("Late", (LateEngine,), {"may_start": threading.Event(), "fails": fails})
        monkeypatch.setattr(engine_group, "VllmEngine", kind)
        monkeypatch.setattr(engine_group, "chosen_engines", lambda settings, gpus: 2)
        opened.append(VllmBackend(tiny, None, EngineOptions(engines=engines)))
        return opened[-1], kind.may_start

    yield make
    for backend in opened:
        backend.close()


def ready(backend, may_start):
    """Lets the late engine start, and waits until it has or has failed."""
    may_start.set()
    backend.engines._late._thread.join(20)


def test_an_engine_that_starts_later_joins_while_the_first_one_works(open_late):
    backend, may_start = open_late()
    assert ", 1 of 2 engines)" in backend.description
    stream = backend.generate(asked(60), SHORT)
    before = [next(stream).key for _ in range(9)]
    assert len(backend.engines) == 1
    ready(backend, may_start)
    after = [completion.key for completion in stream]
    assert sorted(before + after) == list(range(60)), "lost or made twice"
    assert len(backend.engines[1].given) > 10
    assert ", 2 engines)" in backend.description


def test_a_late_engine_that_cannot_start_is_an_error_at_the_next_step(open_late):
    backend, may_start = open_late(fails=True)
    stream = backend.generate(asked(60), SHORT)
    assert [next(stream).key for _ in range(3)] == [0, 1, 2]
    ready(backend, may_start)
    with pytest.raises(ArcnbError, match="vllm cannot start: no memory"):
        list(stream)
    with pytest.raises(ArcnbError, match="vllm cannot start: no memory"):
        list(backend.generate(asked(1), SHORT))


def test_a_late_engine_that_was_only_chosen_is_done_without(open_late):
    backend, may_start = open_late(fails=True, engines=0)
    stream = backend.generate(asked(60), SHORT)
    made = [next(stream).key]
    ready(backend, may_start)
    with pytest.warns(UserWarning, match="with 1 of 2 engines: vllm cannot start: no memory") as warned:
        made += [completion.key for completion in stream]
    assert len(warned) == 1
    assert sorted(made) == list(range(60))
    assert ", 1 engine)" in backend.description


def test_closing_ends_an_engine_that_just_starts(open_late):
    backend, _ = open_late()
    late = backend.engines._late
    backend.close()
    assert not late._thread.is_alive()
    assert not any(engine.running for engine in (*backend.engines, *late._engines))


def test_a_dead_engine_starts_again_after_those_that_just_start(open_late):
    backend, may_start = open_late()
    first, order = backend.engines[0], []
    first.restart = lambda: order.append(len(backend.engines))
    timer = threading.Timer(0.2, may_start.set)
    timer.start()
    backend.engines.restart(first)
    assert order == [2]
