"""The command line refuses before it starts, and says what it did."""

import json
import os
import subprocess
import sys

import pytest

from arcnb.errors import ArcnbError
from arcnb.lab import cli
from arcnb.lab.commands import notebooks
from arcnb.lab.notebooks import files, profiles
from arcnb.lab.notebooks.parameters import Parameter
from arcnb.lab.runs.finding import find_run, list_runs
from arcnb.lab.runs.placeholders import with_runs
from arcnb.lab.runs.run import Run, new_run
from tests.lab.watching import wait_for


@pytest.fixture
def path(notebook):
    return notebook("run.record({'n': n, 'seconds': seconds})")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-p", "m", "1"], "arcnb: 01_small.ipynb has no parameter 'm'; there are label, n, seconds\n"),
        (["-p", "labl", "1"], "arcnb: 01_small.ipynb has no parameter 'labl'; did you mean 'label'?\n"),
        (
            ["-p", "n", "few"],
            "arcnb: 01_small.ipynb: parameter 'n' must be int (default 3), got 'few' of type str\n",
        ),
        (["-f", "missing"], "arcnb: there is no profile 'missing'"),
        (["--name", "a/b"], "arcnb: run name 'a/b' may hold letters"),
        (["--resume", "nothing"], "arcnb: there is no run 'nothing'"),
    ],
)
def test_refusals_come_before_the_run_folder(path, arguments, message, capsys):
    assert cli.main(["run", str(path), *arguments]) == 2
    assert capsys.readouterr().err.startswith(message)
    assert list_runs() == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "03", "-p", "n_tasks=8"], "-p takes a name and a value: -p n_tasks 8"),
        (["run", "03", "-p", "n_tasks=8", "--quiet"], "-p takes a name and a value: -p n_tasks 8"),
        (["run", "-p", "stop=a b", "03"], "-p takes a name and a value: -p stop 'a b'"),
        (["submit", "03"], "arcnb submit needs --on; `arcnb submit --help` ends with examples"),
        (["submit", "03", "--on", "slurm", "--gpus", "two"], "--gpus must be a whole number, got 'two'"),
        (
            ["run", "03", "-p", "flags", "-O2"],
            "-p takes no value that begins with a hyphen, as -O2 does; write it into a profile (-f)",
        ),
        (["run", "03", "-p", "a", "\udcff"], "'\\udcff' is not UTF-8, in which manifests are written"),
        (["run", "03", "--grace", "x"], "--grace must be a number, got 'x'"),
        (["run", "03", "--nam"], "argument --name: expected one argument (`arcnb run --help`)"),
        (["ls", "all"], "unrecognized arguments: all (`arcnb --help`)"),
    ],
)
def test_a_command_line_that_cannot_be_read_is_one_sentence(arguments, sentence, capsys):
    try:
        code = cli.main(arguments)
    except SystemExit as ended:
        code = ended.code
    assert (code, capsys.readouterr().err) == (2, f"arcnb: {sentence}\n")


def test_a_root_that_cannot_be_written(path, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert cli.main(["run", str(path), "--runs", str(tmp_path / "file")]) == 2
    assert "cannot make a run folder in" in capsys.readouterr().err


def test_a_checkout_that_is_not_installed_runs_notebooks(path, monkeypatch):
    """papermill finds engines by the entry points of installed packages."""
    from papermill.engines import papermill_engines

    monkeypatch.setattr(papermill_engines, "_engines", {})
    assert cli.main(["run", str(path), "--quiet"]) == 0
    assert [run.status for run in list_runs()] == ["done"]


@pytest.mark.parametrize("content", ["", "{}", "not json", '{"nbformat": 4, "nbformat_minor": 5}'])
def test_files_that_are_no_notebooks(tmp_path, content, capsys):
    path = tmp_path / "broken.ipynb"
    path.write_text(content)
    assert cli.main(["run", str(path)]) == 2
    error = capsys.readouterr().err
    assert "broken.ipynb is not a notebook that can be read" in error
    assert error.count("\n") == 1


def test_notebooks_by_number_or_stem(tmp_path, monkeypatch):
    for name in ("01_a", "03_b", "03_c"):
        (tmp_path / f"{name}.ipynb").write_text("{}")
    monkeypatch.setattr(files, "notebooks_folder", lambda: tmp_path)
    assert files.find_notebook("01").stem == "01_a"
    assert files.find_notebook("1").stem == "01_a"
    assert files.find_notebook("c").stem == files.find_notebook("03_c").stem == "03_c"
    with pytest.raises(ArcnbError, match="'03' names several notebooks: 03_b, 03_c"):
        files.find_notebook("03")
    with pytest.raises(ArcnbError, match="'3' names several notebooks: 03_b, 03_c"):
        files.find_notebook("3")
    with pytest.raises(ArcnbError, match=r"no notebook '01_aa', .*; did you mean '01_a'"):
        files.find_notebook("01_aa")


def test_profile_then_parameter(path, capsys):
    (path.parent / "profiles").mkdir()
    (path.parent / "profiles" / "cpu.yaml").write_text("all: {n: 5}\n01_small: {seconds: 1e-3}\n")
    assert cli.main(["run", str(path), "-f", "cpu", "-p", "n", "6", "--name", "mine"]) == 0
    (run,) = list_runs()
    assert run.name == "mine"
    assert run.manifest["parameters"] == {"n": 6, "seconds": 1e-3, "label": "x"}
    assert run.manifest["outcome"] == {"n": 6, "seconds": 1e-3}
    assert "[4/5]" not in capsys.readouterr().out, "standard output holds the folder only"


@pytest.mark.parametrize(
    "text", ["/data/run #3/preds", "'q'", "&a foo", "a: b", "", " x ", "null", "~", "1_", "- a", '"a\\tb"']
)
def test_texts_are_taken_letter_by_letter(text):
    assert profiles.parse_value(text, Parameter("output", "", "str", "")) == text
    value = profiles.parse_value(text, Parameter("adapter", None, "str | None", ""))
    assert value == (None if text in ("null", "~") else text)
    assert profiles.parse_value(text, Parameter("names", [], "list[str]", "")) == [text]


@pytest.mark.parametrize(("text", "value"), [("null", None), ("0.5", [0.5]), ("[1, 2]", [1, 2])])
def test_a_list_that_may_be_missing(text, value):
    assert profiles.parse_value(text, Parameter("weights", None, "list[float] | None", "")) == value


def test_numbers_as_they_are_written(path, capsys):
    whole, real = Parameter("n", 1, "int", ""), Parameter("x", 1.0, "float", "")
    assert profiles.parse_value("-1_000", whole) == -1000
    assert profiles.parse_value("-1e-5", real) == -1e-5
    for text in ("1_", "1__2"):
        assert cli.main(["run", str(path), "-p", "n", text]) == 2
        assert f"parameter 'n' must be int (default 3), got '{text}' of type str\n" in capsys.readouterr().err
    for command in (["run"], ["sweep"], ["submit", "--on", "slurm"]):
        for text in ("-1e-5", "-.5E3", "-2", "-1_000", "-.inf"):
            options = cli.parser().parse_args([*command, "-p", "seconds", text, "x"])
            assert options.parameter == [["seconds", text]]


def test_a_profile_of_other_notebooks_is_refused(path, notebook, capsys):
    notebook(name="02_other")
    (path.parent / "profiles").mkdir()
    profile = path.parent / "profiles" / "gpu.yaml"
    profile.write_text("02_other: {n: 5}\n")
    assert cli.main(["run", str(path), "-f", "gpu"]) == 2
    assert capsys.readouterr().err == f"arcnb: {profile} gives no parameter of 01_small\n"
    assert list_runs() == []


def test_ls_and_show(capsys):
    assert cli.main(["ls"]) == 0
    assert "no runs in" in capsys.readouterr().err
    new_run("first", {"n_tasks": 40}).record({"solved": 3, "rate": 0.25})
    broken = new_run("second")
    (broken.path / "manifest.json").write_text("{")
    assert cli.main(["ls"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.split()[0] == "done"
    assert "solved 3, rate 0.25" in first
    assert second.split()[0] == "unreadable"
    find_run("first").record({"headline": "Three of 40 solved."})
    assert cli.main(["ls"]) == 0
    assert capsys.readouterr().out.splitlines()[0].endswith("  Three of 40 solved.")
    assert cli.main(["ls", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [(one["name"], one["status"]) for one in listed[:1]] == [("first", "done")]
    assert listed[0]["outcome"]["solved"] == 3
    assert listed[1]["status"] == "unreadable"
    assert cli.main(["show", "first", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["parameters"] == {"n_tasks": 40}
    assert cli.main(["status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    assert cli.main(["show", "first"]) == 0
    shown = capsys.readouterr().out
    assert "status       done" in shown
    assert "n_tasks  40" in shown
    assert cli.main(["show", "third"]) == 2


def test_ls_stands_in_columns_and_says_the_flat_numbers_first(capsys):
    rates = {"pass@1": 0.25, "tokens": 7, "of": 8, "headline": "Better.", "solved": 4, "pass@4": 0.5}
    run = new_run("a-long-name").record(rates | {"submission": 0.125})
    assert list(run.manifest["outcome"])[:6] == ["headline", "solved", "of", "pass@1", "pass@4", "submission"]
    new_run("b").record({"none": {"solved": 1, "of": 2}, "lora": {"solved": 2, "of": 2}})
    assert cli.main(["ls"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith("4 of 8 solved, pass@1 25%, pass@4 50%, submission 12% · Better.")
    assert second.endswith("none: 1 of 2 solved; lora: 2 of 2 solved")
    assert first.index("4 of 8") == second.index("none:")


def test_ls_shows_a_whole_number_that_is_no_float(capsys):
    new_run("large").record({"ways": 10**400, "share": 0.123456})
    assert cli.main(["ls"]) == 0
    assert f"ways {10**400}, share 0.123" in capsys.readouterr().out


def test_a_run_that_cannot_be_read_is_found_by_its_name_and_says_what_is_wrong_with_it(capsys):
    run, half = new_run("evaluation"), new_run("half")
    (run.path / "manifest.json").write_text("{")
    (half.path / "manifest.json").unlink()
    (half.path / "left.txt").touch()
    assert cli.main(["show", "evaluation"]) == 2
    assert f"{run.path / 'manifest.json'} cannot be read" in capsys.readouterr().err
    for reference in (half.path.name, str(half.path)):
        assert cli.main(["show", reference]) == 2
        assert f"{half.path} is not a run folder: it holds no manifest.json" in capsys.readouterr().err


def test_a_root_that_cannot_be_listed_is_not_taken_for_an_empty_one(tmp_path, capsys, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("ARCNB_RUNS", str(tmp_path / "file"))
    for command in (["ls"], ["rm"], ["status"]):
        assert cli.main(command) == 2
        assert capsys.readouterr().err == f"arcnb: {tmp_path / 'file'} cannot be listed: Not a directory\n"


def test_a_run_name_that_is_nearly_right_is_suggested(capsys):
    new_run("evaluation")
    assert cli.main(["show", "evalution"]) == 2
    assert capsys.readouterr().err.rstrip().endswith("; did you mean 'evaluation'?")


def test_every_command_is_grouped_and_has_examples(capsys):
    known = cli.parser()
    (commands,) = (action.choices for action in known._actions if isinstance(action.choices, dict))
    assert sorted(name for names in cli.GROUPS.values() for name in names) == sorted(commands)
    for name, command in commands.items():
        assert f"\nexamples:\n    arcnb {name}" in command.format_help()
        assert name in known.format_help()
        assert [action.dest for action in command._actions if not action.help and not action.choices] == []
    with pytest.raises(SystemExit, match="0"):
        cli.main(["--version"])
    assert capsys.readouterr().out.startswith("arcnb ")
    assert cli.main(["rnu", "03"]) == 2
    assert "there is no command 'rnu'; did you mean 'run'?" in capsys.readouterr().err


def test_a_dry_run_checks_and_makes_nothing(path, runs_root, tmp_path, capsys):
    assert cli.main(["run", str(path), "-p", "n", "5", "--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines()[0].split() == ["*", "n", "5"]
    assert cli.main(["run", str(path), "-p", "n", "few", "--dry-run"]) == 2
    assert cli.main(["run", str(path), "--name", "a/b", "--dry-run"]) == 2
    capsys.readouterr()
    assert cli.main(["sweep", str(path), "--grid", "n=1,2", "--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines() == ["new  n_1", "new  n_2"]
    assert cli.main(["sweep", str(path), "--grid", "n=1,1", "--dry-run"]) == 2
    stages = {"a": {"notebook": str(path)}, "b": {"notebook": str(path), "after": ["a"]}}
    (tmp_path / "road.yaml").write_text(json.dumps({"stages": stages}))
    capsys.readouterr()
    assert cli.main(["pipeline", str(tmp_path / "road.yaml"), "--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines() == ["a  would run", "b  would run  after a"]
    assert cli.main(["pipeline", str(tmp_path / "road.yaml"), "--dry-run", "--again", "c"]) == 2
    assert not runs_root.exists()


def test_names_of_runs_stand_for_what_they_left(tmp_path, monkeypatch):
    run = new_run("data")
    (run.path / "tasks.parquet").touch()
    (run.path / "predictions").mkdir()
    assert with_runs({"tasks": "data", "data.tasks": run.path.name, "label": "data"}) == {
        "tasks": f"{run.path}/tasks.parquet",
        "data.tasks": f"{run.path}/tasks.parquet",
        "label": "data",
    }
    folder = f"{run.path}/predictions"
    assert with_runs({"predictions": "data, other"})["predictions"] == f"{folder}, other"
    assert with_runs({"compare": "x = data[:64] | b"})["compare"] == f"x = {folder}[:64] | b"
    assert with_runs({"adapter": "data", "n": 3}) == {"adapter": "data", "n": 3}, "it left none"
    with pytest.raises(ArcnbError, match="'dat' is neither a folder nor a run; did you mean 'data'"):
        with_runs({"predictions": "data, dat"})
    other = new_run("prepared")
    (other.path / "tasks.parquet").touch()
    assert with_runs({"predictions": "prepared"})["predictions"] == "prepared", "it may leave some yet"
    other.update(status="done")
    left = r"-prepared left no predictions; its name can stand for eval_tasks, tasks"
    with pytest.raises(ArcnbError, match=left):
        with_runs({"predictions": "prepared"})
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    assert with_runs({"predictions": "data"}) == {"predictions": "data"}, "a path comes first"


def test_a_source_that_is_none_is_asked_back_as_a_run(notebook, capsys):
    for name in ("mine", "dsl-2"):
        new_run(name)
    parameters = "tasks = ''  # a set\nlabel = ''  # any text\n"
    path = notebook("raise ValueError(f'{tasks}: no such file')", parameters=parameters)
    assert cli.main(["run", str(path), "-p", "tasks", "mien", "--quiet"]) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert "ValueError: mien: no such file; no run is called 'mien'; did you mean 'mine'? See " in said
    other = notebook("raise ValueError(f'{label}: no such file')", parameters=parameters, name="02_other")
    assert cli.main(["run", str(other), "-p", "tasks", "dsl*3", "-p", "label", "mien", "--quiet"]) == 1
    assert "no run is called" not in capsys.readouterr().err, "dsl was found"


@pytest.mark.parametrize(("line", "end"), [("arcnb sho", "show"), ("arcnb show ev", "evaluation")])
def test_a_shell_completes_commands_and_runs(line, end, tmp_path):
    new_run("evaluation")
    told = tmp_path / "told"
    asks = {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_STDOUT_FILENAME": str(told), "_ARGCOMPLETE_IFS": "\n"}
    asks |= {"COMP_LINE": line, "COMP_POINT": str(len(line)), "COMP_TYPE": "9"}
    subprocess.run([sys.executable, "-m", "arcnb.lab.cli"], env=os.environ | asks, timeout=60)
    assert end in [word.strip() for word in told.read_text().split("\n")]


def test_a_running_run_cannot_be_resumed(path, capsys):
    run = new_run("busy")
    assert cli.main(["run", str(path), "--resume", "busy"]) == 2
    assert f"{run.path} is running, so it cannot be resumed" in capsys.readouterr().err


def test_a_copy_that_cannot_be_put_aside_is_one_sentence(notebook, capsys):
    path = notebook("raise ValueError")
    assert cli.main(["run", str(path), "--name", "stuck"]) == 1
    (run,) = list_runs()
    run.copy_path.with_name("01_small.attempt-1.ipynb").mkdir()
    capsys.readouterr()
    assert cli.main(["run", "--resume", "stuck"]) == 2
    assert capsys.readouterr().err == f"arcnb: {run.copy_path} cannot be put aside: Is a directory\n"


def test_of_two_who_resume_a_run_one_gets_it(notebook, start):
    run = new_run("torn", {"n": 3, "seconds": 0.0, "label": "x"})
    run.update(status="failed", error={"type": "X", "message": "m", "sentence": "s"})
    wait = "import time\nwhile not (run.path / 'go').exists():\n    time.sleep(0.05)"
    path = notebook(wait, "run.record({'n': n})")
    processes = [start("run", path, "--resume", "torn") for _ in range(2)]
    wait_for(lambda: any(process.poll() is not None for process in processes))
    (run.path / "go").touch()
    errors = [process.communicate(timeout=120)[1] for process in processes]
    assert sorted(process.returncode for process in processes) == [0, 2], errors
    assert sum("so it cannot be resumed" in error for error in errors) == 1
    assert len(run.manifest["attempts"]) == 1


def test_of_two_who_take_a_name_at_once_one_gets_it(path, monkeypatch, capsys):
    def another_first(*given):
        monkeypatch.setattr(notebooks, "refuse_early", refuse_early)
        refuse_early(*given)
        new_run("mine").record({"n": 1})

    refuse_early = notebooks.refuse_early
    monkeypatch.setattr(notebooks, "refuse_early", another_first)
    assert cli.main(["run", str(path), "--name", "mine"]) == 2
    assert "there is a run called 'mine' already" in capsys.readouterr().err
    assert len(list_runs()) == 1


def test_a_link_to_itself_names_no_run(tmp_path, capsys, monkeypatch):
    (tmp_path / "loop").symlink_to("loop")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["show", "loop"]) == 2
    assert "there is no run 'loop'" in capsys.readouterr().err
    assert cli.main(["ls", "--runs", "loop"]) == 2
    assert "loop cannot be listed" in capsys.readouterr().err


def test_a_number_that_no_manifest_holds_is_not_queued(path, capsys):
    assert cli.main(["sweep", str(path), "--grid", "seconds=.inf,1"]) == 2
    assert "no run can wait with seconds = inf" in capsys.readouterr().err
    assert list_runs() == []


def test_an_end_that_cannot_be_written_is_one_sentence(notebook, monkeypatch, capsys):
    def full(run, **fields):
        if "end" in fields:
            raise ArcnbError(f"cannot write {run.path}: No space left on device")
        update(run, **fields)

    update = Run.update
    monkeypatch.setattr(Run, "update", full)
    assert cli.main(["run", str(notebook("run.record({'n': n})")), "--quiet"]) == 1
    (run,) = list_runs()
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("arcnb: ")]
    assert said == [f"arcnb: cannot write {run.path}: No space left on device"]


def test_ctrl_c_while_the_page_is_written_leaves_a_run_that_is_done(notebook, monkeypatch, capsys):
    def interrupted(run):
        raise KeyboardInterrupt

    monkeypatch.setattr("arcnb.lab.pages.export.export_run", interrupted)
    assert cli.main(["run", str(notebook("run.record({'n': n})"))]) == 0
    (run,) = list_runs()
    assert run.status == "done"
    told = capsys.readouterr().err
    assert f"while the report of {run.path} was written; `arcnb report {run.path.name}`" in told
    assert "before the notebook started" not in told
