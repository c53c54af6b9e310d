"""Self-distillation: a failed answer's tokens are worth what feedback on it makes them likelier."""

from types import SimpleNamespace

import pytest
import torch

from arcnb.rl.trainer import crediting as module
from arcnb.rl.trainer.self_teacher import MOST, teacher_gap

SOLVES = "def transform(grid):\n    return grid[:, ::-1]\n```"
COPIES = "def transform(grid):\n    return grid\n```"


@pytest.mark.parametrize(("shared", "knows"), [(False, True), (True, True), (False, False)])
def test_tokens_are_worth_what_feedback_makes_them_likelier(train, tmp_path, monkeypatch, shared, knows):
    """A group of four: two copy their input, which is wrong, one is cut off, one solves the task. `knows`:
    feedback makes the right answer likelier, which is arranged here."""
    from trl import GRPOTrainer

    seen, given = {}, {}
    told_prompts = module.told_prompts

    def telling(plan, reward, tokenizer, longest):
        given["told"] = told_prompts(plan, reward, tokenizer, longest)
        given["text"] = [tokenizer.decode(ids) if ids else None for ids in given["told"].failed]
        return given["told"]

    def written(self, prompts):
        tokenizer = self.processing_class
        texts = [
            COPIES,
            COPIES,
            "def transform(grid):\n    ret",
            "def transform(grid):\n    return grid[:, ::-1]\n```",
        ]
        ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
        ends = [
            own if "```" not in text else [*own, tokenizer.eos_token_id]
            for own, text in zip(ids, texts, strict=True)
        ]
        prompt_ids = [tokenizer(text=prompt)["input_ids"] for prompt in prompts]
        return prompt_ids, ends, None, texts, None, {}, None, []

    loss = GRPOTrainer.compute_loss

    def spy(self, model, inputs, *arguments, **named):
        seen.update(inputs)
        with torch.no_grad():
            seen["gap"] = _gap(self, inputs)
        return loss(self, model, inputs, *arguments, **named)

    def _gap(trainer, inputs):
        """By the model's own logits, one answer at a time."""
        model, rows = trainer.accelerator.unwrap_model(trainer.model), []
        for i, ids in enumerate(inputs["completion_ids"]):
            n = int(inputs["completion_mask"][i].sum())
            text = trainer.processing_class.decode(ids[:n])
            prompt = inputs["prompt_ids"][i][inputs["prompt_mask"][i].bool()]
            teacher = given["by_text"].get(text)
            row = torch.zeros(len(ids))
            if teacher:
                for sign, before in ((1, torch.tensor(teacher)), (-1, prompt)):
                    logits = model(torch.cat([before, ids[:n]])[None]).logits[0, len(before) - 1 : -1].float()
                    row[:n] += sign * logits.log_softmax(-1).gather(1, ids[:n, None])[:, 0]
            rows.append(row.clamp(-MOST, MOST))
        return torch.stack(rows)

    def remembering(*arguments):
        told = telling(*arguments)
        given["by_text"] = {COPIES + "<|im_end|>": told.failed[0]}
        return told

    def arranged(trainer, batch, student, prompts):
        gap = teacher_gap(trainer, batch, student, prompts)
        assert [bool(ids) for ids in prompts] == [True, True, False, True]
        given["gain"] = 0.25 if knows else -0.25
        gap[3] = given["gain"] * batch["completion_mask"][3]
        return gap

    monkeypatch.setattr(module, "told_prompts", remembering)
    monkeypatch.setattr(module, "teacher_gap", arranged)
    monkeypatch.setattr(GRPOTrainer, "_generate", written)
    monkeypatch.setattr(GRPOTrainer, "compute_loss", spy)
    options = {
        "max_steps": 1,
        "num_generations": 4,
        "max_completion_length": 80,
        "augment": "none",
        "terms": {},
    }
    options |= {"self_teacher": 0.5, "advantages": "none", "reward": "solved", "shared_prompt": shared}
    report = train(tmp_path, **options)
    assert [bool(ids) for ids in given["told"].failed] == [True, True, False, False]
    assert given["told"].right == [None, None, None, given["told"].failed[0]]
    assert "not right yet" in given["text"][0]
    assert COPIES not in given["text"][0]
    assert seen["gap"].abs().max() > 0.01
    plain = seen["advantages"]
    if knows:
        plain = plain - 0.5 * seen["gap"]
    mask = seen["completion_mask"].bool()
    for row, keep in zip(plain, mask, strict=True):
        torch.testing.assert_close(row[keep], row[0].expand(int(keep.sum())), atol=2e-3, rtol=0)
    assert sorted(plain[:, 0].tolist()) == pytest.approx([-0.25, -0.25, -0.25, 0.75], abs=2e-3)
    line = next(row for row in report.history if "self_teacher/told" in row)
    assert line["self_teacher/told"] == 0.5
    assert line["self_teacher/gain"] == pytest.approx(given["gain"])
    assert line["self_teacher/counts"] == knows
    assert line["self_teacher/gap"] > 0


def test_a_token_that_the_sampler_could_not_score_has_no_gap():
    teacher = torch.tensor([[-2.0, -2.0, -3.0]])
    trainer = SimpleNamespace(
        processing_class=SimpleNamespace(pad_token_id=0),
        model=None,
        args=SimpleNamespace(per_device_train_batch_size=1),
        _get_per_token_logps_and_entropies=lambda *given: (teacher, None, None),
    )
    ones = torch.ones(1, 3)
    batch = {"completion_ids": torch.tensor([[5, 6, 7]]), "completion_mask": ones}
    batch |= {"prompt_ids": torch.tensor([[1, 2]]), "prompt_mask": ones[:, :2]}
    student = torch.tensor([[-2.0, float("nan"), -2.0]])
    assert teacher_gap(trainer, batch, student, [[1, 2, 3]]).tolist() == [[0, 0, -1]]


def test_what_a_self_teacher_cannot_go_with_is_named(said):
    assert said(self_teacher=0.5, turns=2) == ["self_teacher does not go with turns above 1"]
