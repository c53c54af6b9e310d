"""What a second turn says about the first: truth about train pairs, silence about test pairs."""

import numpy as np
import pytest

from arcnb.arc.scores.similarity import pixel_similarity
from arcnb.arc.tasks.task import Task
from arcnb.errors import ArcnbError
from arcnb.models.prompts.feedback import ProgramError, build_refinement, feedback
from arcnb.models.prompts.rendering import build_prompt
from tests.arc.golden_grids import cases

COMPLETION = "def transform(grid):\n    return grid\n```"


@pytest.fixture
def task():
    train = [{"input": [[1, 2], [3, 4]], "output": [[1, 2], [3, 5]]} for _ in range(3)]
    return Task.from_dict("demo", {"train": train, "test": [{"input": [[6]], "output": [[7, 7, 7]]}]})


@pytest.fixture
def outputs(task):
    right = task.train[0].output
    return [
        right,
        task.train[1].input,
        np.array([[9, 9, 9]], dtype=np.uint8),
        np.array([[8]], dtype=np.uint8),
    ]


def test_feedback_on_right_wrong_and_misshapen_grids(task, outputs):
    right, wrong, misshapen = feedback(task, outputs)
    assert (right.correct, right.similarity, right.wrong_cells) == (True, 1.0, ())
    assert (wrong.correct, wrong.similarity) == (False, 0.75)
    assert [(c.row, c.column, c.produced, c.expected) for c in wrong.wrong_cells] == [(1, 1, "4", "5")]
    assert (misshapen.expected_size, misshapen.produced_size, misshapen.produced) == ("2x2", "1x3", "999")
    assert misshapen.similarity == pixel_similarity(task.train[2].output, outputs[2])
    assert misshapen.wrong_cells == ()


def test_conversation_goes_on(task, outputs):
    first = build_prompt(task)
    prompt = build_refinement(task, first, COMPLETION, outputs)
    assert prompt.messages[:2] == first.messages
    assert prompt.messages[2] == {"role": "assistant", "content": first.prefix + COMPLETION}
    text = prompt.messages[3]["content"]
    assert "Pair 1: right." in text
    assert "Pair 2: wrong, 75.0% similar." in text
    assert "(1, 1) is 4, should be 5" in text
    assert "size 1x3, it should have 2x2:\n999" in text
    assert prompt.prefix == "```python\n"


def test_nothing_is_said_about_test_pairs(task, outputs):
    text = build_refinement(task, build_prompt(task), COMPLETION, outputs).messages[-1]["content"]
    assert "Pair 4" not in text
    assert "777" not in text
    assert "8" not in text


def test_many_wrong_cells_show_the_grid():
    big = Task.from_dict(
        "big", {"train": [{"input": [[0]], "output": [[1] * 4] * 4}], "test": [{"input": [[0]]}]}
    )
    text = build_refinement(big, build_prompt(big), COMPLETION, [np.full((4, 4), 2, np.uint8)]).messages[-1][
        "content"
    ]
    assert "16 cells are wrong. The output was:\n2222\n2222\n2222\n2222\n" in text


def test_failed_programs_are_refined_with_their_error(task):
    error = ProgramError("IndexError", "Traceback ...\nindex 9 is out of bounds", 3)
    text = build_refinement(task, build_prompt(task), COMPLETION, error=error).messages[-1]["content"]
    assert "failed with IndexError in line 3: index 9 is out of bounds" in text
    text = build_refinement(task, build_prompt(task), COMPLETION, error=ProgramError("timeout")).messages[-1][
        "content"
    ]
    assert "failed with timeout: no message" in text


def test_endless_error_messages_are_cut(task):
    error = ProgramError("ValueError", "x" * 10_000)
    text = build_refinement(task, build_prompt(task), COMPLETION, error=error).messages[-1]["content"]
    assert len(text) < 500


def test_third_turn(task, outputs):
    second = build_refinement(task, build_prompt(task), COMPLETION, outputs)
    third = build_refinement(task, second, COMPLETION, error=ProgramError("SyntaxError", "bad", 1))
    assert [m["role"] for m in third.messages] == ["system", "user", "assistant", "user", "assistant", "user"]


def test_cells_are_written_in_the_prompts_encoding(task, outputs):
    assert feedback(task, outputs, "color_names")[1].wrong_cells[0].expected == "Gray"
    assert feedback(task, outputs, "shape(row_numbers(minimal))")[1].wrong_cells[0].expected == "5"


def test_outputs_or_error_but_not_both(task, outputs):
    first = build_prompt(task)
    for arguments in ({}, {"outputs": outputs, "error": ProgramError("E")}):
        with pytest.raises(ArcnbError, match="either outputs or an error"):
            build_refinement(task, first, COMPLETION, **arguments)
    with pytest.raises(ArcnbError, match="1 outputs for 3 train pairs"):
        build_refinement(task, first, COMPLETION, outputs[:1])


@pytest.mark.parametrize("case", cases("arc25_learning.json", "refine_feedback"), ids=lambda case: case["id"])
def test_feedback_states_the_facts_that_the_reference_states(case):
    args = case["args"]
    outputs = [np.array(grid, dtype=np.uint8) for grid in args["predictions"]]
    pairs = feedback(Task.from_dict("golden", args["task"]), outputs)
    for pair, expected in zip(pairs, case["expect"]["value"], strict=True):
        assert pair.correct == expected["matches"]
        if expected["similarity_percent"] is not None:
            assert f"{100 * pair.similarity:.1f}" == expected["similarity_percent"]
        sizes = [[int(side) for side in size.split("x")] for size in (pair.expected_size, pair.produced_size)]
        assert (sizes if sizes[0] != sizes[1] else None) == expected["shape_mismatch"]


def test_an_address_in_a_message_is_the_same_in_every_process(task):
    def said(address):
        error = ProgramError("TypeError", f"bad <object at {address}>", 3, "x = y", "error")
        return build_refinement(task, build_prompt(task), "x", error=error).messages[-1]["content"]

    assert said("0x7f8904864170") == said("0x7f353446c170")
    assert "0x..." in said("0x7f8904864170")
