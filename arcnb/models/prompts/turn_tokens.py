"""Token ids between two answers: what stands after the model's own tokens before it writes again.

A conversation in training is the first prompt's ids, the model's own ids, these, its own again, and so on.
Its own ids are never tokenised anew: text that passes through a tokenizer twice may come back as other
tokens, and the model would be trained on tokens it did not write.
"""

from __future__ import annotations

from collections.abc import Sequence

from arcnb.errors import ArcnbError
from arcnb.models.prompts.chat import render_text
from arcnb.models.prompts.rendering import Prompt

_MARK = "⟦answer⟧"  # stands for the answer while the template renders; no template or grid holds it


def ids_after_answer(tokenizer, prompt: Prompt, answer_ids: Sequence[int]) -> list[int]:
    """The ids that follow `answer_ids` and end where the next answer begins.

    prompt: the next turn's, as `build_refinement` makes it: its last two messages are the answer and the
    request. An answer that was cut off is ended first. Raises ArcnbError where the chat template does not
    show the answer as it is.
    """
    *before, answer, request = prompt.messages
    marked = {**answer, "content": _MARK}
    text = render_text(tokenizer, [*before, marked, request], prompt.prefix)
    if text.count(_MARK) != 1:
        raise ArcnbError(f"the chat template of {tokenizer.name_or_path} changes earlier answers")
    ids = tokenizer(text.split(_MARK)[1], add_special_tokens=False, verbose=False)["input_ids"]
    if answer_ids and ids and ids[0] == answer_ids[-1] == tokenizer.eos_token_id:
        return ids[1:]
    return ids
