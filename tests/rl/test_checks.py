"""What a GRPO run is refused for by its machine, server and packages."""

import importlib.util
import socket
import threading

import pytest

from arcnb.rl.checks.machine import gpu_share_problem


def test_a_share_of_gpu_memory_that_is_not_free_is_refused(said, quick, letter_model, tmp_path, gpus):
    gpus("0, GPU-1, 81920, 16384")
    asked = {"use_vllm": True, "vllm_gpu_memory_utilization": 0.5}
    (sentence,) = said(**asked)
    assert sentence.startswith("vllm_gpu_memory_utilization 0.5 asks for 40.0 of 80.0 GiB on GPU 0")
    assert gpu_share_problem(quick(tmp_path, **asked), letter_model) == sentence
    for other in ({"vllm_gpu_memory_utilization": 0.15}, {"vllm_mode": "server"}):
        assert said(**asked | other) == []
        assert gpu_share_problem(quick(tmp_path, **asked | other), letter_model) is None


@pytest.mark.parametrize(
    "address",
    [
        {"vllm_server_base_url": "http://127.0.0.1:9"},
        {"vllm_server_host": "127.0.0.1", "vllm_server_port": 9},
    ],
)
def test_a_server_that_does_not_answer_is_refused(said, address, gpus):
    assert said(use_vllm=True, vllm_mode="server", **address) == [
        "vllm_mode='server' needs a GPU to train on, which sends the server its weights; there is none"
    ]
    gpus("0, GPU-1, 81920, 81000")
    (sentence,) = said(use_vllm=True, vllm_mode="server", **address)
    assert "no vLLM server answers at http://127.0.0.1:9 (" in sentence
    assert "refused" in sentence
    assert said(use_vllm=False, **address | {"vllm_server_base_url": None}) == []


@pytest.mark.parametrize(
    "answer", [b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.0 200 OK\r\n\r\n<html>", b"HTTP/1.0 200 OK\r\n\r\n{}"]
)
def test_a_port_that_another_program_has_by_now_is_refused(said, gpus, answer):
    gpus("0, GPU-1, 81920, 81000")
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def reply():
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)

        threading.Thread(target=reply, daemon=True).start()
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        (sentence,) = said(use_vllm=True, vllm_mode="server", vllm_server_base_url=address)
    assert f"no vLLM server answers at {address} (another program does); start one first" in sentence


def test_a_node_that_serves_has_to_be_asked(said, monkeypatch):
    monkeypatch.setenv("ARCNB_SERVER_NODE", "1")
    (sentence,) = said(vllm_mode="colocate")
    assert (
        sentence == "a node of this job serves (--serve), which is for vllm_mode='server' and use_vllm=True"
    )


def test_a_server_has_to_be_there_or_to_be_started(said, gpus):
    gpus("0, GPU-1, 81920, 81000")
    (sentence,) = said(use_vllm=True, vllm_mode="server", vllm_server_gpus=0)
    assert sentence.startswith("vllm_mode='server' needs a vllm_server_base_url, or vllm_server_gpus of at l")


def test_a_place_to_log_to_needs_its_package(said, monkeypatch):
    assert said() == []
    (sentence,) = said(report_to="wandbb")
    assert sentence.startswith("report_to='wandbb' does not exist; there are none, wandb")
    there, packages = importlib.util.find_spec, {"trackio": None, "wandb": "there", "tensorboard": "there"}
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: packages[name] if name in packages else there(name)
    )
    assert said(report_to=["wandb", "tensorboard"]) == []
    assert said(report_to=["wandb", "trackio"]) == [
        "report_to='trackio' needs the package trackio, which is not installed"
    ]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"old_log_probs": "sampler"}, "learner_old_log_probs='sampler' needs use_vllm=True"),
        ({"reference_part": 0.5, "beta": 0.0}, "learner_reference_part=0.5 needs a beta above 0"),
        ({"trained_part": 0.3}, "learner_trained_part=0.3 of num_generations=3 leaves fewer than 2"),
        ({"trained_part": 0.7, "entropy_coef": 0.1}, "learner_trained_part=0.7 does not go with an"),
        ({"skip_silent": True, "entropy_coef": 0.1}, "learner_skip_silent=True does not go with an"),
        (
            {"skip_silent": True, "loss_type": "bnpo"},
            "learner_skip_silent=True does not go with los",
        ),
        (
            {"skip_silent": True, "trainer": "unsloth"},
            "learner_skip_silent=True needs trainer='trl'; unsloth",
        ),
    ],
)
def test_what_a_learner_cannot_leave_out_is_named(said, options, sentence):
    (found,) = said(**options)
    assert found.startswith(sentence)


def test_layer_kernels_go_with_shared_prompts_and_need_their_package(said, monkeypatch):
    there = importlib.util.find_spec
    for installed, expected in ((None, 1), ("there", 0)):
        monkeypatch.setattr(
            "importlib.util.find_spec", lambda name, i=installed: i if name == "liger_kernel" else there(name)
        )
        found = said(shared_prompt=True, use_liger_kernel=True)
        assert len(found) == expected
        assert all("needs the package liger-kernel" in sentence for sentence in found)
