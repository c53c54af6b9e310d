"""Parameters and profiles: what is declared, what is refused, and how the message reads."""

import pytest
from nbformat.v4 import new_code_cell, new_notebook

from arcnb.errors import ArcnbError
from arcnb.lab.notebooks.files import read_notebook
from arcnb.lab.notebooks.parameters import check_parameters, notebook_parameters
from arcnb.lab.notebooks.profiles import find_profile, parse_value, profile_values, read_yaml
from tests.paths import NOTEBOOKS

CELL = """\
n_tasks = 40               # how many tasks
rate = 1e-4                # per step; "x = 1" in a comment does no harm
# the model:
# a folder or a name
model = "default"
adapter: str | None = None # run folder, or None
anything = None
ks = [1, 2, 4]             # values of k
weights: list[float] = []
names = ["a",              # first
         "b"]              # second
options = {"a": 1}
fast = False
doubled = 2 * 21           # not a literal
print("not a parameter")
"""


@pytest.fixture
def declared():
    cells = [new_code_cell("import os"), new_code_cell(CELL, metadata={"tags": ["parameters"]})]
    return notebook_parameters(new_notebook(cells=cells))


def test_what_a_cell_declares(declared):
    assert {name: (parameter.kind, parameter.default) for name, parameter in declared.items()} == {
        "n_tasks": ("int", 40),
        "rate": ("float", 1e-4),
        "model": ("str", "default"),
        "adapter": ("str | None", None),
        "anything": ("any", None),
        "ks": ("list[int]", [1, 2, 4]),
        "weights": ("list[float]", []),
        "names": ("list[str]", ["a", "b"]),
        "options": ("dict", {"a": 1}),
        "fast": ("bool", False),
        "doubled": ("any", None),
    }
    assert declared["n_tasks"].comment == "how many tasks"
    assert declared["rate"].comment == 'per step; "x = 1" in a comment does no harm'
    assert declared["model"].comment == "the model: a folder or a name"
    assert declared["names"].comment == "second"
    assert declared["fast"].comment == ""


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n_tasks", "40"),
        ("n_tasks", 40.0),
        ("n_tasks", True),
        ("n_tasks", None),
        ("rate", "fast"),
        ("rate", False),
        ("model", 3),
        ("adapter", 3),
        ("ks", 4),
        ("ks", [1, "2"]),
        ("ks", [1.5]),
        ("weights", ["a"]),
        ("options", []),
        ("fast", 1),
        ("fast", "true"),
    ],
)
def test_ill_typed_values_are_refused(declared, name, value):
    with pytest.raises(ArcnbError, match=rf"03.ipynb: parameter '{name}' must be .*, got .* of type "):
        check_parameters({name: value}, declared, "03.ipynb")


@pytest.mark.parametrize(
    ("name", "value"),
    [("n_tasks", -1), ("rate", 0.5), ("adapter", None), ("adapter", "runs/x"), ("anything", [1]), ("ks", []),
     ("weights", [0.5]), ("options", {"b": "c"}), ("fast", True), ("doubled", "free")],
)  # fmt: skip
def test_fitting_values_pass(declared, name, value):
    assert check_parameters({name: value}, declared, "x") == {name: value}


def test_whole_numbers_become_floats_where_floats_are_declared(declared):
    checked = check_parameters({"rate": 1, "weights": [1, 0.5]}, declared, "x")
    assert checked == {"rate": 1.0, "weights": [1.0, 0.5]}
    assert type(checked["rate"]) is float
    assert type(checked["weights"][0]) is float


def test_unknown_names_suggest_the_nearest(declared):
    with pytest.raises(ArcnbError, match=r"^03.ipynb has no parameter 'n_task'; did you mean 'n_tasks'\?$"):
        check_parameters({"n_task": 1}, declared, "03.ipynb")
    with pytest.raises(ArcnbError, match="no parameter 'zzz'; there are adapter, anything"):
        check_parameters({"zzz": 1}, declared, "03.ipynb")


def test_a_broken_parameters_cell_is_named():
    cells = [new_code_cell("n = = 1", metadata={"tags": ["parameters"]})]
    with pytest.raises(ArcnbError, match=r"x\.ipynb: the parameters cell is not Python: line 1"):
        notebook_parameters(new_notebook(cells=cells), "x.ipynb")
    assert notebook_parameters(new_notebook(cells=[new_code_cell("n = 1")])) == {}


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("n_tasks", "8", 8),
        ("n_tasks", "010", 10),
        ("rate", "1e-4", 1e-4),
        ("rate", "3", 3),
        ("model", "123", "123"),
        ("model", "null", "null"),
        ("model", "a: b", "a: b"),
        ("model", "[unfinished", "[unfinished"),
        ("adapter", "None", None),
        ("adapter", "null", None),
        ("adapter", "2025-01-31", "2025-01-31"),
        ("anything", "no", "no"),
        ("ks", "[1, 16]", [1, 16]),
        ("ks", "16", [16]),
        ("ks", "1, 16", [1, 16]),
        ("names", "q_proj, v_proj", ["q_proj", "v_proj"]),
        ("names", "007", ["007"]),
        ("names", "runs/a/predictions", ["runs/a/predictions"]),
        ("fast", "true", True),
    ],
)
def test_values_of_the_command_line(declared, name, text, value):
    parsed = parse_value(text, declared[name])
    assert parsed == value
    assert type(parsed) is type(value)


def test_a_key_that_is_no_text_fails_no_value_of_the_command_line():
    assert parse_value("{8: [1, 2]}") == {"8": [1, 2]}
    for text in ("{[a]: 1}", "[" * 3000):
        assert parse_value(text) == text


@pytest.fixture
def both(declared):
    cells = [new_code_cell("steps = 4\nmodel = 'default'", metadata={"tags": ["parameters"]})]
    return {"03_inference": declared, "05_grpo": notebook_parameters(new_notebook(cells=cells))}


def profile(tmp_path, text):
    path = tmp_path / "cpu.yaml"
    path.write_text(text)
    return path


PROFILE = """
all: {model: one, fast: true, rate: 1e-5}
03_inference:
  model: two
  n_tasks: 2
05_grpo: {steps: 9}
n_tasks: 3
"""


def test_sections_and_their_order(tmp_path, both):
    path = profile(tmp_path, PROFILE)
    assert profile_values(path, "03_inference", both) == {
        "model": "two",
        "fast": True,
        "rate": 1e-5,
        "n_tasks": 3,
    }
    path.write_text("all: {model: one}\n05_grpo: {steps: 9}\n")
    assert profile_values(path, "05_grpo", both) == {"model": "one", "steps": 9}
    path.write_text("")
    assert profile_values(path, "05_grpo", both) == {}


def test_a_copy_takes_the_section_of_its_notebook(tmp_path):
    cell = "max_steps = 4\nreward = '{}'\nmore: dict = {{}}"
    plan = "from arcnb.rl import GrpoPlan\nplan = GrpoPlan.of(run.parameters)"
    beside = {}
    for stem, reward in (("05_grpo", "solved"), ("my_grpo", "known-grids")):
        parameters = new_code_cell(cell.format(reward), metadata={"tags": ["parameters"]})
        beside[stem] = notebook_parameters(new_notebook(cells=[parameters, new_code_cell(plan)]))
    path = profile(tmp_path, "05_grpo: {max_steps: 9, lora: {r: 2}, reward: right-grids}")
    given = {"max_steps": 9, "lora.r": 2, "reward": "right-grids"}
    assert profile_values(path, "my_grpo", beside) == profile_values(path, "05_grpo", beside) == given
    with pytest.raises(ArcnbError, match="reward='brave' does not exist; there are"):
        check_parameters({"reward": "brave"}, beside["my_grpo"], "my_grpo")
    path.write_text("05_grpo: {max_steps: 9}\nmy_grpo: {max_steps: 3}")
    assert profile_values(path, "my_grpo", beside) == {"max_steps": 3}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("all: {modle: x}", "no notebook has the parameter 'modle' of section 'all'; did you mean 'model'?"),
        ("all: {model: 3}", "section 'all' for 03_inference: parameter 'model' must be str"),
        ("05_grpo: {step: 1}", "section '05_grpo' has no parameter 'step'; did you mean 'steps'?"),
        ("05_grpo: {steps: many}", "section '05_grpo': parameter 'steps' must be int"),
        ("05_grop: {steps: 1}", "'05_grop' is neither a notebook nor a parameter; did you mean '05_grpo'?"),
        ("05_grpo: 3", "section '05_grpo' must hold parameters, got 3"),
        ("n_tsks: 1", "has no parameter 'n_tsks'; did you mean 'n_tasks'?"),
        ("n_tasks: 1\nn_tasks: 2", "line 2: key 'n_tasks' is given twice"),
        ("n_tasks: [1", "line 1: "),
        ("- a", "must hold `name: value` lines, got a list"),
        ("model: {{ data }}", "line 1: a key must be a text, not a mapping"),
        ("n_tasks: 1\n[a]: 1", "line 2: a key must be a text, not a list"),
        ("05_grpo: {8: 1}", "section '05_grpo' has no parameter '8'"),
        ("8: 1", "has no parameter '8'"),
        ("n_tasks: !!int x", "line 1: 'x' cannot be read as int"),
        (f"n_tasks: {'9' * 5000}", "line 1: '999"),
        (f"n_tasks: {'[' * 3000}", "too deep within each other"),
    ],
)
def test_mistakes_in_a_profile_are_named(tmp_path, both, text, message):
    path = profile(tmp_path, text)
    with pytest.raises(ArcnbError) as caught:
        profile_values(path, "03_inference", both)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_named_once(tmp_path):
    with pytest.raises(ArcnbError) as error:
        read_yaml(tmp_path / "none.yaml")
    assert str(error.value) == f"{tmp_path}/none.yaml cannot be read: No such file or directory"


def test_scalars_are_those_of_yaml_1_2(tmp_path):
    path = profile(
        tmp_path, "a: 1e-4\nb: no\nc: 12:30\nd: 2025-01-31\ne: 0x1f\nf: .5\ng: ~\nh: -3\ni: .inf\nj: 1_000\n"
    )
    assert read_yaml(path) == {
        "a": 1e-4, "b": "no", "c": "12:30", "d": "2025-01-31", "e": "0x1f", "f": 0.5, "g": None, "h": -3,
        "i": float("inf"), "j": 1000,
    }  # fmt: skip


def test_profiles_are_found_by_name(tmp_path):
    (tmp_path / "profiles").mkdir()
    named = tmp_path / "profiles" / "cpu.yaml"
    named.write_text("")
    assert find_profile("cpu", tmp_path) == named
    assert find_profile("cpu.yaml", tmp_path) == named
    assert find_profile(str(named), tmp_path) == named
    with pytest.raises(ArcnbError, match=r"there is no profile 'cpv', .*; did you mean 'cpu'\?"):
        find_profile("cpv", tmp_path)


def test_letters_that_changed_places_are_nearest(tmp_path):
    (tmp_path / "profiles").mkdir()
    for name in ("grpo", "gspo", "gepo"):
        (tmp_path / "profiles" / f"{name}.yaml").write_text("")
    with pytest.raises(ArcnbError, match="did you mean 'grpo'"):
        find_profile("gpro", tmp_path)


@pytest.mark.parametrize("notebook", ["02", "03", "05", "07", "09"])
def test_an_encoding_that_cannot_be_read_is_refused_before_a_run(notebook):
    (path,) = NOTEBOOKS.glob(f"{notebook}_*.ipynb")
    declared = notebook_parameters(read_notebook(path))
    for encoding in ("", "shape(row_numbers(minimal))"):
        assert check_parameters({"encoding": encoding}, declared, "x") == {"encoding": encoding}
    for encoding in ("shpe(minimal)", "shape(", 3):
        with pytest.raises(ArcnbError, match=r"^x: (encoding '|parameter 'encoding' must be str)"):
            check_parameters({"encoding": encoding}, declared, "x")


@pytest.mark.parametrize(
    ("notebook", "said", "meant"),
    [
        ("05", "lr", "learning_rate"),
        ("05", "lora_rank", "lora.r"),
        ("05", "rank", "lora.r"),
        ("02", "rank", "lora.r"),
        ("02", "batch_size", "per_device_train_batch_size"),
        ("05", "batch_size", None),
    ],
)
def test_what_is_often_called_otherwise_is_known(notebook, said, meant):
    (path,) = NOTEBOOKS.glob(f"{notebook}_*.ipynb")
    end = f"; did you mean {meant!r}?" if meant else ""
    with pytest.raises(ArcnbError) as caught:
        check_parameters({said: 1}, notebook_parameters(read_notebook(path)), "x")
    assert str(caught.value) == f"x: there is no parameter {said!r}{end}"
