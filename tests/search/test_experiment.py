"""The experiment script: order of its arms, exit status, what is done again."""

import importlib.util
import json
import threading
import time
from types import SimpleNamespace

import pytest

from arcnb.arc.predictions.prediction_set import PredictionSet
from tests.paths import ROOT

SCRIPT = ROOT / "bench" / "experiments" / "search_and_learn.py"
PAIRS = [("toy", 0), ("toy", 1), ("toy", 2), ("arc128", 0), ("arc128", 1), ("arc128", 2)]


@pytest.fixture
def script(tmp_path, monkeypatch):
    """The script as a module, with stages that only note what was asked of them: `script.asked`."""
    monkeypatch.syspath_prepend(SCRIPT.parent)
    spec = importlib.util.spec_from_file_location("search_and_learn_experiment", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.asked, module.engines, module.broken, module.patience = [], [], {}, 10**9
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

    def compare(args, arm, seed):
        return {"arm": arm, "seed": seed}

    for name in ("toy_base", "arc_base"):
        monkeypatch.setattr(module, name, lambda *args: None)
    monkeypatch.setattr(module, "small_engine", lambda *args, **more: module.engines.append((*args, more)))
    for stage in (open_engine, run_side, compare):
        monkeypatch.setattr(module, stage.__name__, stage)
    given = ["--out", tmp_path / "out", "--work", tmp_path / "work", "--arms", "toy,arc128:3"]
    module.call = lambda *more: module.main([str(part) for part in (*given, *more)])
    return module


def written(tmp_path):
    results = [json.loads(path.read_text()) for path in (tmp_path / "out").glob("pair-*.json")]
    return sorted(((result["arm"], result["seed"]) for result in results), key=PAIRS.index)


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


def test_parts_share_all_pairs_and_each_writes_its_own(script, tmp_path):
    assert script.call("--part", "0/2") == 0
    mine = list(dict.fromkeys((arm, seed) for arm, seed, _ in script.asked))
    assert written(tmp_path) == mine
    assert 0 < len(mine) < len(PAIRS)
    script.asked.clear()
    assert script.call("--part", "1/2") == 0
    assert not set(mine) & {(arm, seed) for arm, seed, _ in script.asked}
    assert written(tmp_path) == PAIRS


def test_shares_are_about_equal_and_keep_together_what_shares_its_search_alone(script):
    pairs = [*PAIRS, ("arc512", 0), *(("arc128task", seed) for seed in range(3))]
    for n in (1, 2, 3, 4):
        shares = [script.share_of(pairs, (i, n)) for i in range(n)]
        assert sorted(pair for share in shares for pair in share) == sorted(pairs)
        assert all(share == sorted(share, key=pairs.index) for share in shares)
        for seed in range(3):
            assert len([s for s in shares if {("arc128", seed), ("arc128task", seed)} & set(s)]) == 1
    minutes = [sum(script.MINUTES[arm] for arm, _ in share) for share in shares]
    assert max(minutes) <= 1.0 + max(script.MINUTES["arc512"], sum(minutes) / 4)


def test_a_part_that_is_none_is_refused(script, capsys):
    for part in ("2/2", "-1/2", "1"):
        with pytest.raises(SystemExit):
            script.arguments(["--out", "x", f"--part={part}"])
        assert "--part" in capsys.readouterr().err


def test_base_models_are_made_by_one_part_at_a_time(script, tmp_path, monkeypatch):
    order, first_is_in = [], threading.Event()

    def base(args):
        order.append("begins")
        first_is_in.set()
        time.sleep(0.1)
        order.append("ends")

    monkeypatch.setattr(script, "toy_base", base)
    args = script.arguments(["--out", str(tmp_path), "--work", str(tmp_path)])
    other = threading.Thread(target=script.run_family, args=(args, [], None, True, []))
    other.start()
    first_is_in.wait(10)
    script.run_family(args, [], None, True, [])
    other.join()
    assert order == ["begins", "ends"] * 2


def side(script, out, learn, per_task, finished=False, seed=0, ended=(), **more):
    """A file of counts: per_task is {task: solved of each round of 8}."""
    name = "learn" if learn else "alone"
    cells = {t: [[0, i, 8, n, n, 100] for i, n in enumerate(solved)] for t, solved in per_task.items()}
    facts = {"arm": f"arc128/{name}", "seed": seed, "first": 8, "per_round": 8, "budget": 24, "ended": ended,
             "finished": finished, "cells": cells, "seconds_by_round": [], "learned": [],
             "start_share": None}  # fmt: skip
    script.write_json(out / f"counts-arc128-seed{seed}-{name}.json", facts | more)


def test_the_table_is_made_of_sides_that_are_not_finished(script, tmp_path):
    side(script, tmp_path, False, {"a": [0, 0, 0], "b": [1, 0, 0], "c": [0, 0, 1]}, finished=True)
    side(script, tmp_path, True, {"a": [0, 1], "b": [1], "c": [0, 0]}, ended=["a", "b"])
    text = script.table(tmp_path)
    found = json.loads((tmp_path / "table.json").read_text())
    later = ["arc128, samples from 9 to 16", "arc128, samples from 9 on"]
    assert list(found) == ["arc128 at 8", "arc128 at 16", "arc128 at 24", *later]
    assert (found["arc128 at 16"]["a"], found["arc128 at 16"]["b"]) == (1 / 3, 2 / 3)
    last = found["arc128 at 24"]  # c is still at work on one side
    assert (last["tasks"], last["a"], last["b"], last["finished"]) == (2, 0.5, 1.0, False)
    assert "UNFINISHED" in text
    assert "samples from 9 on that solve their task: 0.00% and 6.25% of 2 tasks'" in text
    assert (tmp_path / "table.txt").read_text() == text + "\n"


def test_rungs_of_the_ladder_are_the_same_task_under_every_seed(script):
    from search_table import by_rung

    counts = {"cells": {"ladder_lines_3_1": [[0, 0, 8, 0, 0, 9]]}, "ended": ["ladder_lines_3_1"]}
    assert by_rung({1: counts})[1] == {
        "cells": {"ladder_lines_3": [[0, 0, 8, 0, 0, 9]]},
        "ended": ["ladder_lines_3"],
    }


def test_no_program_of_the_ladder_is_longer_than_its_completions_may_be(script, monkeypatch, tmp_path):
    from search_arms import toy_tasks

    from arcnb.models.prompts.format import prompt_format
    from arcnb.models.registry import load_tokenizer, resolve_model

    given = {}
    monkeypatch.setattr(
        Search, "__init__", lambda self, *positional, **more: given.update(enumerate(positional))
    )
    monkeypatch.setattr("arcnb.search.learning.search_and_learn.SearchAndLearn", Search)
    args = script.arguments(["--out", str(tmp_path), "--work", str(tmp_path / "work")])
    with pytest.raises(AttributeError, match="report"):
        script.true_run_side(args, "toy", 0, False, None, None, SimpleNamespace(name="m"))
    tokenizer = load_tokenizer(resolve_model("default"))
    programs = [task.program for seed in range(3) for task in toy_tasks(args, seed)]
    longest = max(len(prompt_format().completion_ids(tokenizer, program)) for program in programs)
    assert 300 < longest <= given[4].sampling.max_completion_length


class Search:
    """In place of SearchAndLearn: every training fails, as it does without memory."""

    failures, learned = ["round 0, group 0: learning failed (no memory)"], []

    def __init__(self, tasks, engine, executor, folder, *settings, **more):
        self.folder = folder
        self.report = SimpleNamespace(
            add_engine=lambda seconds: None, out_of_time=False, failures=self.failures, by_round=[]
        )
        self.report.outcome = lambda: {"failures": self.failures}
        lines = [{"step": "learn", "adapter": name} for name in self.learned]
        self.journal = SimpleNamespace(lines=lines, seconds_by_round=list)
        self.report.start_share, self.tasks, self.solved_tasks = 0.0, {}, list
        self.plan, self.predictions = settings[0], PredictionSet(folder / "predictions")

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
    monkeypatch.setattr("arcnb.search.learning.search_and_learn.SearchAndLearn", Search)
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

    from arcnb.errors import ArcnbError
    from arcnb.models.sampling.backends import EngineOptions, open_backend

    class Whole:
        def __init__(self, **options):
            options_seen.append(options)
            raise RuntimeError("it has seen enough")

    options_seen = []
    monkeypatch.setattr(vllm, "LLM", Whole)
    args = script.arguments(["--out", str(tmp_path), "--kv-gb", "1.5"])
    script.call("--kv-gb", "1.5", "--seconds", 0)
    ((*asked, more),) = script.engines
    script.true_small_engine(*asked, **more)
    options = EngineOptions(max_model_len=512, gpu_memory_utilization=args.share, max_lora_rank=16)
    with pytest.raises(ArcnbError, match="it has seen enough"):
        open_backend("vllm", small_model, None, options)
    assert {seen["kv_cache_memory_bytes"] for seen in options_seen} == {3 << 29}
    assert {seen["gpu_memory_utilization"] for seen in options_seen} == {0.06}
    assert {seen["max_num_seqs"] for seen in options_seen} == {512}
    assert options_seen[0]["compilation_config"]["mode"] == 0
    assert options_seen[-1]["enforce_eager"] is True
