"""What surrounds an engine: the guard that outlives its parent, the log, the memory check beforehand."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from arcnb.machine.gpus import Gpu, visible_gpus
from arcnb.models.memory import fitting
from arcnb.models.memory.fitting import memory_advice, memory_problem
from arcnb.models.memory.shape import GIB
from arcnb.models.registry import ModelPath
from arcnb.models.sampling import by_vllm, vllm_engine
from arcnb.models.sampling.backends import EngineOptions
from arcnb.models.sampling.by_vllm import merged_is_faster
from arcnb.models.sampling.engine_guard import (
    MARK_VARIABLE,
    folder_of,
    kill_marked,
    marked_processes,
    start_guard,
)
from arcnb.models.sampling.engine_log import EngineLog
from arcnb.models.sampling.vllm_engine import EngineSettings
from tests.lab.watching import process_exists, wait_for

PARENT = f"""
import os, subprocess, sys, time
from arcnb.models.sampling.engine_guard import start_guard
mark, guard = start_guard()
marked = {{**os.environ, "{MARK_VARIABLE}": mark}}
engine = subprocess.Popen(["sleep", "300"], env=marked, start_new_session=True)
print(mark, guard.pid, flush=True)
time.sleep(300)
"""


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGTERM])
def test_engine_processes_die_with_their_parent_and_so_does_the_guard(sign):
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    mark, guard = parent.stdout.readline().split()
    wait_for(lambda: len(marked_processes(mark)) == 1)  # its environment can be read soon after its start
    (folder_of(mark) / "left").touch()
    parent.send_signal(sign)
    parent.wait(20)
    parent.stdout.close()
    wait_for(lambda: not marked_processes(mark))
    wait_for(lambda: not process_exists(int(guard)))
    assert not folder_of(mark).exists()


def test_guard_survives_the_killing_of_its_parents_process_group():
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    mark, _ = parent.stdout.readline().split()
    os.killpg(parent.pid, signal.SIGINT)
    parent.wait(20)
    parent.stdout.close()
    wait_for(lambda: not marked_processes(mark))


def test_processes_of_others_are_spared():
    mark, guard = start_guard()
    bystander = subprocess.Popen(["sleep", "300"])
    marked = subprocess.Popen(["sleep", "300"], env={MARK_VARIABLE: mark})
    try:
        wait_for(lambda: marked_processes(mark) == [marked.pid])
        kill_marked(mark)
        assert marked.wait(20) == -signal.SIGKILL
        assert bystander.poll() is None
    finally:
        for process in (guard, bystander):
            process.kill()
            process.wait()


def test_log_takes_the_output_of_child_processes_and_names_the_last_cause():
    log = EngineLog()
    text = (
        "(EngineCore pid=7) ERROR 11-21 07:30:48 [core.py:1] ValueError: One request needs 16 GiB\n"
        "RuntimeError: Engine core initialization failed. See root cause above.\n"
    )
    with log.capture():
        subprocess.run([sys.executable, "-c", f"import sys; sys.stderr.write({text!r})"], check=True)
        os.system("echo to stdout")
    assert log.last_error() == "ValueError: One request needs 16 GiB"
    assert "to stdout" in log.text()
    log.close()
    assert log.last_error() == ""


def test_a_named_log_keeps_all_engines_and_quotes_the_last_one(tmp_path):
    path = tmp_path / "run" / "engine.log"
    for said, error in (
        ("ValueError: the first\n", "ValueError: the first"),
        ("(EngineCore pid=7) WARNING 11-21 07:30:48 [a.py:1] ImportError: did no harm\n", ""),
    ):
        log = EngineLog(path)
        with log.capture():
            subprocess.run([sys.executable, "-c", f"import sys; sys.stderr.write({said!r})"], check=True)
        assert log.last_error() == error
        log.close()
    assert path.read_text().count("Error: ") == 2


def test_log_gives_the_descriptors_back(capfd):
    log = EngineLog()
    with contextlib.suppress(KeyError), log.capture():
        os.system("echo inside")
        raise KeyError
    os.system("echo outside")
    assert capfd.readouterr().out == "outside\n"
    log.close()


@pytest.fixture
def h200(monkeypatch):
    """A machine with one GPU of 140 GiB, all free, whatever this one has; the function sets what is free."""

    def set_free(free_gib: float) -> None:
        gpu = Gpu(0, "GPU-0", 140 * GIB, int(free_gib * GIB))
        monkeypatch.setattr(fitting, "visible_gpus", lambda visible=None: [gpu])

    set_free(140)
    return set_free


def test_no_problem_where_there_is_room(tiny, h200):
    assert memory_problem(tiny.folder, 256, EngineOptions()) is None


@pytest.mark.parametrize(("free", "share"), [(140, 0.9), (93.2, 0.66), (20, 0.14)])
def test_a_share_that_is_left_open_is_what_is_free(h200, free, share):
    h200(free)
    assert fitting.share_of_memory(EngineOptions()) == share
    assert fitting.share_of_memory(EngineOptions(gpu_memory_utilization=0.5)) == 0.5


def test_gpu_in_use_says_how_far_to_lower_the_share(tiny, h200):
    h200(77)
    problem = memory_problem(tiny.folder, 256, EngineOptions(gpu_memory_utilization=0.9))
    assert "asks for 126.0 of 140.0 GiB" in problem
    assert problem.endswith("lower it to 0.55")
    assert memory_problem(tiny.folder, 256, EngineOptions(gpu_memory_utilization=0.55)) is None


def test_long_context_says_how_far_to_lower_it(tiny, h200, monkeypatch):
    monkeypatch.setattr(fitting, "cache_bytes", lambda model, tokens: tokens * (GIB >> 10))
    problem = memory_problem(tiny.folder, 200_000, EngineOptions(gpu_memory_utilization=0.5))
    limit = int(problem.rsplit(" ", 1)[1])
    assert "lower max_length" in problem
    assert memory_problem(tiny.folder, limit, EngineOptions(gpu_memory_utilization=0.5)) is None


def test_a_cache_of_a_size_needs_room_beside_the_weights_and_for_a_sequence(tiny, h200, monkeypatch):
    monkeypatch.setattr(fitting, "weight_bytes", lambda model: 16 * GIB)
    monkeypatch.setattr(fitting, "cache_bytes", lambda model, tokens: tokens * (GIB >> 10))

    def problem(cache, context=1024):
        asked = EngineOptions(gpu_memory_utilization=0.05, kv_cache_gb=cache, dtype="float32")
        return memory_problem(tiny.folder, context, asked)

    assert problem(4) is None, "whatever the share, 7 GiB here, is for"
    assert "raise it to 0.13" in problem(0)
    assert "kv_cache_gb is 4; raise it" in problem(4, 5 << 10)
    h200(18)
    assert "need 20.0 GiB, but only 18.0 GiB of GPU 0 are free; lower it" in problem(4)


def test_heavy_weights_say_what_helps(tiny, h200, monkeypatch):
    monkeypatch.setattr(fitting, "weight_bytes", lambda model: 60 * GIB)
    low = EngineOptions(gpu_memory_utilization=0.3, dtype="float32")
    assert "raise it to 0.48" in memory_problem(tiny.folder, 256, low)
    monkeypatch.setattr(fitting, "weight_bytes", lambda model: 150 * GIB)
    whole = EngineOptions(dtype="float32")
    assert "use load_in_4bit" in memory_problem(tiny.folder, 256, whole)
    assert memory_problem(tiny.folder, 256, replace(whole, load_in_4bit=True)) is None
    assert memory_problem(tiny.folder, 256, whole, fp8_weights=True) is None
    assert memory_problem(tiny.folder, 256, EngineOptions()) is None, "float32 files are loaded as 16 bit"


def test_a_cache_in_eight_bits_is_half_as_large(tiny, h200, monkeypatch):
    monkeypatch.setattr(fitting, "cache_bytes", lambda model, tokens: tokens * (GIB >> 10))
    for context, halved, refused in (
        (100 << 10, False, False),
        (200 << 10, False, True),
        (200 << 10, True, False),
    ):
        problem = memory_problem(tiny.folder, context, EngineOptions(), fp8_cache=halved)
        assert (problem is not None) == refused


def test_cache_of_the_embedded_model(embedded):
    # keys and values, 2 bytes, 30 layers, 3 heads of 64
    assert fitting.cache_bytes(embedded.folder, 1) == 2 * 2 * 30 * 3 * 64


def test_visible_gpus_selects_and_orders(monkeypatch):
    table = "0, GPU-aa, 1000, 900\n1, GPU-bb, 1000, 800\n"
    answer = subprocess.CompletedProcess([], 0, stdout=table)
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: answer)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert [gpu.index for gpu in visible_gpus()] == [0, 1]
    assert [gpu.index for gpu in visible_gpus("1,0")] == [1, 0]
    assert [gpu.free >> 20 for gpu in visible_gpus("GPU-bb")] == [800]
    assert visible_gpus("") == []
    assert [gpu.index for gpu in visible_gpus("1,-1,0")] == [1], "CUDA stops reading there"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert [gpu.index for gpu in visible_gpus()] == [1]


def test_no_gpu_is_no_problem(monkeypatch, tiny):
    def missing(*args, **kwargs):
        raise FileNotFoundError

    monkeypatch.setattr(subprocess, "run", missing)
    assert visible_gpus() == []
    assert memory_problem(tiny.folder, 256, EngineOptions()) is None


OUT_OF_MEMORY = [
    (
        "ValueError: Free memory on device cuda:0 (42.7/139.8 GiB) on startup is less than desired GPU "
        "memory utilization (0.9, 125.8 GiB). Decrease GPU memory utilization",
        "lower vllm_gpu_memory_utilization from 0.9 to 0.3",
    ),
    (
        "ValueError: Free memory on device (100.0/139.8 GiB) on startup is less than desired",
        "lower vllm_gpu_memory_utilization from 0.9 to 0.71",
    ),
    (
        "ValueError: To serve at least one request with the model's max seq len (8192), (4.00 GiB KV cache "
        "is needed, which is larger than the available KV cache memory (2.00 GiB). Based on the available "
        "memory, the estimated maximum model length is 4096. Try increasing `gpu_memory_utilization`",
        "lower max_length from 8192 to 4096",
    ),
    (
        "ValueError: No available memory for the cache blocks. Try increasing",
        "raise vllm_gpu_memory_utilization from 0.9 to 0.95",
    ),
    (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "lower vllm_gpu_memory_utilization from 0.9 to 0.8, or max_num_seqs to 128",
    ),
]


@pytest.mark.parametrize(("cause", "advice"), OUT_OF_MEMORY)
def test_a_start_without_enough_memory_says_what_to_change_and_by_how_much(cause, advice):
    options = EngineOptions(gpu_memory_utilization=0.9, max_model_len=8192, max_num_seqs=256)
    assert memory_advice(cause, options).startswith(advice)


@pytest.mark.parametrize(
    ("cpu", "size", "in_4bit", "merged"),
    [
        (True, 1, False, True),
        (True, 2, False, True),
        (False, 1, False, True),
        (False, 1, True, False),
        (False, 2, False, False),
        (False, 0, False, False),
    ],
)
def test_an_adapter_is_merged_where_it_would_slow_the_engine_down(
    monkeypatch, tmp_path, cpu, size, in_4bit, merged
):
    monkeypatch.setattr(by_vllm, "on_cpu", lambda: cpu)
    if size:
        with (tmp_path / "model.safetensors").open("wb") as weights:
            weights.truncate(size << 30)  # a hole, no blocks on disk
    model = ModelPath("some", tmp_path)
    assert merged_is_faster(model, EngineOptions(load_in_4bit=in_4bit)) == merged


@pytest.mark.parametrize(
    ("asked", "capability", "cpu", "dtype"),
    [
        ("auto", "AVX2", True, "float32"),
        ("auto", "AVX512", True, "auto"),
        ("auto", "AVX2", False, "auto"),
        ("bfloat16", "AVX2", True, "bfloat16"),
    ],
)
def test_a_processor_that_is_slow_at_bfloat16_computes_in_float32(
    monkeypatch, tmp_path, asked, capability, cpu, dtype
):
    monkeypatch.setattr(vllm_engine, "on_cpu", lambda: cpu)
    monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: capability)
    settings = EngineSettings(ModelPath("some", tmp_path), 4096, 0, EngineOptions(dtype=asked))
    assert vllm_engine.llm_arguments(settings)["dtype"] == dtype


@pytest.mark.parametrize(
    ("asked", "on_cpu", "given"), [(0, False, None), (0, True, 2), (3.5, False, 3.5), (3.5, True, 3.5)]
)
def test_the_size_of_the_cache(monkeypatch, tmp_path, asked, on_cpu, given):
    monkeypatch.setattr(vllm_engine, "on_cpu", lambda: on_cpu)
    settings = EngineSettings(ModelPath("some", tmp_path), 4096, 0, EngineOptions(kv_cache_gb=asked))
    found = vllm_engine.llm_arguments(settings).get("kv_cache_memory_bytes")
    assert found == (given and given * GIB)


def test_small_models_have_graphs_for_all_that_a_gpu_takes_at_a_time(monkeypatch, tmp_path):
    monkeypatch.setattr(vllm_engine, "on_cpu", lambda: False)
    (tmp_path / "model.safetensors").write_bytes(b"x")

    def arguments(**options):
        settings = EngineSettings(ModelPath("some", tmp_path), 4096, 0, EngineOptions(**options))
        return vllm_engine.llm_arguments(settings)

    sizes = arguments()["compilation_config"]["cudagraph_capture_sizes"]
    assert sizes == sorted(set(sizes))
    assert {1, 512, 1024, 4096} <= set(sizes)
    assert "compilation_config" not in arguments(enforce_eager=True)
    (tmp_path / "model.safetensors").unlink()
    assert "compilation_config" not in arguments()
    assert arguments(gpu_memory_utilization=0.8)["gpu_memory_utilization"] == 0.8


def test_weights_that_are_there_twice_count_once(tmp_path):
    """As in folders that have the same weights in one file for other programs."""
    names = {"a": "model-1.safetensors", "b": "model-2.safetensors", "c": "model-1.safetensors"}
    for name, size in (("model-1", 10), ("model-2", 20), ("consolidated", 30)):
        (tmp_path / f"{name}.safetensors").write_bytes(b"x" * size)
    assert fitting.weight_bytes(tmp_path) == 60
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    assert fitting.weight_bytes(tmp_path) == 30
