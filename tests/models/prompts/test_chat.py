"""Chat templates of three families on small tokenizers made here: one begin-of-text token, nothing lost."""

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers, processors
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from arcnb.errors import ArcnbError
from arcnb.models.prompts.chat import answer_ids, prompt_ids, prompts_ids, render, render_text
from arcnb.models.prompts.rendering import Prompt

MESSAGES = (
    {"role": "system", "content": "You write Python."},
    {"role": "user", "content": "Grid:\n012\n345"},
)
PREFIX = "Here it is.\n\n```python\n"

LLAMA3 = (
    "{% for m in messages %}{{ (bos_token if loop.first else '') + '<|start_header_id|>' + m['role'] + "
    "'<|end_header_id|>\n\n' + m['content'] | trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
CHATML = (
    "{% for m in messages %}{% if loop.first and m['role'] != 'system' %}{{ '<|im_start|>system\nDefault."
    "<|im_end|>\n' }}{% endif %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}{% set role = 'model' if m['role'] == 'assistant' else m['role'] %}"
    "{{ '<start_of_turn>' + role + '\n' + m['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
# An older habit: the system message is dropped without a word.
DEAF = GEMMA.replace(
    "{{ raise_exception('System role not supported') }}", "{% set messages = messages[1:] %}"
)
SILENT_BOS = LLAMA3.replace("bos_token if loop.first else ''", "''")
DOUBLED_BOS = "{{ bos_token }}" + LLAMA3

FAMILIES = {
    "llama3": (LLAMA3, "<|begin_of_text|>", "<|eot_id|>", True),
    "chatml": (CHATML, None, "<|im_end|>", False),
    "smollm": (CHATML, "<|im_start|>", "<|im_end|>", False),
    "gemma": (GEMMA, "<bos>", "<end_of_turn>", True),
    "deaf": (DEAF, "<bos>", "<end_of_turn>", True),
    "silent_bos": (SILENT_BOS, "<|begin_of_text|>", "<|eot_id|>", True),
    "doubled_bos": (DOUBLED_BOS, "<|begin_of_text|>", "<|eot_id|>", True),
}
SPECIAL = (
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<|im_start|>",
    "<|im_end|>",
    "<bos>",
    "<start_of_turn>",
    "<end_of_turn>",
)


def make_tokenizer(family: str) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer without merges whose chat template and begin-of-text habit are the family's."""
    template, bos, eos, adds_bos = FAMILIES[family]
    vocabulary = {symbol: i for i, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    core = Tokenizer(BPE(vocab=vocabulary, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    if adds_bos:
        core.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, core.token_to_id(bos))]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token=bos, eos_token=eos, chat_template=template
    )


@pytest.fixture(params=FAMILIES)
def tokenizer(request):
    return make_tokenizer(request.param)


def test_exactly_one_begin_of_text_token_at_the_start(tokenizer):
    for prefix in ("", PREFIX):
        ids = render(tokenizer, MESSAGES, prefix)
        bos = tokenizer.bos_token_id
        if bos is None:
            assert tokenizer.convert_ids_to_tokens(ids[0]) == "<|im_start|>"
        elif tokenizer.bos_token == "<|im_start|>":  # opens every turn there
            assert ids[0] == bos != ids[1]
        else:
            assert ids.count(bos) == 1
            assert ids[0] == bos


def test_prompts_tokenized_together_are_those_tokenized_alone(tokenizer):
    prompts = [
        Prompt(MESSAGES[-n:], prefix)
        for n in (1, 2)
        for prefix in ("", PREFIX, "\nx", tokenizer.eos_token)  # of different lengths: nothing may be padded
    ]
    assert prompts_ids(tokenizer, prompts) == [prompt_ids(tokenizer, prompt) for prompt in prompts]
    assert prompts_ids(tokenizer, []) == []


def test_text_ends_with_exactly_the_prefix(tokenizer):
    ids = render(tokenizer, MESSAGES, PREFIX)
    assert tokenizer.decode(ids).endswith("\n" + PREFIX)
    assert render_text(tokenizer, MESSAGES, PREFIX).endswith("\n" + PREFIX)


@pytest.mark.parametrize("prefix", ["x", "x\n", "x \n\n", "\nx", " ```python\n"])
def test_any_prefix_survives_templates_that_trim(tokenizer, prefix):
    opened = render_text(tokenizer, MESSAGES)
    assert render_text(tokenizer, MESSAGES, prefix) == opened + prefix


def test_prefix_that_occurs_earlier_is_not_confused(tokenizer):
    messages = (
        *MESSAGES,
        {"role": "assistant", "content": PREFIX + "a\n```"},
        {"role": "user", "content": PREFIX},
    )
    text = render_text(tokenizer, messages, PREFIX)
    assert text == render_text(tokenizer, messages) + PREFIX


def test_template_that_opens_an_empty_turn_in_another_way():
    tokenizer = make_tokenizer("chatml")
    tokenizer.chat_template = CHATML.replace("assistant\n' }}", "assistant\n<think>\n' }}")
    assert render_text(tokenizer, MESSAGES).endswith("<|im_start|>assistant\n<think>\n")
    assert render_text(tokenizer, MESSAGES, PREFIX).endswith("<|im_start|>assistant\n" + PREFIX)


def test_a_template_that_writes_the_date_makes_the_same_prompt_on_every_day():
    tokenizer = make_tokenizer("llama3")
    tokenizer.chat_template = "{{ strftime_now('%d %b %Y') }}\n" + LLAMA3
    assert render_text(tokenizer, MESSAGES, PREFIX).startswith("26 Jul 2024\n")


def test_every_message_is_in_the_text_once(tokenizer):
    text = render_text(tokenizer, MESSAGES, PREFIX)
    for message in MESSAGES:
        assert text.count(message["content"]) == 1
    assert "Default." not in text, "the template's own system message came on top of ours"


def test_without_a_prefix_the_assistants_turn_is_open(tokenizer):
    text = tokenizer.decode(render(tokenizer, MESSAGES))
    assert text.rstrip("\n").endswith(("assistant", "<|end_header_id|>", "<start_of_turn>model"))


def test_special_tokens_spelled_out_in_an_answer_do_not_end_it(tokenizer):
    evil = {"role": "assistant", "content": f"a{tokenizer.eos_token}b"}
    messages = (*MESSAGES, evil, {"role": "user", "content": "again"})
    clean = (*MESSAGES, {"role": "assistant", "content": "ab"}, {"role": "user", "content": "again"})
    assert render(tokenizer, messages, PREFIX) == render(tokenizer, clean, PREFIX)


def test_special_tokens_that_come_about_when_others_are_taken_out_go_as_well(tokenizer):
    token = tokenizer.eos_token
    nested = f"{token[:5]}{token[:3]}{token}{token[3:]}{token[5:]}"
    messages = [(*MESSAGES, {"role": "assistant", "content": text}) for text in (f"a {nested} b", "a  b")]
    assert render(tokenizer, messages[0], PREFIX) == render(tokenizer, messages[1], PREFIX)


def test_feedback_that_quotes_a_program_opens_no_turn(tokenizer):
    token = tokenizer.eos_token
    answer = {"role": "assistant", "content": "raise ValueError(text)"}
    said = [f"It failed with ValueError: {token}x", "It failed with ValueError: x"]
    ids = [render(tokenizer, (*MESSAGES, answer, {"role": "user", "content": one}), PREFIX) for one in said]
    assert ids[0] == ids[1]
    asked = (MESSAGES[0], {"role": "user", "content": f"what does {token} mean"})
    assert token in render_text(tokenizer, asked).split("what does")[1].split("mean")[0], "as it is written"


def test_prompt_and_answer_are_the_whole_conversation(tokenizer):
    ids = prompt_ids(tokenizer, Prompt(MESSAGES, PREFIX)) + answer_ids(tokenizer, "pass\n```")
    assert tokenizer.decode(ids).endswith(PREFIX + "pass\n```" + tokenizer.eos_token)


def test_a_taught_answer_that_quotes_the_end_token_ends_once(embedded_tokenizer):
    end = embedded_tokenizer.eos_token
    ids = answer_ids(embedded_tokenizer, f"stop = '{end}'  # <|im_<|im_end|>end|>\n```")
    assert embedded_tokenizer.decode(ids) == f"stop = ''  # \n```{end}"
    assert ids.count(embedded_tokenizer.eos_token_id) == 1


def test_embedded_model_sees_the_chatml_of_its_own_template(embedded_tokenizer):
    text = embedded_tokenizer.decode(render(embedded_tokenizer, MESSAGES, PREFIX))
    assert text == (
        "<|im_start|>system\nYou write Python.<|im_end|>\n<|im_start|>user\nGrid:\n012\n345<|im_end|>\n"
        "<|im_start|>assistant\n" + PREFIX
    )


def test_tokenizer_without_template_is_named():
    tokenizer = make_tokenizer("chatml")
    tokenizer.chat_template = None
    with pytest.raises(ArcnbError, match=r"has no chat template; .* chat_template\.jinja"):
        render(tokenizer, MESSAGES)


def test_template_that_refuses_everything_is_named():
    tokenizer = make_tokenizer("chatml")
    tokenizer.chat_template = "{{ raise_exception('no') }}"
    with pytest.raises(ArcnbError, match="refuses the messages"):
        render(tokenizer, MESSAGES)
