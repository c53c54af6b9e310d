"""The experiment script: order of its arms, exit status, what is done again.

Run: pytest tests/search/test_search_experiment.py
"""

import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "bench" / "experiments" / "search_and_learn.py"
PAIRS = [("toy", 0), ("toy", 1), ("toy", 2), ("arc128", 0), ("arc128", 1), ("arc128", 2)]


@pytest.fixture
def script(tmp_path, monkeypatch):
    """The script as a module, with stages that only note what was asked of them: `script.asked`."""
    monkeypatch.syspath_prepend(SCRIPT.parent)
    spec = importlib.util.spec_from_file_location("search_and_learn_experiment", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.asked, module.broken, module.patience = [], {}, 10**9
    module.true_run_side, module.true_small_engine = module.run_side, module.small_engine

    def open_engine(args, base):
        if "engine" in module.broken:
            raise RuntimeError("No available memory for the cache blocks")
        return SimpleNamespace(close=lambda: None)

    def run_side(args, arm, seed, learn, engine, executor, base, opened=0.0):
        report = module.report_of(args, arm, seed, learn)
        if report.exists():
            return True
        module.asked.append((arm, seed, learn))
        if len(module.asked) > module.patience:
            return False
        if module.broken.get((arm, seed)) is learn:
            raise RuntimeError("out of luck")
        report.parent.mkdir(parents=True)
        report.write_text("{}")
        return True

    row = {"completions": 1, "alone": 0, "learned": 0, "difference": 0, "low": 0, "high": 0, "p_value": 1}

    def compare(args, arm, seed):
        reports = {"alone": {}, "learn": {"start_share": 0.1}}
        solved = {side: {"t": None} for side in reports}
        return {"arm": arm, "seed": seed, "n_tasks": 1, "is_correct": [row], "first_solved_at": solved,
                "reports": reports}  # fmt: skip

    for name in ("toy_base", "arc_base", "small_engine"):
        monkeypatch.setattr(module, name, lambda *args: None)
    for stage in (open_engine, run_side, compare):
        monkeypatch.setattr(module, stage.__name__, stage)
    given = ["--out", tmp_path / "out", "--work", tmp_path / "work", "--arms", "toy,arc128"]
    module.call = lambda *more: module.main([str(part) for part in (*given, *more)])
    return module


def written(tmp_path):
    results = json.loads((tmp_path / "out" / "search_learn.json").read_text())["results"]
    return [(result["arm"], result["seed"]) for result in results]


def test_each_pair_is_complete_before_the_next(script, tmp_path, capsys):
    assert script.call() == 0
    assert script.asked == [(*pair, learn) for pair in PAIRS for learn in (False, True)]
    assert written(tmp_path) == PAIRS
    assert capsys.readouterr().out.endswith("all done\n")
    script.asked.clear()
    assert script.call() == 0
    assert script.asked == []
    assert written(tmp_path) == PAIRS


def test_time_that_is_up_is_75_and_the_next_call_does_the_rest(script, tmp_path, capsys):
    script.patience = 3
    assert script.call("--arms", "toy") == 75
    assert "NOT all done: call again" in capsys.readouterr().out
    assert written(tmp_path) == PAIRS[:1]
    script.patience = 10**9
    script.asked.clear()
    assert script.call("--arms", "toy") == 0
    assert script.asked == [("toy", 1, True), ("toy", 2, False), ("toy", 2, True)]


def test_no_time_for_an_engine_is_75(script, tmp_path):
    assert script.call("--seconds", 0) == 75
    assert script.asked == []


@pytest.mark.parametrize("learn", [False, True])
def test_what_fails_is_1_keeps_the_rest_and_is_done_again(script, tmp_path, learn, capsys):
    script.broken = {("toy", 1): learn}
    assert script.call() == 1
    out, error = capsys.readouterr()
    assert "NOT all done: 1 failed" in out
    assert "failed: toy seed 1: RuntimeError: out of luck\n" in error
    assert written(tmp_path) == [pair for pair in PAIRS if pair != ("toy", 1)]
    script.broken, script.asked[:] = {}, []
    assert script.call() == 0
    assert script.asked == [("toy", 1, side) for side in (False, True)[learn:]]


def test_an_engine_that_does_not_open_is_1(script, tmp_path, capsys):
    script.broken = {"engine": True}
    assert script.call() == 1
    assert "failed: engine of the toy arms: RuntimeError: No available memory" in capsys.readouterr().err


def test_a_failure_outweighs_the_time(script):
    script.broken, script.patience = {("toy", 0): True}, 3
    assert script.call() == 1


class Search:
    """In place of SearchAndLearn: every training fails, as it does without memory."""

    failures, learned = ["round 0, group 0: learning failed (no memory)"], []

    def __init__(self, tasks, engine, executor, folder, *settings, **more):
        self.folder = folder
        self.report = SimpleNamespace(
            add_engine=lambda seconds: None, out_of_time=False, failures=self.failures, by_round=[]
        )
        self.report.outcome = lambda: {"failures": self.failures}
        self.journal = SimpleNamespace(lines=[{"step": "learn", "adapter": name} for name in self.learned])

    def run(self):
        (self.folder / "predictions").mkdir(parents=True)
        return self.report


@pytest.mark.parametrize(
    ("failures", "learned", "counts"),
    [(Search.failures, [], False), (Search.failures, ["round00000"], True), ([], [], True)],
)
def test_a_side_that_learned_nothing_because_it_failed_is_no_result(
    script, tmp_path, monkeypatch, failures, learned, counts
):
    monkeypatch.setattr(Search, "failures", failures)
    monkeypatch.setattr(Search, "learned", learned)
    monkeypatch.setattr("arcnb.search.search_and_learn.SearchAndLearn", Search)
    args = script.arguments(["--out", str(tmp_path), "--work", str(tmp_path / "work")])
    stage = (args, "toy", 0, True, None, None, SimpleNamespace(name="m"))
    if counts:
        assert script.true_run_side(*stage)
        assert script.report_of(args, "toy", 0, True).exists()
        return
    with pytest.raises(script.LearnedNothing, match="every training failed; what was made is in"):
        script.true_run_side(*stage)
    (aside,) = (tmp_path / "work" / "toy-seed0").iterdir()
    assert aside.name.startswith("learn-failed-")
    assert (aside / "predictions").is_dir()


def test_the_engine_has_a_cache_of_the_size_given(script, small_model, tmp_path, monkeypatch):
    """What vLLM is called with, past the backend that opens it."""
    import vllm

    from arcnb.models.generation import EngineOptions, GenerationError, open_backend

    class Whole:
        def __init__(self, **options):
            options_seen.append(options)
            raise RuntimeError("it has seen enough")

    options_seen = []
    monkeypatch.setattr(vllm, "LLM", Whole)
    args = script.arguments(["--out", str(tmp_path), "--kv-gb", "1.5"])
    script.true_small_engine(args.kv_gb, args.engine)
    options = EngineOptions(max_model_len=512, gpu_memory_utilization=args.share, max_lora_rank=16)
    with pytest.raises(GenerationError, match="it has seen enough"):
        open_backend("vllm", small_model, None, options)
    assert {seen["kv_cache_memory_bytes"] for seen in options_seen} == {3 << 29}
    assert {seen["gpu_memory_utilization"] for seen in options_seen} == {0.06}
    assert options_seen[0]["compilation_config"]["mode"] == 0
    assert options_seen[-1]["enforce_eager"] is True
