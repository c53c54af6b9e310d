"""From chat messages to token ids through a model's own chat template.

Engines are given token ids because text would pass through the tokenizer again, which puts a second
begin-of-text token before the one that the template wrote; the model then sees prompts that it never saw
in training, and nothing fails. Three more silent faults are repaired here: templates that strip the end of
the final message (a prefix then loses its line break), templates that refuse or drop a system message, and
templates that write today's date (the same task would make a different prompt tomorrow).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from datetime import datetime

from arcnb.errors import ArcnbError
from arcnb.models.prompts.rendering import Prompt

_TODAY = datetime(2024, 7, 26)  # the day that Llama 3.1's template says it is where nobody says another
_MARK = "⟦answer⟧"  # stands for the answer while the template renders; no template or grid holds it


def prompt_ids(tokenizer, prompt: Prompt) -> list[int]:
    """Token ids of a prompt: the chat, opened for the assistant, ending with exactly `prompt.prefix`."""
    return render(tokenizer, prompt.messages, prompt.prefix)


def prompts_ids(tokenizer, prompts: Sequence[Prompt]) -> list[list[int]]:
    """`prompt_ids` of each prompt, tokenized together: half the work, on all cores, without Python's lock."""
    return _with_begin_of_text(tokenizer, _encode_all(tokenizer, prompts))


def count_tokens(tokenizer, prompts: Sequence[Prompt]) -> list[int]:
    """Lengths of `prompt_ids` of many prompts, up to the begin-of-text token; uses all cores."""
    return [len(ids) for ids in _encode_all(tokenizer, prompts)]


def answer_ids(tokenizer, answer: str) -> list[int]:
    """Token ids of an answer that follows `prompt_ids`, with the end token: what a model is trained to write.

    `answer` begins after the prompt's prefix. Sampling sees the prompt's ids and then the model's, so for
    training the two parts are tokenized apart as well. Special tokens spelled out in it are removed, as
    `render` does: the end token would be learnt where a program only quotes it.
    """
    return [*_encode(tokenizer, _without(_special_tokens(tokenizer), answer)), tokenizer.eos_token_id]


def ids_after_answer(tokenizer, prompt: Prompt, answer_ids: Sequence[int]) -> list[int]:
    """The ids that follow `answer_ids` and end where the next answer begins.

    prompt: the next turn's, as `build_refinement` makes it: its last two messages are the answer and the
    request. An answer that was cut off is ended first. Raises ArcnbError where the chat template does not
    show the answer as it is.

    A conversation in training is the first prompt's ids, the model's own ids, these, its own again, and so
    on. Its own are never tokenised anew: text that passes through a tokenizer twice may come back as other
    tokens, and the model would be trained on tokens it did not write.
    """
    *before, answer, request = prompt.messages
    marked = {**answer, "content": _MARK}
    text = render_text(tokenizer, [*before, marked, request], prompt.prefix)
    if text.count(_MARK) != 1:
        raise ArcnbError(f"the chat template of {tokenizer.name_or_path} changes earlier answers")
    ids = _encode(tokenizer, text.split(_MARK)[1])
    if answer_ids and ids and ids[0] == answer_ids[-1] and ids[0] in tokenizer.added_tokens_decoder:
        return ids[1:]  # the answer has the end of its turn, which need not be the tokenizer's eos token
    return ids


def render(tokenizer, messages: Sequence[dict], prefix: str = "") -> list[int]:
    """Token ids of `messages` and an assistant turn that begins with `prefix`.

    There is exactly one begin-of-text token, if the model uses one. Special tokens spelled out in an
    assistant's message, or in one that follows (feedback quotes errors and lines of a program), are removed
    from it: a completion could otherwise end its own turn, or speak for somebody else.
    Raises ArcnbError.
    """
    text = render_text(tokenizer, messages, prefix)
    return _with_begin_of_text(tokenizer, [_encode(tokenizer, text)])[0]


def render_text(tokenizer, messages: Sequence[dict], prefix: str = "") -> str:
    """The text behind `render`, for people to read; never give it to an engine."""
    messages = _plain(tokenizer, messages)
    if not getattr(tokenizer, "chat_template", None):
        raise ArcnbError(
            f"the tokenizer of {tokenizer.name_or_path} has no chat template; put one into the model's "
            "folder as chat_template.jinja, or take the model's instruct version"
        )
    text = _apply(tokenizer, messages, prefix)
    system = messages[0]["content"].strip() if messages and messages[0]["role"] == "system" else ""
    if text is None or system not in text:
        messages = _without_system(messages)
        text = _apply(tokenizer, messages, prefix)
    if text is None:
        raise ArcnbError(f"the chat template of {tokenizer.name_or_path} refuses the messages")
    return _ending_with(tokenizer, text, _apply(tokenizer, messages, ""), prefix) if prefix else text


def _encode_all(tokenizer, prompts: Sequence[Prompt]) -> list[list[int]]:
    texts = [render_text(tokenizer, prompt.messages, prompt.prefix) for prompt in prompts]
    return _encode(tokenizer, texts) if texts else []


def _encode(tokenizer, text: str | list[str]) -> list:
    # verbose=False: whether a prompt is too long is for arcnb.models.sampling.backends.fits to say
    return tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]


def _apply(tokenizer, messages: list[dict], prefix: str) -> str | None:
    """The template's text, or None if the template refuses these messages."""
    import jinja2

    opening = [{"role": "assistant", "content": prefix}] if prefix else []
    try:
        return tokenizer.apply_chat_template(
            [*messages, *opening],
            tokenize=False,
            add_generation_prompt=not prefix,
            continue_final_message=bool(prefix),
            strftime_now=_TODAY.strftime,
        )
    except jinja2.TemplateError:
        return None
    except ValueError as error:  # transformers does not find the final message in the text again
        raise ArcnbError(f"the chat template of {tokenizer.name_or_path}: {error}") from error


def _without_system(messages: list[dict]) -> list[dict]:
    """The same chat with the system message at the head of the first user message."""
    if len(messages) < 2 or messages[0]["role"] != "system":
        return messages
    system, first, *rest = messages
    return [{**first, "content": f"{system['content']}\n\n{first['content']}"}, *rest]


def _ending_with(tokenizer, text: str, opened: str | None, prefix: str) -> str:
    """`text` with the blank space of `prefix` that the template has stripped put back.

    opened: the same chat with an empty assistant's turn; it tells the template's own line breaks from the
    prefix's, unless the template opens turns in two ways (some add a tag for reasoning to an empty one).
    """
    if opened is not None and text.startswith(opened) and text[len(opened) :].strip() == prefix.strip():
        return opened + prefix
    for found in (prefix, prefix.rstrip(), prefix.lstrip(), prefix.strip()):
        if text.endswith(found):
            return text[: len(text) - len(found)] + prefix
    raise ArcnbError(
        f"the chat template of {tokenizer.name_or_path} changes the beginning of the answer, {prefix!r}"
    )


def _plain(tokenizer, messages: Sequence[dict]) -> list[dict]:
    """The messages, from the first answer on without special tokens in their text."""
    asked = next((i for i, one in enumerate(messages) if one["role"] == "assistant"), len(messages))
    if asked == len(messages):
        return list(messages)
    special = _special_tokens(tokenizer)
    after = ({**one, "content": _without(special, one["content"])} for one in messages[asked:])
    return [*messages[:asked], *after]


def _special_tokens(tokenizer) -> list[str]:
    return [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]


def _without(words: Sequence[str], text: str) -> str:
    """The text without any of the words, also those that come about when others are taken out."""
    before = None
    while text != before:
        before = text
        for word in filter(None, words):
            text = text.replace(word, "")
    return text


def _with_begin_of_text(tokenizer, prompts: list[list[int]]) -> list[list[int]]:
    """The ids, beginning with one begin-of-text token if the tokenizer uses one, whoever wrote it."""
    bos = tokenizer.bos_token_id
    if bos is None:
        return prompts
    is_added = tokenizer.encode("")[:1] == [bos]
    rests = [list(itertools.dropwhile(bos.__eq__, ids)) for ids in prompts]
    return [
        [bos, *rest] if is_added or len(rest) < len(ids) else ids
        for ids, rest in zip(prompts, rests, strict=True)
    ]


def padded_left(rows: Sequence[Sequence[int]], pad: int):
    """Token ids as two int64 tensors (rows, longest): with `pad` in front of the shorter ones, and 1 where
    there is a token of theirs."""
    import torch

    longest = max(map(len, rows))
    ids = torch.tensor([[pad] * (longest - len(row)) + list(row) for row in rows])
    return ids, torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
