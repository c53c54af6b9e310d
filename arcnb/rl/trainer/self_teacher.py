"""Self-distillation by feedback: what a failed answer's tokens would be worth to a policy that was told.

SDPO (Hübotter et al. 2026, arXiv 2601.20802), sampled tokens and reverse KL, as a part of the advantages: the
log-probability of each token after the prompt with feedback on the answer, minus that after the prompt alone.
The teacher is the policy itself, at the step that the samples are of. It is tried on the right answers of the
same groups: where feedback does not make these likelier, nothing is learned from it.
"""

from __future__ import annotations

from dataclasses import dataclass

from arcnb.models.prompts.chat import padded_left, prompt_ids
from arcnb.models.prompts.conversations import Conversations
from arcnb.rl.plan.grpo import GrpoPlan
from arcnb.rl.rewards.function import ProgramReward

MOST = 5.0  # nats a token, either way


@dataclass(frozen=True)
class Told:
    """What a teacher reads before each completion of the last call of a reward: token ids, or None.

    failed: feedback on the completion itself; None for one that is right on the train pairs, was cut off,
    failed on test inputs alone, about which nothing may be said, or would not fit. right: of one that is
    right, feedback on the first failed one of its prompt.
    """

    failed: list[list[int] | None]
    right: list[list[int] | None]

    @property
    def prompts(self) -> list[list[int] | None]:
        return [one or other for one, other in zip(self.failed, self.right, strict=True)]


def told_prompts(plan: GrpoPlan, reward: ProgramReward, tokenizer, longest: int) -> Told:
    """`Told` of the completions of the last call of `reward`, with prompts of up to `longest` tokens."""
    made = [prediction for prediction, _ in reward.latest]
    book = Conversations(reward.tasks, plan.subject.prompt_format, reward.executor)
    book.look_at(made)

    def told(one) -> list[int] | None:
        if book.nothing_to_tell(one):
            return None
        ids = prompt_ids(tokenizer, book.told(one))
        return ids if len(ids) <= longest else None

    failed = [told(one) for one in made]
    of_prompt: dict[tuple, list[int]] = {}
    for one, ids in zip(made, failed, strict=True):
        if ids:
            of_prompt.setdefault((one.task_id, one.view), ids)
    right = [of_prompt.get((one.task_id, one.view)) if one.train_is_correct else None for one in made]
    return Told(failed, right)


def teacher_gap(trainer, batch: dict, student, told: list[list[int] | None]):
    """(B, T) float32: log-probability after the teacher's prompt minus `student`'s (B, T), within MOST; 0
    where there is no teacher's prompt, no token, or `student` is NaN."""
    import torch

    ids, mask = batch["completion_ids"], batch["completion_mask"]
    if not any(told):
        return torch.zeros_like(student)
    plain = zip(batch["prompt_ids"], batch["prompt_mask"].bool(), strict=True)
    rows = [prompt or own[there].tolist() for prompt, (own, there) in zip(told, plain, strict=True)]
    padded = padded_left(rows, trainer.processing_class.pad_token_id)
    prompts, seen = (one.to(ids.device) for one in padded)
    with torch.no_grad():
        teacher, *_ = trainer._get_per_token_logps_and_entropies(
            trainer.model,
            torch.cat([prompts, ids], dim=1),
            torch.cat([seen, mask], dim=1),
            ids.size(1),
            trainer.args.per_device_train_batch_size,
        )
    asked = torch.tensor([prompt is not None for prompt in told], device=ids.device).unsqueeze(1)
    return (teacher - student).nan_to_num().clamp(-MOST, MOST) * mask * asked
