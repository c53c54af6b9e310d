"""A vLLM server for one training run: its GPUs, its start and its end."""

import socket
import subprocess
import sys
from urllib.request import urlopen

import psutil
import pytest

from arcnb.errors import ArcnbError
from arcnb.models.training.processes import LaunchError, launch
from arcnb.rl.engine import server as servers
from arcnb.rl.launch import run_grpo
from arcnb.rl.plan.grpo import GrpoPlan
from tests.lab.watching import process_exists, wait_for
from tests.rl.conftest import QUICK

SERVE = """
import http.server, os, sys
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
        self.wfile.write((os.environ["CUDA_VISIBLE_DEVICES"] + os.environ["VLLM_SERVER_DEV_MODE"]).encode())
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Answer).serve_forever()
"""


@pytest.fixture
def four_gpus(gpus):
    gpus(*(f"{i}, GPU-{i}, 81920, 81000" for i in range(4)))


def test_the_last_gpus_sample_and_the_first_train(four_gpus, monkeypatch):
    assert servers.shared_out(1, 3) == (["3"], ["0", "1", "2"])
    assert servers.shared_out(2, 1) == (["2", "3"], ["0"])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    assert servers.shared_out(1, 1) == (["1"], ["3"])
    with pytest.raises(ArcnbError, match="vllm_server_gpus=1 and num_processes=2 need 3 GPUs"):
        servers.shared_out(1, 2)


def test_the_server_is_vllms_with_what_trl_needs(small_model):
    words = servers.server_command(small_model, 2, 4096, 8123, 0.8, "fp8")
    assert words[words.index("--kv-cache-dtype") + 1] == "fp8"
    for name, value in (
        ("serve", str(small_model.path)),
        ("--data-parallel-size", "2"),
        ("--max-model-len", "4096"),
        ("--weight-transfer-config", '{"backend": "nccl"}'),
        ("--logprobs-mode", "processed_logprobs"),
    ):
        assert words[words.index(name) + 1] == value


def test_a_server_is_ready_within_and_gone_after(small_model, tmp_path, monkeypatch):
    monkeypatch.setattr(
        servers,
        "server_command",
        lambda model, n, context, port, *_: [sys.executable, "-c", SERVE, str(port)],
    )
    with servers.generation_server(small_model, ["2", "3"], 512, tmp_path / "log.txt") as server:
        assert urlopen(f"{server.address}/health").read() == b"2,31"
    assert not answers(int(server.address.rsplit(":", 1)[1]))


TAKES_THE_FIRST_PORT = """
import pathlib, sys
mark = pathlib.Path({mark!r})
if not mark.exists():
    mark.touch()
    sys.exit("OSError: [Errno 98] Address already in use")
"""


def test_a_server_whose_port_was_taken_meanwhile_gets_another(small_model, tmp_path, monkeypatch):
    text = TAKES_THE_FIRST_PORT.format(mark=str(tmp_path / "mark")) + SERVE
    monkeypatch.setattr(servers, "server_command", lambda *words: [sys.executable, "-c", text, str(words[3])])
    with servers.generation_server(small_model, ["0"], 512, tmp_path / "log.txt") as server:
        assert urlopen(f"{server.address}/health").read() == b"01"


SILENT = "import sys; sys.exit(3)"


def test_what_a_server_said_before_a_run_was_resumed_stays_and_is_not_quoted(
    small_model, tmp_path, monkeypatch
):
    log = tmp_path / "log.txt"
    log.write_text("the server of before: copy 0 died\n")
    monkeypatch.setattr(servers, "server_command", lambda *words: [sys.executable, "-c", SILENT])
    never_ready = servers.generation_server(small_model, ["0"], 512, log)
    with pytest.raises(LaunchError, match=r"ended \(3\): it said nothing; see "), never_ready:
        pass
    assert log.read_text().startswith("the server of before")


LEAVES_A_PROCESS = """
import subprocess
engine = subprocess.Popen(["sh", "-c", "trap '' TERM; echo; sleep 600"], stdout=subprocess.PIPE)
engine.stdout.readline()
open({path!r}, "w").write(str(engine.pid))
"""


def test_what_a_server_leaves_behind_ends_too(small_model, tmp_path, monkeypatch):
    """The engine of a data-parallel server is a process of its own."""
    text = LEAVES_A_PROCESS.format(path=str(tmp_path / "pid")) + SERVE
    monkeypatch.setattr(servers, "server_command", lambda *words: [sys.executable, "-c", text, str(words[3])])
    with servers.generation_server(small_model, ["0"], 512, tmp_path / "log.txt"):
        engine = int((tmp_path / "pid").read_text())
        assert process_exists(engine)
    wait_for(lambda: not process_exists(engine))


TWO_COPIES = """
import subprocess
for copy in range(2):
    subprocess.Popen([f"VLLM::EngineCore_DP{copy}", "600"], executable="/bin/sleep")
"""


def test_the_copy_that_died_first_is_named_and_ends_the_training(small_model, tmp_path, monkeypatch):
    """The training waits for the server, for ever as far as it knows."""
    words = [sys.executable, "-c", TWO_COPIES + SERVE]
    monkeypatch.setattr(servers, "server_command", lambda *asked: [*words, str(asked[3])])
    with servers.generation_server(small_model, ["2", "3"], 512, tmp_path / "log.txt") as server:
        assert server.lost() is None
        for copy in psutil.Process(server.process.pid).children()[::-1]:
            copy.kill()
            wait_for(server.lost)
        with pytest.raises(LaunchError, match="copy 2 of 2 of the vLLM server, on GPU 3, died; see "):
            launch("timeit", ["-n1", "-r1", "while 1: pass"], 1, tmp_path / "training.log", lost=server.lost)


COUNTS = """
import http.server, sys
from prometheus_client import CollectorRegistry, Counter, generate_latest
registry = CollectorRegistry()
tokens = Counter("vllm:generation_tokens", "sampled", ["engine"], registry=registry)
tokens.labels(engine="1").inc(30); tokens.labels(engine="0").inc(12)
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(generate_latest(registry))
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Answer).serve_forever()
"""


def test_what_each_copy_has_sampled_is_counted(small_model, tmp_path, monkeypatch):
    words = [sys.executable, "-c", COUNTS]
    monkeypatch.setattr(servers, "server_command", lambda *asked: [*words, str(asked[3])])
    with servers.generation_server(small_model, ["2", "3"], 512, tmp_path / "log.txt") as server:
        assert server.sampled() == [12, 30]
        assert server.shares() == "the server's copies sampled 29%, 71% of 42 tokens"
    assert server.shares().startswith("the server did not say what its copies sampled (URLError")


def test_a_server_ends_with_a_training_that_is_killed(tmp_path):
    """Nobody is left to end it."""
    training = (
        "import sys\nfrom pathlib import Path\nfrom arcnb.rl.engine import server as servers\n"
        f"servers.server_command = lambda *words: [sys.executable, '-c', {SERVE!r}, str(words[3])]\n"
        f"with servers.generation_server(None, ['0'], 512, Path({str(tmp_path)!r}, 'log')) as server:\n"
        "    print(server.address, flush=True)\n    sys.stdin.read()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", training], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    port = int(process.stdout.readline().rsplit(":", 1)[1])
    process.kill()
    process.wait()
    wait_for(lambda: not answers(port))


def answers(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_server_that_ends_is_quoted(small_model, tmp_path, monkeypatch):
    words = [sys.executable, "-c", "raise SystemExit('no GPU is free')"]
    monkeypatch.setattr(servers, "server_command", lambda *_: words)
    with (
        pytest.raises(LaunchError, match=r"the vLLM server ended \(1\): no GPU is free; see "),
        servers.generation_server(small_model, ["0"], 512, tmp_path / "log.txt"),
    ):
        pass


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vllm_server_gpus": 0}, "needs a vllm_server_base_url, or vllm_server_gpus of at least 1"),
        ({"trainer": "unsloth"}, "vllm_mode='server' needs trainer='trl', not 'unsloth'"),
        ({"vllm_server_gpus": 9}, "vllm_server_gpus=9 and num_processes=1 need 10 GPUs, and there are 4"),
        ({"num_generations": 5, "gradient_accumulation_steps": 2}, "num_generations=5 is not divisible by"),
        ({"tree": 1}, "tree=1 needs turns=2, turn_reward='last' and one process"),
        ({"max_length": 10**6}, "max_length=1000000, but model"),
        (
            {"vllm_server_host": "localhost", "vllm_server_port": 1},
            "no vLLM server answers at http://localhost:1 ",
        ),
    ],
)
def test_a_run_that_would_be_refused_starts_no_server(
    four_gpus, small_model, tasks, tmp_path, monkeypatch, changes, message
):
    monkeypatch.setattr(servers, "server_command", lambda *_: pytest.fail("a server was started"))
    asked = QUICK | {"model": str(small_model.folder), "use_vllm": True, "vllm_mode": "server"} | changes
    with pytest.raises(ArcnbError, match=message):
        run_grpo(GrpoPlan.of(asked | {"rewards.terms": {}}, output=tmp_path), tasks)
