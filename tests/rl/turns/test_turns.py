"""Conversations in GRPO: the rollout function is called, only the model's own tokens are trained, ends are
counted.
"""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from arcnb.arc.predictions.prediction import Prediction
from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.arc.views import View
from arcnb.errors import ArcnbError
from arcnb.models.prompts.chat import ids_after_answer, prompt_ids
from arcnb.models.prompts.conversations import Conversations
from arcnb.models.prompts.format import prompt_format
from arcnb.models.registry import load_tokenizer
from arcnb.models.training.log import read_metrics
from arcnb.programs.executor.executor import Executor
from arcnb.programs.judging import judge
from arcnb.rl.checks.problems import problems_anywhere
from arcnb.rl.rewards.function import ProgramReward
from arcnb.rl.rewards.rollout import Rollout, Scores
from arcnb.rl.rewards.terms import RewardPlan, TermLimits, improvement
from arcnb.rl.rows.history import SignalHistory
from arcnb.rl.turns.conversation_rows import RememberingRows
from arcnb.rl.turns.episode_held_out import EpisodeHeldOut
from arcnb.rl.turns.episode_reward import EpisodeReward
from arcnb.rl.turns.episodes import Episode, MultiTurnRollout, episode_metrics
from arcnb.rl.watching.guard import Alarm, CollapseMonitor
from arcnb.search.refinement.rows import refinement_rows, write_conversations
from tests.rl.stop_at import StopAt

SOLVES = "def transform(grid):\n    return grid[:, ::-1]\n```"
COPIES = "def transform(grid):\n    return grid\n```"
FAILS = "def transform(grid):\n    return grid[99]\n```"
CUT = "def transform(grid):\n    return gr"
TURNS = {"turns": 3, "augment": "none", "terms": {}, "max_steps": 2, "max_completion_length": 64}


@pytest.fixture
def scripted(monkeypatch):
    """Answers by what is read: of a group of three the first fails and then solves, the second copies its
    input again and again, the third is cut off. The list that it gives fills with what each turn read."""
    read = []

    def answers(self, trainer, prompts, seed):
        tokenizer = self.rows.tokenizer
        texts = [tokenizer.decode(ids) for ids in prompts]
        read.append(texts)
        made = []
        for number, text in enumerate(texts):
            first = text.count("<|im_start|>assistant") == 1
            answer = (FAILS, COPIES, CUT)[number % 3] if first else SOLVES if "IndexError" in text else COPIES
            ids = tokenizer(answer, add_special_tokens=False)["input_ids"]
            ids += [] if answer == CUT else [tokenizer.eos_token_id]
            made.append((ids, [None] * len(ids)))
        return made

    monkeypatch.setattr(MultiTurnRollout, "answers", answers)
    return read


def test_an_episode_goes_on_with_feedback_and_every_turn_is_kept(train, tmp_path, scripted):
    report = train(tmp_path, **TURNS)
    assert report.steps == 2
    assert [len(texts) for texts in scripted] == [3, 2, 1] * 2
    second = scripted[1][0]
    assert "failed with IndexError in line 2" in second
    assert "not right yet" in scripted[1][1]
    rows = {row.id: row for row in PredictionSet(tmp_path / "rollouts").iter_predictions()}
    assert len(rows) == 12
    turns = sorted((row.index, row.turn) for row in rows.values() if row.round == 0)
    assert turns == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (2, 0)]
    for row in rows.values():
        assert (row.parent in rows) == (row.turn > 0)
        assert row.completion_prefix == "```python\n"
    solved = [row for row in rows.values() if row.train_is_correct]
    assert {(row.index, row.turn) for row in solved} == {(0, 1)}
    line = report.history[0]
    assert line["turns/mean"] == 2
    ends = {name: line[f"turns/end_{name}"] for name in ("solved", "turns", "truncated", "context", "silent")}
    assert ends == pytest.approx(
        {"solved": 1 / 3, "turns": 1 / 3, "truncated": 1 / 3, "context": 0, "silent": 0}
    )
    assert (line["turns/solved_by_1"], line["turns/solved_by_2"]) == pytest.approx((0, 1 / 3))
    assert line["turns/copied"] == pytest.approx(2 / 3)
    assert line["reward_max"] == 1


def test_only_the_models_own_tokens_are_trained(train, tmp_path, scripted, letter_model, monkeypatch):
    from trl import GRPOTrainer

    seen = []
    compute = GRPOTrainer._compute_loss

    def spy(self, model, inputs):
        seen.append(
            {name: inputs[name].tolist() for name in ("completion_ids", "completion_mask", "tool_mask")}
        )
        return compute(self, model, inputs)

    monkeypatch.setattr(GRPOTrainer, "_compute_loss", spy)
    report = train(tmp_path, **TURNS | {"max_steps": 1})
    tokenizer = load_tokenizer(letter_model)
    own, others = [], []
    for batch in seen:
        for ids, real, mask in zip(*batch.values(), strict=True):
            own.append(tokenizer.decode([t for t, r, m in zip(ids, real, mask, strict=True) if r and m]))
            others.append(
                tokenizer.decode([t for t, r, m in zip(ids, real, mask, strict=True) if r and not m])
            )
    end = tokenizer.eos_token
    assert sorted(own) == sorted([FAILS + end + SOLVES + end, (COPIES + end) * 3, CUT])
    assert sum("Write a corrected function" in text for text in others) == 2
    assert all("def transform" not in text for text in others)
    lengths = [len(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in own]
    assert report.history[0]["completions/mean_length"] == pytest.approx(sum(lengths) / 3)


def test_a_run_that_was_rolled_back_draws_other_answers(train, tmp_path, scripted, tasks, monkeypatch):
    seeds, answers, alarms = [], MultiTurnRollout.answers, [Alarm("kl", 1, 2.0, 1.0, "an alarm")]

    def noted(self, trainer, prompts, seed):
        if trainer.model.training:
            seeds.append(seed)
        return answers(self, trainer, prompts, seed)

    def alarmed_once(self, step, row):
        return [alarms.pop()] if alarms and "reward" in row else []

    monkeypatch.setattr(MultiTurnRollout, "answers", noted)
    monkeypatch.setattr(CollapseMonitor, "update", alarmed_once)
    asked = {"turns": 2, "max_steps": 1, "eval_steps": 1, "guard_action": "rollback"}
    report = train(tmp_path, **TURNS | asked, eval_tasks=tasks[:1])
    assert (report.rollbacks, len(seeds)) == (1, 4)
    assert len(set(seeds)) == 4, "two turns of the step before and after the rollback"


def test_shared_prompts_train_episodes_alike(train, tmp_path, scripted):
    both = [train(tmp_path / str(shared), **TURNS, shared_prompt=shared).history for shared in (False, True)]
    for name in ("loss", "grad_norm", "kl", "entropy"):
        plain, shared = ([row[name] for row in history if name in row] for history in both)
        assert shared == pytest.approx(plain, rel=1e-3, abs=1e-6)


def test_held_out_tasks_are_evaluated_in_turns_too(train, tmp_path, scripted, tasks):
    options = TURNS | {"max_steps": 1, "eval_steps": 1, "num_generations_eval": 3}
    report = train(tmp_path, eval_tasks=tasks[:2], **options)
    line = next(row for row in report.history if "held_out/pass@1" in row)
    assert line["held_out/first_turn_pass@1"] == 0
    assert line["held_out/pass@1"] == pytest.approx(1 / 3)
    assert line["held_out/turns/solved_by_2"] == pytest.approx(1 / 3)
    rows = list(PredictionSet(tmp_path / "held_out").iter_predictions())
    assert {row.turn for row in rows} == {0, 1, 2}


def test_a_stopped_run_goes_on_as_if_it_had_not_been(train, tmp_path, scripted):
    options = TURNS | {"max_steps": 3}
    unbroken = train(tmp_path / "unbroken", **options).history
    assert train(tmp_path / "broken", callbacks=[StopAt(1)], **options).status == "preempted"
    resumed = train(tmp_path / "broken", **options).history
    losses = [[row["loss"] for row in history if "loss" in row] for history in (unbroken, resumed)]
    assert losses[0] == losses[1]
    assert len(set(losses[0])) == 3
    keys = [
        sorted(
            (*row.key, row.parent or "")
            for row in PredictionSet(tmp_path / name / "rollouts").iter_predictions()
        )
        for name in ("unbroken", "broken")
    ]
    assert keys[0] == keys[1]


def test_the_hook_fires_and_samples_by_itself(train, tmp_path, monkeypatch):
    from trl import GRPOTrainer

    def never(*arguments, **named):
        raise AssertionError("the trainer generated by itself")

    monkeypatch.setattr(GRPOTrainer, "_generate_single_turn", never)
    calls = []
    take = MultiTurnRollout.__call__
    monkeypatch.setattr(
        MultiTurnRollout, "__call__", lambda self, *given: (take(self, *given), calls.append(1))[0]
    )
    report = train(tmp_path / "a", max_steps=2, turns=2)
    assert calls == [1, 1]
    assert report.history[0]["turns/end_truncated"] > 0  # eight tokens are too few for a random model to end
    again = train(tmp_path / "b", max_steps=2, turns=2)
    assert [row.get("loss") for row in again.history] == [row.get("loss") for row in report.history]


def test_a_trainer_that_ignores_the_hook_is_found_out(train, tmp_path, monkeypatch):
    import trl

    class Ignoring(trl.GRPOTrainer):
        def __init__(self, *arguments, **named):
            super().__init__(*arguments, **named)
            self.rollout_func = None

    monkeypatch.setattr(trl, "GRPOTrainer", Ignoring)
    with pytest.raises(ArcnbError, match="did not call the rollout function"):
        train(tmp_path, max_steps=1, turns=2)


@pytest.fixture
def played(letter_model, tasks):
    """played(answer, context=...): what the rollout of two episodes of at most two turns gives, where every
    sample of at most 64 tokens is that answer. With vLLM colocated TRL's own wrapper is asked; here a
    stand-in answers in its format."""
    tokenizer = load_tokenizer(letter_model)
    rows = RememberingRows(tasks, prompt_format(), tokenizer, seed=0, augment="none")
    prompts = [rows[i]["prompt"] for i in range(2)]

    def play(answer, context=2048):
        def generate(prompts, images, num_generations):
            assert (images, num_generations) == (None, 1)
            own = tokenizer(answer + tokenizer.eos_token, add_special_tokens=False)["input_ids"]
            return prompts, [own for _ in prompts], [[[-0.25] for _ in own] for _ in prompts], None

        trainer = SimpleNamespace(
            args=SimpleNamespace(use_vllm=True),
            vllm_generation=SimpleNamespace(generate=generate),
            state=SimpleNamespace(global_step=4),
            accelerator=SimpleNamespace(process_index=0),
            eos_token_ids=[tokenizer.eos_token_id],
        )
        with Executor(1) as executor:
            made = MultiTurnRollout(rows, executor, 2, context, 64)(prompts, trainer)
        assert made["prompt_ids"] == [tokenizer(text=text)["input_ids"] for text in prompts]
        return made

    return play


def ends(made) -> list[str]:
    return [episode.end for episode in made["episode"]]


def test_vllms_log_probabilities_are_of_the_models_own_tokens(played):
    made = played(COPIES)
    for ids, mask, logprobs in zip(made["completion_ids"], made["env_mask"], made["logprobs"], strict=True):
        assert len(ids) == len(mask) == len(logprobs)
        assert logprobs == [-0.25 if own else None for own in mask]
        assert 0 < sum(mask) < len(mask)
    assert ends(made) == ["turns", "turns"]


def test_a_program_that_fails_on_test_inputs_alone_is_told_nothing(played):
    made = played("def transform(grid):\n    return grid[99] if 0 in grid else grid[:, ::-1]\n```")
    assert ends(made) == ["silent", "silent"]
    assert all(0 not in mask for mask in made["env_mask"])


def test_another_turn_has_room_for_a_whole_answer(played):
    whole = played(COPIES)["episode"]
    asked = [episode.length - len(episode.turns[1][1]) for episode in whole]
    assert ends(played(COPIES, max(asked) + 64)) == ["turns", "turns"]
    assert ends(played(COPIES, min(asked) + 63)) == ["context", "context"]


def test_a_full_context_ends_an_episode_and_is_counted(train, tmp_path, scripted):
    report = train(tmp_path, **TURNS | {"max_steps": 1, "max_length": 900})
    line = report.history[0]
    assert line["turns/end_context"] > 0
    assert (
        max(len(text) for texts in scripted for text in texts) <= 900 + 40
    )  # special tokens are longer as text


@pytest.mark.parametrize("which", ["letter_model", "small_model"])
def test_what_stands_between_answers_is_what_the_chat_template_writes(which, request, tasks):
    tokenizer = load_tokenizer(request.getfixturevalue(which))
    view = View.plain(tasks[0])
    row = Prediction(
        tasks[0].task_id, tasks[0].fingerprint, 0, 0, completion=COPIES, completion_prefix="```python\n",
        pair_order=list(view.pair_order), finish_reason="stop",
    )  # fmt: skip
    by_id = {task.task_id: task for task in tasks}
    with Executor(1) as executor:
        (judged,) = judge([row], by_id, executor)
        book = Conversations(by_id, prompt_format(), executor)
        first, second = book.asked(judged, {}), book.refining(judged, {})
    own = [*tokenizer(COPIES, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
    whole = [*prompt_ids(tokenizer, first), *own, *ids_after_answer(tokenizer, second, own)]
    assert tokenizer.decode(whole) == tokenizer.decode(prompt_ids(tokenizer, second))
    cut = ids_after_answer(tokenizer, second, own[:-1])
    assert cut[0] == tokenizer.eos_token_id  # an answer that was cut off is ended first
    assert cut[1:] == ids_after_answer(tokenizer, second, own)
    tokenizer.eos_token = tokenizer.pad_token  # as models whose turns end with another token
    assert cut[1:] == ids_after_answer(tokenizer, second, own)


def answer(task, turn, share, status="ok"):
    fields = {"status": status, "program": "x", "train_correct_grids": share, "train_pixel_score": share}
    fields |= {"train_is_correct": int(share == 1), "test_correct_grids": 0.0, "test_pixel_score": 0.0}
    fields |= {"test_is_correct": 0, "fingerprint": f"{turn} {share}", "completion": "x"}
    return Prediction(task.task_id, task.fingerprint, 0, 0, turn, pair_order=[0, 1], **fields), [1, 2]


@pytest.mark.parametrize(
    ("turn_reward", "expected"),
    [("last", [4.0, 1.0]), ("best", [4.0, 4.0]), ("improvement", [4.0 + 0.5 * 3, 1.0 - 0.5 * 3])],
)
def test_the_reward_is_of_the_last_the_best_or_the_improvement(tasks, turn_reward, expected):
    plan = RewardPlan("arc-v2-no-pixel-score", TermLimits(8))
    episodes = [
        Episode({}, [1], "", turns=[answer(tasks[0], 0, 0.0), answer(tasks[0], 1, 0.5)]),
        Episode({}, [1], "", turns=[answer(tasks[0], 0, 0.5), answer(tasks[0], 1, 0.0)]),
    ]
    logged = {}
    with Executor(1) as executor:
        reward = EpisodeReward(plan, tasks, executor, detect_cheating=False, turns=2, turn_reward=turn_reward)
        values = reward(["", ""], [[1], [1]], episode=episodes, row=[0, 0], log_metric=logged.__setitem__)
        assert values == pytest.approx(expected)
        with pytest.raises(ArcnbError, match="did not call the rollout function"):
            reward(["", ""], [[1], [1]], row=[0, 0])
    assert logged["turns/improved"] == logged["turns/worse"] == 0.5
    assert episode_metrics(episodes, 2)["turns/mean"] == 2


@pytest.mark.parametrize("turn_reward", ["last", "improvement"])
def test_processes_exchange_their_episodes_once_a_step(tasks, monkeypatch, turn_reward):
    """The other process has the same episode in a group of its own."""
    import accelerate.utils

    calls = []

    def gather(own):
        calls.append(own)
        return [*own, *(replace(one, process=1, row=1) for one in own)]

    monkeypatch.setattr(accelerate.utils, "gather_object", gather)
    plan = RewardPlan("arc-v2-no-pixel-score", TermLimits(8))
    episode = Episode({}, [1], "", turns=[answer(tasks[0], 0, 0.0), answer(tasks[0], 1, 0.5)])
    named = {"detect_cheating": False, "turns": 2, "turn_reward": turn_reward}
    with Executor(1) as executor:
        reward = EpisodeReward(plan, tasks, executor, **named, history=SignalHistory(1), n_processes=2)
        values = reward([""], [[1]], episode=[episode], row=[0], log_metric=lambda name, value: None)
    assert values == pytest.approx([4.0 + 0.5 * 3 * (turn_reward == "improvement")])
    known = {row: (group.task_id, group.signal) for row, group in reward.history.groups.items()}
    assert known == {0: (tasks[0].task_id, False), 1: (tasks[0].task_id, False)}
    assert len(calls) == 1


def test_shares_solved_are_of_every_turn_also_of_those_that_nobody_reached(tasks):
    solved, cut = (Episode({}, [1], "", turns=[answer(tasks[0], 0, share)]) for share in (1, 0))
    later = Episode({}, [1], "", turns=[answer(tasks[0], 0, 0), answer(tasks[0], 1, 1)])
    logged = episode_metrics([solved, cut], 3)
    assert [logged[f"turns/solved_by_{n}"] for n in (1, 2, 3)] == [0.5, 0.5, 0.5]
    logged = episode_metrics([solved, cut, later, cut], 3)
    assert [logged[f"turns/solved_by_{n}"] for n in (1, 2, 3)] == [0.25, 0.5, 0.5]


def test_held_out_shares_are_of_the_episodes_of_all_processes(
    tmp_path, scripted, letter_model, monkeypatch, tasks
):
    """Of two processes this one has the first and third task; the other's episodes never solve anything."""
    import accelerate.utils

    other = [((tasks[1].task_id, False, False, None, True), False, None)] * 3
    monkeypatch.setattr(accelerate.utils, "gather_object", lambda found: [*found, *other])
    tokenizer = load_tokenizer(letter_model)
    trainer = SimpleNamespace(
        args=SimpleNamespace(use_vllm=False),
        accelerator=SimpleNamespace(process_index=0, num_processes=2, is_main_process=True),
        eos_token_ids=[tokenizer.eos_token_id],
    )
    with Executor(1) as executor:
        held_out = EpisodeHeldOut(
            list(tasks), 3, 1, prompt_format(), tokenizer, executor, PredictionSet(tmp_path), 0, 64, 3, 2048
        )
        values = held_out.evaluate(trainer, 0)
    assert [values[f"held_out/turns/solved_by_{n}"] for n in (1, 2, 3)] == pytest.approx([0, 2 / 9, 2 / 9])


def test_improvement_over_the_parent_has_three_steps():
    def scores(train, has_outputs=True):
        return Scores(True, has_outputs, train, 0.0, train, 0.0, 2, 1)

    group = [
        Rollout(scores(0.5), [1], False, parent=scores(0.0)),
        Rollout(scores(0.0), [1], False, parent=scores(0.5)),
        Rollout(scores(0.5), [1], False, parent=scores(0.5)),
        Rollout(scores(0.5), [1], False),
        Rollout(scores(0.5), [1], False, "literals", parent=scores(0.0)),
    ]
    assert improvement(group, TermLimits(8)) == [0.0, -1.0, -0.5, 0.0, -0.5]


@pytest.fixture
def refine_file(tasks, letter_model, tmp_path):
    """refine.parquet of one wrong answer a task; the first fails, the others have half of the pairs."""
    predictions = PredictionSet(tmp_path / "first")
    rows = [
        Prediction(
            task.task_id, task.fingerprint, 0, 0, completion=COPIES if number else FAILS,
            completion_prefix="```python\n", pair_order=[1, 0], finish_reason="stop", status=None,
        )
        for number, task in enumerate(tasks)
    ]  # fmt: skip
    with Executor(1) as executor:
        predictions.write_part(list(judge(rows, {task.task_id: task for task in tasks}, executor)), 0)
        made = refinement_rows(
            [predictions], tasks, load_tokenizer(letter_model), prompt_format(), executor, chooser="promising"
        )
    return write_conversations(made.rows, tmp_path / "refine.parquet")


def test_frozen_second_turns_are_trained_with_their_parents(train, tmp_path, refine_file, tasks, monkeypatch):
    parents = {}
    rewards = ProgramReward._rewards

    def noted(self, everyone):
        parents.update({one.task_id: one.rollout.parent for one in everyone})
        return rewards(self, everyone)

    monkeypatch.setattr(ProgramReward, "_rewards", noted)
    options = {"refine_conversations": str(refine_file), "improvement_weight": 0.5}
    report = train(tmp_path / "run", max_steps=-1, **options)
    assert report.steps == 3  # an epoch shows each conversation once
    (note,) = report.notes
    assert "n_tasks, augment and signal_visits do not change them" in note
    rows = list(PredictionSet(tmp_path / "run" / "rollouts").iter_predictions())
    assert {(row.turn, row.parent) for row in rows} == {(1, f"{task.task_id}/0/0/0") for task in tasks}
    assert {tuple(row.pair_order) for row in rows} == {(1, 0)}
    half = Scores(True, True, 0.5, 0.0, parents["swap1"].train_pixel, parents["swap1"].test_pixel, 2, 1)
    assert 0.5 <= half.train_pixel < 1
    assert parents == {"swap0": Scores(True, False, 0.0, 0.0, 0.0, 0.0, 2, 1), "swap1": half, "swap2": half}
    assert read_metrics(tmp_path / "run" / "metrics.jsonl")


def test_conversations_of_other_tasks_are_refused(train, tmp_path, refine_file, tasks):
    def trained(file, **options):
        return train(tmp_path / "run", refine_conversations=str(file), max_steps=1, **options)

    with pytest.raises(ArcnbError, match=r"refines task swap., which is not in the task set"):
        trained(refine_file, tasks=tasks.subset(["swap0"]))
    with pytest.raises(ArcnbError, match=r"none.parquet: no such file"):
        trained(tmp_path / "none.parquet")
    with pytest.raises(ArcnbError, match="nowhere: no such file"):
        trained("/nowhere")
    with pytest.raises(ArcnbError, match="none of 3 conversations is within 9 tokens"):
        trained(refine_file, max_prompt_length=9)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"turns": 2, "refine_conversations": "refine.parquet"},
            "turns above 1 begins with first turns; it does not go together with refine_conversations",
        ),
        (
            {"turns": 2, "use_vllm": True, "vllm_tensor_parallel_size": 2},
            "turns above 1 does not go together with vllm_tensor_parallel_size above 1",
        ),
        (
            {"turns": 2, "use_vllm": True, "vllm_mode": "server", "num_processes": 3},
            "turns above 1 with vllm_mode='server' takes one process: the episodes of several would end at "
            "different turns",
        ),
    ],
)
def test_what_turns_do_not_go_together_with_is_refused(said, options, sentence):
    assert said(**options) == [sentence]


def test_turns_by_transformers_under_zero3_are_refused(quick, tasks, tmp_path):
    def found(**options):
        plan = quick(tmp_path, turns=2, num_processes=3, **options)
        return [said for said in problems_anywhere(plan, tasks, ()) if "zero3" in said]

    assert found(parallel="zero3", use_vllm=False) == [
        "turns above 1 with parallel='zero3' and use_vllm=False takes one process: the episodes of several "
        "would end at different turns"
    ]
    assert not found(parallel="zero3", use_vllm=True)
    assert not found(use_vllm=False)
