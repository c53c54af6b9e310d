"""How a backend feeds its engine and waits for it; a stand-in takes the engine's place here.

Real engines: test_backends.py.
"""

import json
import os
import tempfile
from types import SimpleNamespace

import pytest

from arcnb.errors import ArcnbError
from arcnb.machine import gpus
from arcnb.machine.gpus import Gpu, GpuChoice
from arcnb.models.memory.shape import GIB
from arcnb.models.sampling import by_vllm, vllm_engine
from arcnb.models.sampling.backends import EngineOptions, Request, Sampling, open_backend
from arcnb.models.sampling.by_vllm import VllmBackend
from arcnb.models.sampling.vllm_engine import EngineDied, EngineSettings, VllmEngine

SHORT = Sampling(max_tokens=2)


class CountingEngine:
    """Finishes the oldest completion at each step. waiting: how many it had before every step. held: how
    many it had when it was told to begin nothing."""

    running, max_num_seqs = True, 8

    def __init__(self, settings):
        self.names, self.waiting, self.given, self.aborted, self.starts = [], [], [], [], 0
        self.held, self.settings = [], settings

    def start(self):
        self.starts += 1

    def add(self, name, prompt_ids, params, lora_request):
        self.names.append(name)
        self.given.append(tuple(prompt_ids))

    def hold(self):
        self.held.append(len(self.names))

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
    """The function open_with(kind, adapter, **options): a backend whose engine is a stand-in of this kind."""
    monkeypatch.setattr(VllmBackend, "_sampling_params", lambda *_: None)

    def make(kind, adapter=None, **options):
        monkeypatch.setattr(by_vllm, "VllmEngine", kind)
        return VllmBackend(tiny, adapter, EngineOptions(**options))

    return make


@pytest.fixture(
    params=[
        {"rank_pattern": {"v_proj": 2}},
        {"alpha_pattern": {"v_proj": 9}},
        {"use_dora": True},
        {"init_lora_weights": "olora"},
    ],
    ids=str,
)
def special(request, tiny, tmp_path):
    """An adapter that vLLM would apply wrongly apart, or not at all; (folder, what it has)."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    lora = LoraConfig(
        r=4, target_modules=["q_proj", "v_proj"], **{"init_lora_weights": False} | request.param
    )
    get_peft_model(AutoModelForCausalLM.from_pretrained(tiny.path), lora).save_pretrained(tmp_path / "a")
    return tmp_path / "a", next(iter(request.param))


@pytest.mark.parametrize("cpu", [False, True])
def test_what_vllm_cannot_apply_apart_is_merged_or_refused(
    open_with, special, tiny, tmp_path, monkeypatch, cpu
):
    """On a GPU, too, where a large model's adapters stay apart."""
    monkeypatch.setenv("ARCNB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(by_vllm, "on_cpu", lambda: cpu)
    monkeypatch.setattr(by_vllm, "is_small", lambda folder: False)
    adapter, name = special
    backend = open_with(CountingEngine, adapter)
    served = backend.engine.settings
    assert (served.max_rank, served.model.folder.parent) == (0, tmp_path / "cache" / "merged")
    with pytest.raises(ArcnbError, match=f"cannot apply adapter .* it has {name}; use backend=transformers"):
        open_with(CountingEngine, max_lora_rank=8).use_adapter(adapter)


def test_a_merged_adapter_that_is_written_again_is_another(open_with, special, tmp_path, monkeypatch):
    monkeypatch.setenv("ARCNB_CACHE", str(tmp_path / "cache"))
    adapter, _ = special
    backend = open_with(CountingEngine, adapter)
    backend.use_adapter(adapter)
    settings = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps(settings | {"lora_alpha": 99}))
    with pytest.raises(
        ArcnbError, match=r"merged into this engine's weights, .* and was written again since"
    ):
        backend.use_adapter(adapter)
    with pytest.raises(ArcnbError, match="as the only one of a small model is; open it with max_lora_rank"):
        backend.use_adapter(None)


def asked(count, n=1):
    return [Request([1 + key, 2], n=n, seed=key, key=key) for key in range(count)]


def test_an_engine_is_given_completions_in_bursts_and_never_runs_short(open_with):
    backend = open_with(CountingEngine)
    made = list(backend.generate(asked(40), SHORT))
    assert sorted(completion.key for completion in made) == list(range(40))
    assert backend.engine.waiting[:9] == [16, 15, 14, 13, 16, 15, 14, 13, 16]
    assert min(backend.engine.waiting[:-13]) > CountingEngine.max_num_seqs


@pytest.mark.parametrize(
    ("requests", "held"), [(asked(16), [0]), (asked(4, n=4), [0]), (asked(17), []), (iter(asked(3)), [])]
)
def test_a_list_that_an_engine_can_hold_begins_when_all_are_there(open_with, requests, held):
    backend = open_with(CountingEngine)
    list(backend.generate(requests, SHORT))
    assert backend.engine.held == held


@pytest.mark.parametrize("engine", ["vllm", "transformers"])
def test_a_token_that_the_model_does_not_know_never_reaches_an_engine(open_with, tiny, engine):
    if engine == "vllm":
        backend = open_with(CountingEngine)
    else:
        backend = open_backend("transformers", tiny, announce=lambda line: None)
    for wrong in (tiny.vocabulary, -1):
        with pytest.raises(
            ArcnbError, match=f"request 'k': the prompt has token .* the model knows {tiny.vocabulary}"
        ):
            list(backend.generate([Request([1, wrong], key="k")], SHORT))
    assert len(list(backend.generate(asked(1), SHORT))) == 1
    backend.close()


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
    assert backend.engine.waiting[:10] == [2 * n_seqs] * 10


def test_what_is_cancelled_and_left_is_dropped_in_the_engine(open_with):
    backend = open_with(CountingEngine)
    stream = backend.generate([Request([key], n=4, key=key % 2) for key in range(1, 5)], SHORT)
    first = next(stream)
    backend.cancel(1 - first.key)
    assert {c.key for c in (next(stream), next(stream))} == {first.key}
    stream.close()
    assert not backend.engine.names
    assert len(backend.engine.aborted) == 16 - 3
    assert len(list(backend.generate(asked(4), SHORT))) == 4


class MortalEngine(CountingEngine):
    """Dies at the steps that `deaths` numbers, over all its lives."""

    deaths = ()

    def step(self):
        if len(self.waiting) in self.deaths:
            self.waiting.append("death")
            raise EngineDied("no memory")
        return super().step()


class StillbornEngine(MortalEngine):
    """When started anew it dies as soon as it is given something to do."""

    deaths = (2,)

    def add(self, *request):
        if self.starts > 1:
            raise EngineDied("no memory")
        super().add(*request)


def test_an_engine_that_dies_while_it_is_fed_anew_has_died_twice(open_with):
    backend = open_with(StillbornEngine)
    with pytest.raises(ArcnbError, match="the vllm engine died twice: no memory"):
        list(backend.generate(asked(4), SHORT))
    assert backend.engine.starts == 2
    backend.engine.starts = 1
    backend.engine.deaths = ()
    assert len(list(backend.generate(asked(3), SHORT))) == 3, "what the last call left is made"


def test_an_engine_that_dies_is_restarted_and_gets_its_requests_again(open_with):
    backend = open_with(MortalEngine)
    backend.engine.deaths = (5,)
    keys = [completion.key for completion in backend.generate(asked(60), SHORT)]
    assert sorted(keys) == list(range(60)), "lost or made twice"
    assert backend.engine.starts == 2
    assert len(backend.engine.given) > len(set(backend.engine.given)) == 60


def test_an_engine_that_dies_while_it_is_given_a_request_loses_none(open_with):
    class DiesOfAnAddition(CountingEngine):
        def add(self, *request):
            if len(self.given) == 7 and self.starts == 1:
                raise EngineDied("no memory")
            super().add(*request)

    backend = open_with(DiesOfAnAddition)
    found = [(c.key, c.index) for c in backend.generate(asked(10, n=3), SHORT)]
    assert sorted(found) == [(key, index) for key in range(10) for index in range(3)]
    assert backend.engine.starts == 2


def test_an_engine_may_die_once_a_call(open_with):
    backend = open_with(MortalEngine)
    for deaths in range(1, 3):
        backend.engine.deaths = (len(backend.engine.waiting) + 3,)
        assert len(list(backend.generate(asked(60), SHORT))) == 60
        assert backend.engine.starts == 1 + deaths
    backend.engine.deaths = tuple(len(backend.engine.waiting) + step for step in (1, 4))
    with pytest.raises(ArcnbError, match="the vllm engine died twice: no memory"):
        list(backend.generate(asked(60), SHORT))


@pytest.fixture
def two_gpus(tmp_path, monkeypatch):
    """A machine of two GPUs, the second one emptier."""
    pair = [Gpu(0, "GPU-0", 140 * GIB, 70 * GIB), Gpu(1, "GPU-1", 140 * GIB, 140 * GIB)]
    monkeypatch.setattr(gpus, "visible_gpus", lambda: pair)
    monkeypatch.setattr(vllm_engine, "on_cpu", lambda: False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # where the locks are
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    monkeypatch.delenv(gpus.VARIABLE, raising=False)


class GpuEngine(VllmEngine):
    """Takes the GPUs as engines do; its vLLM is nothing. fails: it cannot start."""

    fails = False

    def _start(self):
        self._gpus.take()
        self.started_as = self.device, os.environ[gpus.VARIABLE]
        if self.fails:
            raise ArcnbError("vllm cannot start")
        self._llm = object()

    def _end(self):
        self._llm = None


def emptier_one_is_free() -> bool:
    """Whether a process that looks for a GPU would take the emptier one."""
    other = GpuChoice()
    before = os.environ.get(gpus.VARIABLE)
    other.take()
    taken = [gpu.index for gpu in other.taken]
    other.release()
    assert os.environ.get(gpus.VARIABLE) == before
    return taken == [1]


def test_an_engine_keeps_its_gpu_when_it_is_restarted_and_gives_it_back_at_the_end(two_gpus, tiny):
    engine = GpuEngine(EngineSettings(tiny, 256, 0, EngineOptions()))
    for begin in (engine.start, engine.restart):
        begin()
        assert engine.started_as == ("GPU 1", "1")
        assert not emptier_one_is_free()
    engine.close()
    assert not engine.running
    assert gpus.VARIABLE not in os.environ
    assert emptier_one_is_free()


@pytest.mark.parametrize("restarted", [False, True])
def test_nothing_is_left_of_an_engine_that_cannot_start(two_gpus, tiny, restarted):
    engine = GpuEngine(EngineSettings(tiny, 256, 0, EngineOptions()))
    if restarted:
        engine.start()
    engine.fails = True
    with pytest.raises(ArcnbError, match="vllm cannot start"):
        engine.restart() if restarted else engine.start()
    assert not engine.running
    assert gpus.VARIABLE not in os.environ
    assert emptier_one_is_free()
