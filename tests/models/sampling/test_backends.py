"""One contract for every backend: the same promises asked of vLLM, of servers and of transformers.

The vLLM engine is started once for all its tests (about 30 s on two cores).
"""

import itertools
import math
import multiprocessing
import os
import re
import shutil
import signal
import threading
import time

import numpy as np
import pytest

from arcnb.arc.seeds import derive_seed
from arcnb.arc.tasks.task_set import load_tasks
from arcnb.errors import ArcnbError
from arcnb.models.prompts.format import prompt_format
from arcnb.models.registry import load_tokenizer
from arcnb.models.sampling import backends
from arcnb.models.sampling.backends import EngineOptions, Request, Sampling, open_backend
from arcnb.models.sampling.by_server import ServerBackend
from arcnb.models.sampling.engine_guard import folder_of, marked_processes
from tests.lab.watching import wait_for

vllm_missing = backends.importlib.util.find_spec("vllm") is None
NAMES = [
    "transformers",
    "server",
    pytest.param("vllm", marks=pytest.mark.skipif(vllm_missing, reason="no vllm")),
]


@pytest.fixture(scope="module")
def make_server(embedded_tokenizer):
    from importlib.util import module_from_spec, spec_from_file_location
    from pathlib import Path

    spec = spec_from_file_location("completion_server", Path(__file__).parent / "completion_server.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    servers = []

    def make(**settings):
        servers.append(module.CompletionServer(embedded_tokenizer, **settings))
        return servers[-1]

    yield make
    for server in servers:
        server.close()


@pytest.fixture(scope="module", params=NAMES)
def backend(request, tiny, make_server):
    options = EngineOptions(max_num_seqs=32, dtype="float32", max_lora_rank=8, max_loras=2, kv_cache_gb=1)
    if request.param == "server":
        options = EngineOptions(server_urls=(make_server().url,), server_concurrency=8)
    with open_backend(request.param, tiny, options=options, announce=lambda line: None) as backend:
        yield backend


def prompts(n, length=20):
    rng = np.random.default_rng(0)
    return [rng.integers(100, 5000, length + i).tolist() for i in range(n)]


def collect(backend, requests, sampling):
    """All completions by (key, index)."""
    completions = list(backend.generate(requests, sampling))
    found = {(c.key, c.index): c for c in completions}
    assert len(found) == len(completions), "a completion came twice"
    return found


def test_every_completion_comes_once_and_complete(backend):
    requests = [Request(ids, n=1 + i % 4, seed=i, key=("task", i)) for i, ids in enumerate(prompts(7))]
    found = collect(backend, iter(requests), Sampling(max_tokens=12))
    assert set(found) == {(r.key, i) for r in requests for i in range(r.n)}
    for request in requests:
        for i in range(request.n):
            c = found[request.key, i]
            assert c.n_prompt_tokens == len(request.prompt_ids)
            assert c.seed == derive_seed(request.seed, i)
            assert c.finish_reason in ("stop", "length")
            assert 1 <= len(c.token_ids) <= 12
            assert (c.finish_reason == "length") == (len(c.token_ids) == 12) or c.token_ids[-1] == 2
            assert c.text == backend.tokenizer.decode(c.token_ids, skip_special_tokens=True)
            assert c.logprob is None


def test_same_requests_same_completions_other_seed_others(backend):
    requests = [Request(ids, n=3, seed=1, key=i) for i, ids in enumerate(prompts(3))]
    sampling = Sampling(max_tokens=10)
    first, again = collect(backend, requests, sampling), collect(backend, requests, sampling)
    assert {k: tuple(c.token_ids) for k, c in first.items()} == {
        k: tuple(c.token_ids) for k, c in again.items()
    }
    others = collect(backend, [Request(r.prompt_ids, 3, 2, r.key) for r in requests], sampling)
    assert all(tuple(first[k].token_ids) != tuple(others[k].token_ids) for k in first)
    for key in range(3):
        assert len({tuple(first[key, i].token_ids) for i in range(3)}) == 3, "completions repeat"


def test_nothing_of_a_list_begins_before_all_of_it_is_there(backend, monkeypatch):
    """Else what is computed together, and so the numbers, would depend on how busy the machine is."""
    if backend.name != "vllm":
        pytest.skip("of vllm's engines")
    engine, steps = backend.engine, []
    add, step = engine.add, engine.step

    def late(*words):
        add(*words)
        time.sleep(0.05)  # an engine that had begun would be done in that time

    def counting():
        outputs = step()
        steps.append(len(outputs))
        return outputs

    monkeypatch.setattr(engine, "add", late)
    monkeypatch.setattr(engine, "step", counting)
    requests = [Request(ids, n=4, seed=3, key=i) for i, ids in enumerate(prompts(3))]
    assert len(collect(backend, requests, Sampling(max_tokens=4))) == 12
    assert sum(steps) == 12 > len(steps), "each by itself would take three or four steps"


def test_request_that_does_not_fit_is_answered_skipped_and_never_cut(backend):
    context = backend.context
    assert context == 256
    requests = [Request([5] * (context - 9), n=2, key="long"), Request([5] * (context - 10), n=1, key="fits")]
    found = collect(backend, requests, Sampling(max_tokens=10))
    assert [found["long", i].finish_reason for i in (0, 1)] == ["skipped", "skipped"]
    assert (found["long", 1].text, len(found["long", 1].token_ids)) == ("", 0)
    assert found["fits", 0].finish_reason in ("stop", "length")


@pytest.mark.parametrize(("cores", "told", "taken"), [(16, 3, 3), (4, 4, 3), (1, 2, 1)])
def test_transformers_takes_no_more_threads_than_it_was_told_and_leaves_a_core(
    tiny, monkeypatch, cores, told, taken
):
    import torch

    monkeypatch.setattr("os.sched_getaffinity", lambda process: range(cores))
    before = torch.get_num_threads()
    torch.set_num_threads(told)
    try:
        with open_backend("transformers", tiny, announce=lambda line: None):
            assert torch.get_num_threads() == taken
        assert torch.get_num_threads() == told
    finally:
        torch.set_num_threads(before)


def test_logprob_is_that_of_the_plain_policy(backend):
    request = [Request(prompts(1)[0], n=2, key=0)]
    for c in backend.generate(request, Sampling(max_tokens=6, logprob=True, temperature=0.7)):
        assert math.isfinite(c.logprob)
        assert c.logprob < 0
    if backend.name == "server":  # made-up figures there
        return
    import torch
    from transformers import AutoModelForCausalLM

    net = AutoModelForCausalLM.from_pretrained(backend.model.path)
    for c in backend.generate(request, Sampling(max_tokens=6, logprob=True, temperature=0.7, top_k=50)):
        ids = torch.tensor([[*request[0].prompt_ids, *c.token_ids]])
        with torch.no_grad():
            logprobs = net(ids).logits[0].log_softmax(-1)
        n = len(request[0].prompt_ids)
        expected = sum(logprobs[n - 1 + i, token].item() for i, token in enumerate(c.token_ids))
        assert c.logprob == pytest.approx(expected, abs=1e-2)


def test_requests_are_taken_only_as_there_is_room_and_completions_come_early(backend):
    taken = 0

    def endless():
        nonlocal taken
        for i in itertools.count():
            taken += 1
            yield Request([100 + i % 50] * 10, n=1, seed=i, key=i)

    completions = list(itertools.islice(backend.generate(endless(), Sampling(max_tokens=4)), 5))
    assert len(completions) == 5
    assert taken <= 5 + 2 * 32


def test_leaving_early_leaves_the_backend_usable(backend):
    requests = [Request(ids, n=4, seed=i, key=("left", i)) for i, ids in enumerate(prompts(6))]
    for _ in backend.generate(requests, Sampling(max_tokens=8)):
        break
    found = collect(backend, [Request(prompts(1)[0], n=2, key="next")], Sampling(max_tokens=8))
    assert set(found) == {("next", 0), ("next", 1)}


def test_cancelled_key_sends_nothing_more(backend):
    requests = [Request(ids, n=6, seed=i, key=i % 2) for i, ids in enumerate(prompts(8))]
    seen = []
    for c in backend.generate(requests, Sampling(max_tokens=20)):
        seen.append(c.key)
        if len(seen) == 1:
            backend.cancel(1 - c.key)
    assert set(seen) == {seen[0]}
    assert len(seen) == 24


def test_greedy_completions_agree(backend):
    requests = [Request(prompts(1)[0], n=3, key=0)]
    texts = {c.text for c in backend.generate(requests, Sampling(temperature=0, max_tokens=8))}
    assert len(texts) == 1


@pytest.fixture(scope="module")
def adapter(tmp_path_factory, tiny):
    """A LoRA adapter of rank 4 for the tiny model that changes a lot."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    with torch.random.fork_rng():
        torch.manual_seed(1)
        config = LoraConfig(
            r=4, lora_alpha=64, target_modules=["q_proj", "v_proj", "down_proj"], init_lora_weights=False
        )
        net = get_peft_model(AutoModelForCausalLM.from_pretrained(tiny.path), config)
        for name, weight in net.named_parameters():
            if "lora_" in name:
                weight.data.normal_(0, 0.3)
    folder = tmp_path_factory.mktemp("adapters") / "strong"
    net.save_pretrained(folder)
    return folder


def test_adapter_goes_on_and_off(backend, adapter):
    if backend.name == "server":
        pytest.skip("adapters of a server have names, see below")
    requests = [Request(ids, key=i) for i, ids in enumerate(prompts(3))]
    sampling = Sampling(temperature=0, max_tokens=8)

    def texts():
        return {k: tuple(c.token_ids) for k, c in collect(backend, requests, sampling).items()}

    plain = texts()
    backend.use_adapter(adapter)
    adapted = texts()
    assert str(adapter) in backend.description
    backend.use_adapter(None)
    assert texts() == plain
    assert adapted != plain
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    net = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(backend.model.path), adapter)
    for (key, _), ids in adapted.items():
        assert ids == greedy(net, requests[key].prompt_ids, 8)


@pytest.mark.parametrize("lora", [{"bias": "all"}, {"init_lora_weights": "pissa"}], ids=str)
def test_an_adapter_that_changes_the_models_own_weights_stays(tiny, adapter, tmp_path, lora):
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    net = get_peft_model(
        AutoModelForCausalLM.from_pretrained(tiny.path), LoraConfig(target_modules=["q_proj"], **lora)
    )
    net.save_pretrained(tmp_path / "lasting")
    with open_backend("transformers", tiny, adapter) as backend:
        backend.use_adapter(tmp_path / "lasting")
        backend.use_adapter(tmp_path / "lasting")
        for other in (None, adapter):
            with pytest.raises(
                ArcnbError, match=f"model's own weights .its {next(iter(lora))}.; open another"
            ):
                backend.use_adapter(other)
        assert backend.adapter == tmp_path / "lasting"


def test_vllm_takes_requests_for_several_adapters_in_one_call(backend, adapter, tmp_path):
    if backend.name != "vllm":
        pytest.skip("transformers and servers have one adapter at a time")
    from safetensors.torch import load_file, save_file

    other = tmp_path / "other"
    shutil.copytree(adapter, other)
    weights = load_file(other / "adapter_model.safetensors")
    turned = {name: -value if "lora_B" in name else value for name, value in weights.items()}
    save_file(turned, other / "adapter_model.safetensors")
    greedy, (ids,) = Sampling(temperature=0, max_tokens=8), prompts(1)
    alone = {}
    for folder in (adapter, other):
        backend.use_adapter(folder)
        alone[folder] = collect(backend, [Request(ids)], greedy)[None, 0].token_ids
    assert alone[adapter] != alone[other]
    assert backend.adapters_at_once == 2
    backend.use_adapter(None)
    asked = [Request(ids, key=(folder, i), adapter=folder) for i in range(3) for folder in (adapter, other)]
    found = collect(backend, asked, greedy)
    assert len(found) == 6
    assert all(made.token_ids == alone[folder] for ((folder, _), _), made in found.items())


@pytest.fixture(scope="module")
def merged(tiny, adapter, tmp_path_factory):
    """A backend of vllm with the adapter merged into the engine's weights, opened as after an engine inside
    this process, such as a trainer's: vllm then remembers an environment in which engines share it."""
    envs = pytest.importorskip("vllm.envs")
    log = tmp_path_factory.mktemp("engine") / "engine.log"
    options = EngineOptions(max_model_len=256, max_num_seqs=4, dtype="float32", kv_cache_gb=1, log=log)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ARCNB_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        envs.enable_envs_cache()
        assert not envs.VLLM_ENABLE_V1_MULTIPROCESSING
        opened = open_backend("vllm", tiny.path, adapter, options, announce=lambda line: None)
    with opened as backend:
        yield backend


def test_an_engine_opens_after_one_inside_this_process(merged):
    assert marked_processes(merged.engine.mark), "it has a process of its own all the same"
    made = list(merged.generate([Request([1, 5, 7], 1, 0, "a")], Sampling(max_tokens=4)))
    assert [completion.key for completion in made] == ["a"]


def test_an_engine_says_in_its_log_what_it_loads(merged):
    options = merged.engine.settings.options
    assert re.search(r"INFO .*Loading weights took", options.log.read_text())


def test_a_single_adapter_is_merged_on_a_cpu_and_writes_the_same(merged, tiny, adapter):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    requests = [Request(ids, key=i) for i, ids in enumerate(prompts(2))]
    made = collect(merged, requests, Sampling(temperature=0, max_tokens=8))
    assert str(adapter) in merged.description
    with pytest.raises(ArcnbError, match="merged into this engine's weights"):
        merged.use_adapter(None)
    merged.use_adapter(adapter)
    net = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tiny.path), adapter)
    for (key, _), completion in made.items():
        assert tuple(completion.token_ids) == greedy(net, requests[key].prompt_ids, 8)


@pytest.mark.skipif(vllm_missing, reason="no vllm")
def test_nothing_is_left_of_a_start_that_is_interrupted(tiny, monkeypatch):
    started = []

    def start(**settings):
        process = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(300,))
        process.start()
        started.append(process)
        raise KeyboardInterrupt

    monkeypatch.setattr("vllm.LLM", start)
    with pytest.raises(KeyboardInterrupt):
        open_backend("vllm", tiny, None, EngineOptions(max_model_len=256), announce=lambda line: None)
    (process,) = started
    process.join(20)
    assert process.exitcode == -signal.SIGKILL


def greedy(net, prompt_ids, n):
    """The library's own greedy completion."""
    import torch

    ids = torch.tensor([prompt_ids])
    out = net.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=n, do_sample=False, pad_token_id=0
    )
    return tuple(out[0, len(prompt_ids) :].tolist())


def test_prompts_of_different_lengths_do_not_disturb_each_other(backend):
    if backend.name == "server":
        pytest.skip("made-up tokens")
    from transformers import AutoModelForCausalLM

    net = AutoModelForCausalLM.from_pretrained(backend.model.path)
    lists = [ids[: 3 + 6 * i] for i, ids in enumerate(prompts(4, length=40))]
    found = collect(
        backend, [Request(ids, key=i) for i, ids in enumerate(lists)], Sampling(temperature=0, max_tokens=10)
    )
    for i, ids in enumerate(lists):
        assert tuple(found[i, 0].token_ids) == greedy(net, ids, 10)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_weights_that_are_no_numbers_are_named(tiny, adapter, tmp_path, temperature):
    from safetensors.torch import load_file, save_file

    broken = shutil.copytree(adapter, tmp_path / "broken")
    path = broken / "adapter_model.safetensors"
    save_file({name: tensor * float("nan") for name, tensor in load_file(path).items()}, path)
    sampling = Sampling(temperature=temperature, max_tokens=3)
    with (
        open_backend("transformers", tiny, broken) as backend,
        pytest.raises(ArcnbError, match=r"adapter .*broken computes what is no number \(nan\)"),
    ):
        list(backend.generate([Request([40, 41], key="k")], sampling))


@pytest.mark.parametrize("kind", ["Lfm2", "FalconH1"])
def test_layers_that_keep_other_states_than_keys_and_values_go_with_their_rows(tiny, tmp_path, kind):
    """Lfm2 has layers of both kinds, FalconH1 both in each."""
    import torch
    import transformers

    shapes = {
        "Lfm2": {"layer_types": ["conv", "full_attention"]},
        "FalconH1": {"mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8},
    }
    settings = {"vocab_size": 49152, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    settings |= {"num_attention_heads": 2, "num_key_value_heads": 2, "eos_token_id": 2, **shapes[kind]}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = getattr(transformers, f"{kind}Config")(**settings, max_position_embeddings=256)
        net = transformers.AutoModelForCausalLM.from_config(config).eval()
    net.save_pretrained(tmp_path)
    load_tokenizer(tiny).save_pretrained(tmp_path)
    lists = [ids[: 3 + 6 * i] for i, ids in enumerate(prompts(3, length=40))]
    requests = [Request(ids, n=2, key=i) for i, ids in enumerate(lists)]
    with open_backend("transformers", tmp_path) as backend:
        found = collect(backend, requests, Sampling(temperature=0, max_tokens=10))
    for (key, _), completion in found.items():
        assert tuple(completion.token_ids) == greedy(net, lists[key], 10)


def test_a_model_without_keys_and_values_is_refused_by_transformers(tiny, tmp_path):
    from transformers import Mamba2Config, Mamba2ForCausalLM

    shape = {"hidden_size": 32, "num_heads": 4, "head_dim": 16, "state_size": 8, "n_groups": 1}
    Mamba2ForCausalLM(Mamba2Config(vocab_size=49152, num_hidden_layers=1, **shape)).save_pretrained(tmp_path)
    load_tokenizer(tiny).save_pretrained(tmp_path)
    with (
        open_backend("transformers", tmp_path, options=EngineOptions(max_model_len=64)) as backend,
        pytest.raises(ArcnbError, match="samples from no Mamba2ForCausalLM"),
    ):
        list(backend.generate([Request([40, 41], key="k")], Sampling(max_tokens=2)))


def test_many_long_prompts_at_once(backend):
    """More tokens than an engine reads in one step; seeded, on a CPU, a prompt read in parts killed vllm."""
    requests = [Request([100 + i, *range(200, 430)], seed=i, key=i) for i in range(40)]
    assert len(collect(backend, requests, Sampling(max_tokens=3))) == 40


def test_end_tokens_do_not_end_a_completion_that_ignores_them(backend, monkeypatch):
    if backend.name == "vllm":
        assert backend._sampling_params(Sampling(ignore_eos=True), 0).ignore_eos
    if backend.name != "transformers":
        return
    request = Request(prompts(1)[0], key=0)
    (whole,) = backend.generate([request], Sampling(max_tokens=8))
    monkeypatch.setattr(backend, "_end_ids", {whole.token_ids[3]})
    (ended,) = backend.generate([request], Sampling(max_tokens=8))
    (on,) = backend.generate([request], Sampling(max_tokens=8, ignore_eos=True))
    assert (len(ended.token_ids), ended.finish_reason) == (4, "stop")
    assert (on.token_ids, on.finish_reason) == (whole.token_ids, "length")


@pytest.mark.long("vLLM engines start")
def test_an_engine_that_dies_is_restarted_once_and_then_fails_with_the_cause(backend):
    """Last of the vllm tests: it costs a second start."""
    if backend.name != "vllm":
        pytest.skip("no engine process")

    def kill_engine():
        for pid in marked_processes(backend.engine.mark):
            os.kill(pid, signal.SIGKILL)

    requests = [Request(ids, n=4, seed=i, key=i) for i, ids in enumerate(prompts(40))]
    stream = backend.generate(requests, Sampling(max_tokens=12))
    found = [next(stream)]
    kill_engine()
    found += itertools.islice(stream, 80)
    keys = {(c.key, c.index) for c in found}
    assert len(keys) == len(found) == 81
    assert {(k, i) for k in range(8) for i in range(4)} <= keys, "what was under way at the death is missing"
    kill_engine()
    with pytest.raises(ArcnbError, match="died twice: its process was ended from outside"):
        list(stream)


def test_closed_backend_refuses_and_leaves_no_process(tiny, backend):
    if backend.name == "vllm":
        folder = folder_of(backend.engine.mark)
        assert list(folder.iterdir()), "its sockets lie there"
        backend.close()
        assert not marked_processes(backend.engine.mark)
        assert not folder.exists()
    else:
        backend.close()
    backend.close()
    with pytest.raises(ArcnbError, match="closed, as after an interrupt: open it again"):
        list(backend.generate([Request([1, 2, 3])], Sampling()))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"temperature": -1}, "temperature is -1"),
        ({"top_p": 0}, "top_p is 0"),
        ({"top_p": 1.5}, "top_p is 1.5"),
        ({"top_k": -1}, "top_k is -1"),
        ({"min_p": 2}, "min_p is 2"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0"),
        ({"max_tokens": 0}, "max_tokens is 0"),
    ],
)
def test_impossible_sampling_is_refused_by_name(settings, sentence):
    with pytest.raises(ArcnbError, match=sentence):
        Sampling(**settings)


def test_impossible_requests_are_refused_with_their_key():
    with pytest.raises(ArcnbError, match=r"request 'a': n is 0"):
        Request([1], n=0, key="a")
    with pytest.raises(ArcnbError, match=r"request 'a': the prompt is empty"):
        Request([], key="a")


def test_unknown_backend_and_missing_model_are_refused():
    with pytest.raises(ArcnbError, match="known are auto, vllm, server, transformers"):
        open_backend("llama.cpp")
    with pytest.raises(ArcnbError):
        open_backend("transformers", "no/such/folder")


def test_context_beyond_the_model_is_refused(tiny):
    with pytest.raises(ArcnbError, match=r"max_length is 999, but model .* was built for 256"):
        open_backend("transformers", tiny, options=EngineOptions(max_model_len=999))


def test_auto_falls_back_and_says_so(tiny, monkeypatch):
    monkeypatch.setattr(backends.importlib.util, "find_spec", lambda name: None)
    lines = []
    with open_backend("auto", tiny, announce=lines.append) as backend:
        assert backend.name == "transformers"
    assert lines[0].startswith("transformers ")


@pytest.mark.parametrize("adapted", [False, True])
def test_a_base_in_four_bits_has_the_quantised_weights(tiny, adapter, adapted):
    """Its scores are those of a whole model whose layers hold what four bits leave of their weights, with and
    without an adapter; some processors multiply them in bfloat16."""
    import torch
    from bitsandbytes.functional import dequantize_4bit, quantize_4bit
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    ids = torch.tensor(prompts(1))
    with torch.no_grad():
        net = AutoModelForCausalLM.from_pretrained(tiny.path, dtype=torch.float32)
        net = PeftModel.from_pretrained(net, adapter) if adapted else net
        whole = net(ids).logits
        for name, layer in net.named_modules():
            if isinstance(layer, torch.nn.Linear) and ".layers." in name and "lora_" not in name:
                # As vLLM's loader quantizes.
                packed = quantize_4bit(layer.weight, compress_statistics=True, quant_type="nf4")
                layer.weight.copy_(dequantize_4bit(*packed))
        rounded = net(ids).logits
        options = EngineOptions(load_in_4bit=True)
        with open_backend("transformers", tiny, adapter if adapted else None, options) as backend:
            quantised = backend._net(ids.to(backend.device)).logits.cpu()
    assert (quantised - rounded).norm() < 0.1 * (whole - rounded).norm()


@pytest.mark.repetition
def test_the_shipped_adapter_on_a_base_in_four_bits(embedded):
    """The shipped adapter writes a program for a task as it does on the whole base."""
    ids = prompt_format().prompt_ids(load_tokenizer(embedded), load_tasks("arc-agi-1/training")["25ff71a9"])
    options, greedy = EngineOptions(load_in_4bit=True), Sampling(max_tokens=8, temperature=0.0)
    with open_backend("transformers", embedded, "default", options=options) as backend:
        (completion,) = backend.generate([Request(ids, 1, 0, "task")], greedy)
    assert "def transform" in completion.text or "import" in completion.text


def test_no_report_begins_with_a_warning_of_bitsandbytes(caplog):
    """On some processors it says at its import, which peft's brings along, that a kernel is not there."""
    from bitsandbytes.backends.cpu.ops import logger

    logger.warning("Failed to load CPU gemm_4bit_forward from kernels-community")
    assert not caplog.records


def test_four_bits_need_their_package(tiny, monkeypatch):
    monkeypatch.setattr("arcnb.models.lora.precision.find_spec", lambda name: None)
    with pytest.raises(ArcnbError, match="needs the package bitsandbytes"):
        open_backend("transformers", tiny, options=EngineOptions(load_in_4bit=True))


def open_server(model, *servers, **settings):
    options = EngineOptions(server_urls=tuple(s.url for s in servers), **settings)
    return open_backend("server", model, options=options, announce=lambda line: None)


def test_server_gets_token_ids_and_the_sampling(make_server, small_model):
    server = make_server()
    sampling = Sampling(0.7, 0.9, 40, 0.05, 1.1, 5, True)
    with open_server(small_model, server) as backend:
        (completion,) = backend.generate([Request([7, 8, 9], seed=4, key="k")], sampling)
    (question,) = server.questions
    assert question["prompt"] == [7, 8, 9]
    assert question["model"] == "tiny"
    assert question["seed"] == derive_seed(4, 0)
    names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_tokens")
    assert [question[name] for name in names] == [0.7, 0.9, 40, 0.05, 1.1, 5]
    assert completion.logprob == -2.5


def test_completions_of_one_prompt_go_to_one_server(make_server, small_model):
    servers = [make_server(), make_server()]
    with open_server(small_model, *servers) as backend:
        list(backend.generate([Request([i + 9] * 5, n=4, key=i) for i in range(8)], Sampling(max_tokens=2)))
    shares = [{tuple(q["prompt"]) for q in server.questions} for server in servers]
    assert not shares[0] & shares[1]
    assert all(shares)


def test_a_server_that_fails_is_replaced_and_nothing_is_lost(make_server, small_model):
    broken, sound = make_server(), make_server()
    with open_server(small_model, broken, sound) as backend:
        broken.fail = True
        found = collect(backend, [Request([9] * 5, n=3, key=i) for i in range(6)], Sampling(max_tokens=2))
        assert len(found) == 18
        sound.fail = True
        with pytest.raises(ArcnbError, match="no server is left"):
            list(backend.generate([Request([9] * 5, n=3, key=0)], Sampling(max_tokens=2)))


def test_a_server_that_failed_is_asked_nothing_more(make_server, small_model):
    broken, sound = make_server(), make_server()
    requests = [Request([9] * 5, n=20, key=i) for i in range(2)]
    with open_server(small_model, broken, sound, server_concurrency=2) as backend:
        broken.fail = True
        assert len(collect(backend, requests, Sampling(max_tokens=2))) == 40
        assert 0 < len(broken.questions) <= 4, "more than were under way when it failed"
        broken.questions.clear()
        backend.use_adapter(None)
        assert len(collect(backend, requests, Sampling(max_tokens=2))) == 40
        assert not broken.questions
        sound.fail = True
        for _ in range(2):
            with pytest.raises(ArcnbError, match=r"no server is left; the last one: .* answers 500"):
                collect(backend, requests, Sampling(max_tokens=2))


def test_a_request_that_the_server_refuses_is_not_repeated(make_server, small_model):
    server = make_server()
    with open_server(small_model, server) as backend, pytest.raises(ArcnbError, match="not that temperature"):
        list(backend.generate([Request([9] * 5, key=0)], Sampling(temperature=1.25, max_tokens=2)))
    assert len(server.questions) == 1


def test_leaving_early_does_not_wait_for_slow_servers(make_server, small_model):
    server = make_server()
    server.answers = threading.Semaphore(1)
    with open_server(small_model, server, server_concurrency=4) as backend:
        stream = backend.generate(
            [Request([9] * 5, n=1, seed=i, key=i) for i in range(9)], Sampling(max_tokens=2)
        )
        next(stream)
        wait_for(lambda: len(server.questions) >= 4)
        stream.close()  # while at least three answers are still to be given
        server.answers.release(9)


def test_server_without_token_ids_still_counts_tokens(make_server, small_model):
    with open_server(small_model, make_server(token_ids=False)) as backend:
        (completion,) = backend.generate([Request([9] * 5)], Sampling(max_tokens=6))
    assert len(completion.token_ids) > 0


def test_absent_server_and_wrong_model_name_are_one_sentence(make_server, small_model):
    with pytest.raises(ArcnbError, match=r"127\.0\.0\.1:1 gives no answer.*is a vllm server running there"):
        open_backend("server", small_model, options=EngineOptions(server_urls=("http://127.0.0.1:1",)))
    with pytest.raises(ArcnbError, match="does not serve 'big'; it serves tiny, other, mine"):
        open_server(small_model, make_server(), server_model="big")
    with open_server(small_model, make_server(), server_model="other") as backend:
        assert backend.context == 99


def test_adapters_of_a_server_are_the_names_it_serves(make_server, small_model):
    server = make_server()
    request, sampling = Request([9] * 5, key=0), Sampling(max_tokens=2)
    with open_server(small_model, server, server_model="tiny") as backend:
        for adapter in ("other", None):
            backend.use_adapter(adapter)
            list(backend.generate([request], sampling))
        with pytest.raises(ArcnbError, match=r"'third'; it serves tiny, other, mine .*\"\" is none"):
            backend.use_adapter("third")
    assert [question["model"] for question in server.questions] == ["other", "tiny"]
    options = EngineOptions(server_urls=(server.url,))
    with open_backend("server", small_model, "other", options, announce=lambda line: None) as backend:
        list(backend.generate([request], sampling))
    assert server.questions[-1]["model"] == "other"


def test_an_adapter_of_a_server_has_the_context_of_its_model(make_server, small_model):
    options = EngineOptions(server_urls=(make_server(max_model_len=100).url,))
    with open_backend("server", small_model, "mine", options, announce=lambda line: None) as backend:
        assert backend.context == 100


@pytest.mark.parametrize(
    "nonsense",
    [
        [],
        "hello",
        {"choices": []},
        {"choices": [{"text": "no reason"}]},
        {"choices": [{"text": None, "finish_reason": "stop", "token_ids": [9]}]},
        {"choices": [{"text": "", "finish_reason": "abort", "token_ids": [9]}]},
        {"choices": [{"text": "a", "finish_reason": "stop", "token_ids": ["a"]}]},
    ],
)
def test_a_server_that_answers_nonsense_is_left_out_like_one_that_fails(
    make_server, small_model, monkeypatch, nonsense
):
    broken, sound = make_server(), make_server()
    monkeypatch.setattr(broken, "complete", lambda question: nonsense)
    requests = [Request([9] * 5, n=2, seed=i, key=i) for i in range(4)]
    with open_server(small_model, broken, sound) as backend:
        assert len(collect(backend, requests, Sampling(max_tokens=2))) == 8
    with (
        open_server(small_model, broken) as backend,
        pytest.raises(ArcnbError, match=r"no server is left.*answers without a completion: ."),
    ):
        list(backend.generate(requests, Sampling(max_tokens=2)))


@pytest.mark.parametrize(
    ("reply", "sentence"),
    [
        ({"object": "error"}, r"does not say which models it serves: .*error.*is it a vllm server"),
        (["tiny"], "does not say which models it serves"),
        ({"data": []}, "does not serve any model; it serves none"),
    ],
)
def test_what_is_no_vllm_server_is_refused_at_once(make_server, small_model, monkeypatch, reply, sentence):
    monkeypatch.setattr(ServerBackend, "_exchange", lambda *_: reply)
    with pytest.raises(ArcnbError, match=sentence):
        open_server(small_model, make_server())


@pytest.mark.parametrize("url", ["localhost:8000", "http://", "http://a:port", "ftp://a"])
def test_what_is_no_address_is_refused_by_name(small_model, url):
    with pytest.raises(ArcnbError, match=rf"server_urls: '{url}' is no address"):
        open_backend("server", small_model, options=EngineOptions(server_urls=(url,)))


def test_what_a_server_sends_in_place_of_text_is_kept(make_server, small_model, monkeypatch):
    server = make_server()
    complete = server.complete
    broken = {"text": "half a character \ud83d", "finish_reason": "length", "token_ids": [9, 9]}
    monkeypatch.setattr(server, "complete", lambda question: complete(question) and {"choices": [broken]})
    with open_server(small_model, server) as backend:
        (completion,) = backend.generate([Request([9] * 5)], Sampling(max_tokens=2))
    assert completion.text == "half a character \ud83d"
