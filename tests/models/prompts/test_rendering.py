"""Templates and tasks become chats: what is shown, what never is, and the sentence for what goes wrong."""

from dataclasses import replace

import numpy as np
import pytest

from arcnb.arc.augmentation import Augmentation
from arcnb.arc.tasks.task import Task
from arcnb.arc.views import AUGMENTATIONS, View
from arcnb.errors import ArcnbError
from arcnb.models.prompts.format import prompt_format
from arcnb.models.prompts.lengths import (
    fitting,
    fitting_table,
    kept_text,
    length_percentiles,
    longest_prompt,
    prompt_lengths,
)
from arcnb.models.prompts.rendering import build_prompt, render_blocks, template_path
from arcnb.models.registry import load_tokenizer
from arcnb.programs.extraction import Extraction, extract_program, open_fence


@pytest.fixture
def task():
    return Task.from_dict(
        "demo",
        {
            "train": [{"input": [[i, 0]], "output": [[0], [i]]} for i in (1, 2, 3)],
            "test": [{"input": [[4, 4, 4]], "output": [[7]]}, {"input": [[5, 5]], "output": [[7]]}],
        },
    )


def test_default_prompt_is_system_user_and_an_opened_fence(task):
    prompt = build_prompt(task)
    assert [m["role"] for m in prompt.messages] == ["system", "user"]
    assert prompt.prefix == "```python\n"
    user = prompt.messages[1]["content"]
    assert "Input 1 (1x2):\n10\n\nOutput 1 (2x1):\n0\n1\n\nInput 2" in user
    assert "Test input (1x3):\n444\n" in user
    assert "transform(grid)" in user


def test_test_outputs_and_other_test_inputs_are_not_shown(task):
    for index, other in ((0, "55"), (1, "444")):
        text = str(build_prompt(replace(task, test=(task.test[index],))).messages)
        assert "7" not in text
        assert other not in text


def test_test_output_grids_never_reach_a_template(task, tmp_path):
    template = tmp_path / "spy.jinja"
    template.write_text(
        "{% block user %}{{ train }} {{ test_input }} {{ self._TemplateReference__context }}{% endblock %}"
    )
    try:
        text = build_prompt(task, template).messages[0]["content"]
    except ArcnbError:
        return  # the sandbox refuses to look at the context at all
    assert "7" not in text


def test_pair_order_is_followed_and_may_shorten(task):
    shown = View(Augmentation(), (2, 0), 0).apply(task)
    text = build_prompt(shown).messages[1]["content"]
    assert text.index("Input 1 (1x2):\n30") < text.index("Input 2 (1x2):\n10")
    assert "Input 3" not in text


def test_encoding_is_chosen_by_name(task):
    assert "Yellow Yellow Yellow" in build_prompt(task, encoding="color_names").messages[1]["content"]
    with pytest.raises(ArcnbError):
        build_prompt(task, encoding="__import__('os')")


def test_a_template_from_a_file(task, tmp_path):
    template = tmp_path / "own.jinja"
    template.write_text(
        "{% block system %}Be brief.{% endblock %}"
        "{% block user %}{% for p in train %}{{ p.input_size }}>{{ p.output_size }} {% endfor %}"
        "{% endblock %}"
        "{% block prefix %}Sure.\n{% endblock %}"
    )
    prompt = build_prompt(task, template)
    assert [m["content"] for m in prompt.messages] == ["Be brief.", "1x2>2x1 1x2>2x1 1x2>2x1"]
    assert prompt.prefix == "Sure.\n"


def test_system_and_prefix_are_optional(task, tmp_path):
    template = tmp_path / "own.jinja"
    template.write_text("{% block user %}{{ test_input }}{% endblock %}")
    prompt = build_prompt(task, template)
    assert [m["role"] for m in prompt.messages] == ["user"]
    assert prompt.prefix == ""


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{% block user %}\n{{ oops", "line 2"),
        ("{% block user %}{{ nobody }}{% endblock %}", "'nobody' is undefined"),
        ("just text", "has no block user"),
        ("{% block user %}{{ ().__class__.__bases__ }}{% endblock %}", "template"),
        ("{% block user %}{{ 1 // 0 }}{% endblock %}", "ZeroDivisionError: "),
        ("{% block user %}{{ '{:d}'.format('x') }}{% endblock %}", "ValueError: "),
        ("{% block user %}{{ self.user() }}{% endblock %}", "RecursionError: "),
    ],
)
def test_faulty_template_is_one_sentence_with_its_name(task, tmp_path, text, sentence):
    template = tmp_path / "faulty.jinja"
    template.write_text(text)
    with pytest.raises(ArcnbError, match=sentence) as caught:
        build_prompt(task, template)
    assert "faulty.jinja" in str(caught.value)
    with pytest.raises(ArcnbError, match=sentence):
        prompt_format(str(template))  # before any work with it
    with pytest.raises(ArcnbError, match=sentence):
        prompt_format(refine_template=str(template))


def test_a_name_that_a_template_does_not_get_is_refused_with_its_line_and_those_that_it_gets(task, tmp_path):
    template = tmp_path / "own.jinja"
    template.write_text(
        "{% block user %}\n{% for pair in train %}\n{{ pair.inputs }}\n{% endfor %}\n{% endblock %}"
    )
    sentence = (
        r"own\.jinja, line 3: 'dict object' has no attribute 'inputs'; there are "
        r"train \(input, output, input_size, output_size\), test_input, test_size$"
    )
    with pytest.raises(ArcnbError, match=sentence):
        build_prompt(task, template)


def test_a_prompt_is_printed_message_by_message(task, tmp_path):
    template = tmp_path / "own.jinja"
    template.write_text("{% block user %}Solve.{% endblock %}{% block prefix %}Sure.\n{% endblock %}")
    assert str(build_prompt(task, template)) == "--- user\nSolve.\n--- assistant, to be continued\nSure.\n"


def test_unknown_template_lists_the_known_ones():
    with pytest.raises(ArcnbError, match="known are arc_code, barc, coder, refine"):
        template_path("arc_cod")


def test_an_edited_template_is_read_again(task, tmp_path):
    template = tmp_path / "own.jinja"
    for word in ("one", "two"):
        template.write_text(f"{{% block user %}}{word}{{% endblock %}}")
        assert build_prompt(task, template).messages[0]["content"] == word


def test_prefix_is_exact_and_other_blocks_are_stripped(tmp_path):
    template = tmp_path / "own.jinja"
    template.write_text(
        "{% block user %}\n\n  x  \n{% endblock %}{% block prefix %}\n\n ```py\n\n{% endblock %}"
    )
    blocks = render_blocks(template, {})
    assert blocks == {"user": "x", "prefix": "\n ```py\n\n"}


PROGRAM = "def transform(grid):\n    return grid\n"


def test_the_default_template_teaches_the_program_and_a_closing_fence(small_model):
    tokenizer = load_tokenizer(small_model)
    expected = tokenizer(PROGRAM + "```", add_special_tokens=False).input_ids
    assert prompt_format().completion_ids(tokenizer, PROGRAM) == [*expected, tokenizer.eos_token_id]


@pytest.mark.parametrize(
    "prefix", ["coder", "barc", "", "```python\n", "```python", "Rule:", "A ```b``` c\n", "~~~\n", "````py\n"]
)
def test_a_taught_answer_is_one_closed_block_under_every_template(prefix, small_model, task, tmp_path):
    template = prefix
    if template in ("coder", "barc"):
        prefix = ""
    else:
        template = tmp_path / "own.jinja"
        template.write_text(
            f"{{% block user %}}x{{% endblock %}}{{% block prefix %}}{prefix}{{% endblock %}}"
        )
    format_, tokenizer = prompt_format(str(template)), load_tokenizer(small_model)
    ids = format_.completion_ids(tokenizer, PROGRAM)
    answer = prefix + tokenizer.decode(ids[:-1])
    assert extract_program(answer) == Extraction(PROGRAM.strip(), "fenced")
    assert open_fence(answer) == ""
    measured = prompt_lengths([replace(task, program=PROGRAM)], small_model, format_)
    assert measured["program_tokens"].tolist() == [len(ids)]


def test_prompts_of_arc_tasks_fit_the_embedded_model(embedded_tokenizer):
    """The figures behind the choice of encoding: 400 training tasks, prompts with 1,024 tokens left."""
    from arcnb.arc.tasks.task_set import load_tasks
    from arcnb.models.prompts.chat import prompt_ids

    tasks = load_tasks("arc-agi-1/training")
    lengths = np.array([len(prompt_ids(embedded_tokenizer, build_prompt(task))) for task in tasks])
    assert len(lengths) == 400
    assert (lengths <= 8192 - 1024).sum() == 399
    assert (lengths <= 2048).sum() >= 345


def test_prompt_lengths_are_those_of_the_longest_prompt_and_say_what_fits(task, small_model):
    small = Task.from_dict(
        "small", {"train": [{"input": [[1]], "output": [[2]]}], "test": [{"input": [[1]]}]}
    )
    lengths = prompt_lengths([task, replace(small, program="pass\n")], small_model, prompt_format())
    ids = prompt_format().prompt_ids(load_tokenizer(small_model), task)
    longest, shortest = lengths["prompt_tokens"]
    assert longest >= len(ids) > shortest
    plain = prompt_lengths([task], small_model, prompt_format(), augment="none")["prompt_tokens"]
    assert plain.tolist() == [longest_prompt(task, prompt_format(), load_tokenizer(small_model), "none")]
    with pytest.raises(ArcnbError, match="there is no augment 'geometri'; did you mean 'geometry'"):
        prompt_lengths([task], small_model, prompt_format(), augment="geometri")
    assert lengths["program_tokens"].isna().tolist() == [True, False]
    assert length_percentiles(lengths).loc["prompt_tokens", "max"] == longest
    assert fitting_table(lengths, 1024 - shortest)["tasks that fit"].tolist() == [1, 2, 2, 2, 2]
    assert fitting(lengths, shortest)["task_id"].tolist() == ["small"]
    kept = "Kept: 1 of 2 tasks, with prompts of"
    assert kept_text(lengths, shortest).startswith(kept)
    assert kept_text(lengths, shortest).endswith(f"with more than {shortest} tokens: {task.task_id}.")
    with pytest.raises(ArcnbError, match=rf"no task of 2 .* max_prompt_length=5; .* has {shortest}"):
        fitting(lengths, 5)


@pytest.mark.parametrize("encoding", ["minimal", "color_names", "shape(row_numbers(minimal))"])
@pytest.mark.parametrize("augment", AUGMENTATIONS)
def test_no_view_has_a_longer_prompt_than_the_longest(task, embedded_tokenizer, encoding, augment):
    """A row of thirty cells has one line break, and thirty as a column; Purple is two tokens in front."""
    wide = [{"input": [[*range(10)] * 3], "output": [[k, *range(9)] * 3]} for k in range(3)]
    format_ = prompt_format(encoding=encoding)
    for seen in (task, Task.from_dict("wide", {"train": wide, "test": [{"input": [[1] * 30]}]})):
        views = (View.sample(seen, 0, i, augment=augment) for i in range(20))
        longest = longest_prompt(seen, format_, embedded_tokenizer, augment)
        lengths = [len(format_.prompt_ids(embedded_tokenizer, view.apply(seen))) for view in views]
        assert max(lengths) <= longest <= max(lengths) + (60 if encoding == "color_names" else 0)
