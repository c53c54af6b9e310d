"""Files of conversations that were changed at random are read, or refused in one sentence."""

import pytest

from arcnb.models.prompts.format import prompt_format
from arcnb.models.registry import load_tokenizer
from arcnb.models.sft.rows import conversation_rows
from arcnb.rl.turns.conversation_rows import SCORES, frozen_rows
from tests.test_foreign_files import TASK, each_form, try_all

CHAT = [
    {"role": "user", "content": "q"},
    {"role": "assistant", "content": "a"},
    {"role": "user", "content": "r"},
]
TAUGHT = {"task_id": "t", "messages": CHAT[:1], "prefix": "", "answer": "a"}
REFINED = {
    "task_id": "t", "task_fingerprint": TASK.fingerprint, "parent": "t/0/0/0", "parent_status": "ok",
    "messages": CHAT, "prefix": "x", "turn": 1, **dict.fromkeys(SCORES, 0.5),
    "hflip": False, "n_rot90": 0, "color_map": None, "pair_order": [1, 0], "test_index": 0,
}  # fmt: skip


@pytest.mark.parametrize("kind", ["learnt", "refined"])
def test_changed_conversations_are_read_or_refused_in_one_sentence(kind, letter_model, tmp_path):
    tokenizer = load_tokenizer(letter_model)

    def learn(path):
        assert len(conversation_rows(path, letter_model, max_length=5000))

    def refine(path):
        rows = frozen_rows(path, [TASK], prompt_format(), tokenizer, seed=0, max_prompt_tokens=5000)
        assert {row["turn"] for row in map(rows.__getitem__, range(len(rows)))}

    forms = each_form([TAUGHT, TAUGHT], learn) if kind == "learnt" else each_form([REFINED], refine)
    assert try_all(kind, forms, tmp_path, n_changes=20) < 20 * len(forms)
