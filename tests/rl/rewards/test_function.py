"""The reward function that TRL calls."""

import pickle
import threading

import pytest

from arcnb.programs.executor.executor import Executor
from arcnb.rl.rewards.function import ProgramReward
from arcnb.rl.rewards.terms import RewardPlan, TermLimits
from arcnb.rl.rows.history import SignalHistory


def test_a_group_is_one_however_many_processes_share_it(tasks, monkeypatch):
    """Right answers of 20, 30, 40 and 50 tokens and two equal wrong ones, for one process and for two."""
    import accelerate.utils

    right, wrong = (
        "def transform(grid):\n    return grid[:, ::-1]\n```",
        "def transform(grid):\n    return grid\n```",
    )
    asked = [(right, 20, 0), (right, 30, 0), (right, 40, 0), (right, 50, 0), (wrong, 10, 1), (wrong, 10, 1)]
    view = {"hflip": False, "n_rot90": 0, "color_map": None, "pair_order": [0, 1], "test_index": 0}
    view |= {"task_id": tasks[0].task_id, "prefix": "```python\n"}

    def judged(mine, process=0, n_processes=1):
        plan, logged = RewardPlan("solved", TermLimits(100), {"shortest_of_solved": 1.0}), {}
        history = SignalHistory(visits=1)
        with Executor(1) as executor:
            reward = ProgramReward(
                plan, tasks, executor, history=history, process=process, n_processes=n_processes
            )
            columns = {name: [value] * len(mine) for name, value in view.items()}
            ids = [list(range(n)) for _, n, _ in mine]
            columns["row"] = [row for *_, row in mine]
            values = reward([text for text, *_ in mine], ids, log_metric=logged.__setitem__, **columns)
        logged.pop("executor_seconds")
        return values, logged, history.groups

    alone = judged(asked)
    assert alone[0] == pytest.approx([1, 2 / 3, 1 / 3, 0, 0, 0])
    barrier, sent, calls = threading.Barrier(2, timeout=60), {}, []

    def gather(entries):
        """As accelerate's: what each process has, pickled, one after another."""
        calls.append(threading.current_thread().name)
        sent[threading.current_thread().name] = pickle.dumps(entries)
        barrier.wait()
        everything = [*pickle.loads(sent["0"]), *pickle.loads(sent["1"])]
        barrier.wait()
        return everything

    monkeypatch.setattr(accelerate.utils, "gather_object", gather)
    found = {}

    def work(process):
        found[process] = judged(asked[3 * process : 3 * process + 3], process, 2)

    threads = [threading.Thread(target=work, args=(n,), name=str(n)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0][0] + found[1][0] == pytest.approx(alone[0])
    assert found[0][1:] == found[1][1:] == alone[1:]
    assert sorted(calls) == ["0", "1"], "rewards, history and metrics are of one exchange"
