"""Options of a notebook's plan, given in every way there is, reach it and are told of by one name."""

import json
import os
import subprocess
import sys
from pathlib import Path

import papermill
import pytest

from arcnb.errors import ArcnbError
from arcnb.lab import cli
from arcnb.lab.batch.sweeps import find_sweep
from arcnb.lab.commands import batch
from arcnb.lab.runs.finding import list_runs
from tests.lab.scripted_plan import CELL, MAKE, RECORD, flat
from tests.lab.watching import only_run
from tests.paths import ROOT, tooling


@pytest.fixture
def path(notebook, monkeypatch):
    """The notebook of a plan, whose kernel finds it."""
    folders = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, folders)))
    return notebook(MAKE, RECORD, parameters=CELL)


def profile(path, text):
    file = path.parent / "some.yaml"
    file.write_text(text)
    return str(file)


def test_an_option_without_a_line_in_the_cell_reaches_the_plan_the_manifest_and_the_page(path, capsys):
    given = ["-p", "guard.window", "10", "-p", "temperature", "2", "-p", "beta", "0.5", "-p", "seed", "4"]
    assert cli.main(["run", str(path), *given, "-p", "stop", "[a, b]", "--quiet"]) == 0
    run = only_run()
    values = {"guard.window": 10, "sampling.temperature": 2.0, "sampling.stop": ["a", "b"], "trl.beta": 0.5}
    assert run.parameters == flat(seed=4, **values)
    outcome = run.manifest["outcome"]
    assert {name: outcome[name.replace(".", "-")] for name in values} == values
    assert outcome["label"] == "x"
    capsys.readouterr()
    assert cli.main(["show", run.path.name]) == 0
    assert "    guard.window          10\n" in capsys.readouterr().out
    page = run.page_path.read_text()
    assert "guard.window" in page
    assert "what a mean is taken over. (logged steps)" in page

    assert cli.main(["run", "--resume", run.path.name, "-p", "window", "10"]) == 0, "it is done"
    run.update(status="failed", error={"type": "X", "message": "m", "sentence": "s"})
    for name, value, had in (("window", "11", 10), ("label", "y", "'x'")):
        assert cli.main(["run", "--resume", run.path.name, "-p", name, value]) == 2
        assert f"= {had}, so it cannot be resumed with" in capsys.readouterr().err
        run.update(status="done")
        assert cli.main(["run", "--resume", run.path.name, "-p", name, value]) == 2
        run.update(status="failed")
    same = ["-p", "guard_window", "10", "-p", "label", "x"]
    assert cli.main(["run", "--resume", run.path.name, *same, "--quiet"]) == 0
    assert run.parameters == flat(seed=4, **values)


def test_a_run_is_resumed_with_a_larger_budget_and_with_other_settings_where_it_accepts_them(path, capsys):
    assert cli.main(["run", str(path), "-p", "label", "y", "--quiet"]) == 0
    run = only_run()
    again = ["run", "--resume", run.path.name, "--quiet", "-p"]
    assert cli.main([*again, "budget", "2"]) == 0
    assert run.parameters == flat(label="y", **{"work.budget": 2})
    assert run.manifest["outcome"]["work-budget"] == 2, "a run that was done has done more"
    capsys.readouterr()
    assert cli.main([*again, "budget", "2"]) == 0
    assert "is done, there is nothing to resume" in capsys.readouterr().err
    assert cli.main([*again, "label", "z"]) == 2
    assert "or add -p accept_other_settings true" in capsys.readouterr().err
    assert cli.main([*again, "label", "z", "-p", "accept_other_settings", "true"]) == 0
    assert [run.manifest["outcome"][name] for name in ("label", "work-budget")] == ["z", 2]
    assert cli.main(["show", run.path.name]) == 0
    assert "attempt 1    done\nattempt 2    done\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    "text",
    [
        "guard.window: 10\nlabel: y",
        "guard: {window: 10}\nlabel: y",
        "01_small: {guard: {window: 10}, label: y}",
        "all: {guard: {window: 10}, label: y}",
        "all: {guard_window: 10}\nmore: {label: y}",
    ],
)
def test_a_profile_gives_options_dotted_and_nested(path, notebook, text, capsys):
    notebook(name="02_other")
    text = text.replace(", label: y}", "}\n01_small: {label: y}") if text.startswith("all: {guard:") else text
    assert cli.main(["params", str(path), "-f", profile(path, text)]) == 0
    shown = capsys.readouterr().out
    assert "guard.window          = 10 " in shown
    assert "label                 = 'y' " in shown


def test_a_sweep_combines_options_and_its_table_shows_them(path, capsys):
    command = ["sweep", str(path), "--grid", "guard.window=10,20", "--grid", "label=y", "--name", "wide"]
    assert cli.main(command) == 0
    table = capsys.readouterr().out.splitlines()
    assert table[0].split()[:3] == ["guard.window", "label", "status"]
    assert [line.split()[:3] for line in table[1:]] == [["10", "y", "done"], ["20", "y", "done"]]
    assert (find_sweep("wide").folder / "table.csv").read_text().startswith("guard.window,label,status")
    assert [run.parameters for run in list_runs()] == [
        flat(**{"guard.window": window, "label": "y"}) for window in (10, 20)
    ]
    assert [run.manifest["outcome"]["guard-window"] for run in list_runs()] == [10, 20]
    assert cli.main([*command, "--grid", "window=3"]) == 2
    assert "--grid gives 'window' twice" in capsys.readouterr().err


def test_shards_of_a_notebook_whose_plan_has_them_in_a_branch(path):
    options = cli.parser().parse_args(["sweep", str(path), "--shards", "2", "--name", "parts"])
    sweep = batch.planned_sweep(options)
    output = str(sweep.folder / "predictions")
    assert [member.run.parameters for member in sweep.members] == [
        flat(**{"work.shard": shard, "work.n_shards": 2, "work.output": output}) for shard in (0, 1)
    ]


@pytest.mark.long("several notebooks run")
def test_a_pipeline_gives_options_and_refers_to_what_came_out(path, tmp_path):
    stages = {
        "first": {"notebook": path.name, "parameters": {"guard": {"window": 10}}},
        "then": {"notebook": path.name, "parameters": {"guard": {"window": "${first.outcome.guard-window}"}}},
    }
    file = tmp_path / "road.yaml"
    file.write_text(json.dumps({"stages": stages}))
    assert cli.main(["pipeline", str(file)]) == 0
    assert [run.parameters for run in list_runs()] == [flat(**{"guard.window": 10})] * 2
    assert [run.manifest["outcome"]["guard-window"] for run in list_runs()] == [10, 10]


@pytest.mark.parametrize(
    "more",
    [
        "{guard: {window: 10}}",
        pytest.param("{window: 10}", marks=pytest.mark.repetition),
        pytest.param("{guard_window: 10}", marks=pytest.mark.repetition),
    ],
)
def test_plain_papermill_gives_options_in_more(path, tmp_path, more):
    program = Path(sys.executable).with_name("papermill")
    command = [program, path.name, tmp_path / "out.ipynb", "-y", f"more: {more}", "--no-progress-bar"]
    subprocess.run(command, cwd=path.parent, check=True, capture_output=True)
    assert only_run().parameters == flat(**{"guard.window": 10})
    assert only_run().manifest["outcome"]["guard-window"] == 10


UNKNOWN = [
    ("guard.windo", 1, "there is no parameter 'guard.windo'; did you mean 'guard.window'?"),
    ("window", "few", "parameter 'guard.window' must be int (default 20), got 'few' of type str"),
    ("output_dir", "x", "output_dir is derived from the other settings and cannot be set"),
    ("epsilon_hihg", 1, "there is no parameter 'epsilon_hihg'; did you mean 'epsilon_high'?"),
]


@pytest.mark.parametrize(("name", "value", "sentence"), UNKNOWN)
def test_what_the_plan_does_not_have_is_refused_wherever_it_is_given(
    path, tmp_path, name, value, sentence, capsys
):
    (tmp_path / "road.yaml").write_text(
        json.dumps({"stages": {"a": {"notebook": path.name, "parameters": {name: value}}}})
    )
    for command in (
        ["run", path, "-p", name, value],
        ["run", path, "-f", profile(path, f"{name}: {value}")],
        ["run", path, "-f", profile(path, f"01_small: {{{name}: {value}}}")],
        ["run", path, "-p", "more", f"{{{name}: {value}}}"],
        ["sweep", path, "--grid", f"{name}={value}"],
        ["pipeline", tmp_path / "road.yaml"],
        ["params", path, name] if value != "few" else ["params", path, "-p", name, value],
    ):
        assert cli.main(list(map(str, command))) == 2, command
        error = capsys.readouterr().err
        assert sentence in error, command
        assert error.count("\n") == 1
    for given in ({name: value}, {"more": {name: value}}):
        with pytest.raises(ArcnbError) as refused:
            papermill.execute_notebook(
                path, tmp_path / "out.ipynb", given, engine_name="arcnb", progress_bar=False
            )
        assert str(refused.value) == f"01_small.ipynb: {sentence}"
    assert list_runs() == []


def test_a_profile_for_all_says_what_comes_nearest(path, capsys):
    assert cli.main(["run", str(path), "-f", profile(path, "all: {guard: {windo: 1}}")]) == 2
    assert "no notebook has the parameter 'guard'" in capsys.readouterr().err


def test_one_option_by_two_names_is_refused(path, capsys):
    assert cli.main(["run", str(path), "-f", profile(path, "window: 1\nguard: {window: 2}")]) == 2
    assert "'window' and 'guard.window' are the same; give one" in capsys.readouterr().err
    assert cli.main(["run", str(path), "-f", profile(path, "guard.action: a\nguard_action: b")]) == 2
    assert "'guard.action' and 'guard_action' are the same; give one" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("run PATH -f FILE", "all: {label: a, window: 1, guard.window: 2}"),
        ("sweep PATH --sets FILE --dry-run", "grid: {window: [1, 2], guard.window: [3]}"),
        (
            "pipeline FILE --dry-run",
            "stages: {a: {notebook: PATH}, b: {notebook: PATH, parameters: "
            "{window: 1, guard.window: '${a.outcome.n}'}}}",
        ),
    ],
)
def test_one_option_by_two_names_is_refused_in_every_file(path, command, text, capsys):
    file = profile(path, text.replace("PATH", str(path)))
    words = [word.replace("PATH", str(path)).replace("FILE", file) for word in command.split()]
    assert cli.main(words) == 2
    assert "'window' and 'guard.window' are the same; give one" in capsys.readouterr().err


def test_a_plan_that_cannot_be_imported_is_one_sentence(notebook, capsys):
    path = notebook("from lab_no_plan import SmallPlan\nSmallPlan.of(run.parameters)", parameters=CELL)
    assert cli.main(["run", str(path), "-p", "window", "1"]) == 2
    assert (
        "the notebook's plan lab_no_plan:SmallPlan cannot be imported: No module" in capsys.readouterr().err
    )


def test_params_lists_branch_by_branch_and_of_the_library_what_is_ours(path, capsys):
    assert cli.main(["params", str(path), "-p", "window", "10"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:17] == [
        "# the parameters cell of 01_small.ipynb",
        "seed                  = 0       everything derives from it",
        "guard_action          = 'warn'  what an alarm does",
        "# further",
        "label                 = 'x'     any text | of one line",
        "accept_other_settings = False   go on from those",
        "# guard",
        "guard.window          = 10      what a mean is taken over. (logged steps)",
        "# sampling",
        "sampling.temperature  = 1.0     of the sampler",
        "sampling.stop         = []      texts that end an answer",
        "# work",
        "work.output           = ''      folder of a prediction set that shards share",
        "work.shard            = 0       which of n_shards this is",
        "work.budget           = 1       how much is made",
        "work.n_shards         = 1       runs that share the tasks",
        "# trl",
    ]
    assert lines[17].startswith("trl.beta              = 0.01    KL coefficient")
    assert lines[18].startswith("# trl: ")
    assert lines[18].endswith(" more, at the library's defaults; --all lists them, NAME says what one means")
    assert len(lines) == 19
    assert cli.main(["params", str(path), "-p", "epsilon_high", "0.3"]) == 0
    assert "trl.epsilon_high      = 0.3 " in capsys.readouterr().out, "what was given is shown"
    assert cli.main(["params", str(path), "--all"]) == 0
    assert len(capsys.readouterr().out.splitlines()) > 50


def test_params_says_what_one_means(path, capsys):
    assert cli.main(["params", str(path), "window"]) == 0
    told = "guard.window = 20    (int, logged steps)\nwhat a mean is taken over. Longer is calmer.\n"
    assert capsys.readouterr().out == told
    assert cli.main(["params", str(path), "epsilon_high"]) == 0
    assert capsys.readouterr().out.startswith("trl.epsilon_high = None    (float | None)\n")
    assert cli.main(["params", str(path), "more"]) == 2
    assert cli.main(["params", "05", "reward"]) == 0
    assert "\nright-grids            Share of right grids among those known, " in capsys.readouterr().out


def test_the_page_of_parameters_lists_further_options(path):
    docs = tooling("notebooks")
    (facts,) = docs.notebook_facts(path.parent)
    page = docs.parameter_page([facts])
    for line in (
        '| `guard_action` | `"warn"` | `str` | what an alarm does |',
        "**Further options**",
        '| `label` | `"x"` | `str` | any text \\| of one line |',
        "**Further options, `guard`**",
        "| `guard.window` | `20` | `int` | what a mean is taken over. Longer is calmer. (logged steps) |",
        "**Further options, `trl`**: every field of "
        "[GRPOConfig](https://huggingface.co/docs/trl/grpo_trainer#trl.GRPOConfig) of the installed trl. "
        "Below, those with a default of ours.",
    ):
        assert f"\n{line}\n" in page
    assert "| `trl.beta` | `0.01` |" in page
    assert "epsilon_high" not in page
    assert page.count("guard.action") == 0, "it has a line in the cell"


@pytest.mark.parametrize("text", ["x", "[1]", "{[a]: 1}"])
def test_more_that_is_no_mapping_is_one_sentence(path, text, capsys):
    assert cli.main(["run", str(path), "-p", "more", text, "--dry-run"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"arcnb: {path.name}: more must be a mapping of further parameters, got ")
    assert said.count("\n") == 1
