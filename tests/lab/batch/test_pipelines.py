"""Pipelines here: references, what is skipped and what runs again, what is refused before anything runs."""

import json
import os
import shutil
from pathlib import Path

import pytest

from arcnb.lab import cli
from arcnb.lab.batch.pipelines import read_pipeline
from arcnb.lab.notebooks import files
from arcnb.lab.runs import fingerprints
from arcnb.lab.runs.finding import list_runs
from arcnb.lab.runs.run import new_run
from tests.lab.watching import wait_for

MAKE = "(run.path / 'tasks.txt').write_text('x' * n)\n(run.path / 'when').write_text(str(run.path))"
USE = "from pathlib import Path\nassert not seconds, 'told to fail'\nlength = len(Path(label).read_text())"


@pytest.fixture
def file(notebook, tmp_path):
    """write(stages) -> pipeline file; notebooks a (makes tasks.txt) and b (reads the file `label`)."""
    notebook(MAKE, "run.record({'made': n}, artifacts=['tasks.txt'])", name="a")
    notebook(USE, "run.record({'length': length, 'n': n})", name="b")

    def write(stages, **more):
        path = tmp_path / "road.yaml"
        path.write_text(json.dumps({"stages": stages, **more}))
        return path

    return write


def stages(n=4, **b):
    return {
        "read": {
            "notebook": "b.ipynb",
            "parameters": {"label": "${data.tasks}", "n": "${data.outcome.made}", **b},
        },
        "data": {"notebook": "a.ipynb", "parameters": {"n": n}},
    }


def newest(name):
    return next(run for run in reversed(list_runs()) if run.name == name)


@pytest.mark.long("several notebooks run")
def test_references_skipping_and_what_changed(file, tmp_path, capsys):
    path = file(stages())
    assert cli.main(["pipeline", str(path), "--report", str(tmp_path / "index.html")]) == 0
    data, read = newest("road-data"), newest("road-read")
    assert capsys.readouterr().out.split() == [str(data.path), str(read.path), str(tmp_path / "index.html")]
    assert read.manifest["parameters"] == {"n": 4, "seconds": 0.0, "label": str(data.path / "tasks.txt")}
    assert read.manifest["outcome"] == {"length": 4, "n": 4}
    assert read.manifest["parents"] == [str(data.path)]

    assert cli.main(["pipeline", str(path)]) == 0
    assert capsys.readouterr().err.count("done with the same inputs") == 2
    assert len(list_runs()) == 2

    # The same tasks made anew: what reads them need not run again.
    assert cli.main(["pipeline", str(path), "--again", "data"]) == 0
    assert newest("road-data").path != data.path
    assert len(list_runs()) == 3

    capsys.readouterr()
    assert cli.main(["pipeline", str(file(stages(n=5)))]) == 0
    shown = capsys.readouterr().err
    assert f"(changed since {read.path.name}: n, label)" in shown
    assert newest("road-read").manifest["outcome"]["length"] == 5

    # Going back to what was done before costs nothing, as long as its artifacts are there.
    assert cli.main(["pipeline", str(path)]) == 0
    assert len(list_runs()) == 5


@pytest.mark.long("several notebooks run")
def test_a_failed_stage_stops_those_behind_it_only_and_is_resumed(file, capsys):
    described = stages(seconds=1) | {
        "after": {"notebook": "a.ipynb", "after": ["read"]},
        "other": {"notebook": "a.ipynb", "parameters": {"n": 1}},
    }
    assert cli.main(["pipeline", str(file(described))]) == 1
    assert sorted(run.name for run in list_runs()) == ["road-data", "road-other", "road-read"]
    error = capsys.readouterr().err
    assert "arcnb: stage 'after': not run: it needs read\n" in error
    assert "AssertionError: told to fail\n" in error
    assert cli.main(["pipeline", str(file(described))]) == 1
    assert len(list_runs()) == 3, "it goes on in its folder"
    assert len(newest("road-read").manifest["attempts"]) == 1


@pytest.mark.parametrize(
    ("described", "message"),
    [
        (
            {
                "a": {"notebook": "a.ipynb", "after": "b"},
                "b": {"notebook": "a.ipynb", "parameters": {"label": "${a.tasks}"}},
            },
            "the stages wait for each other in a cycle: ",
        ),
        (
            {"a": {"notebook": "a.ipynb", "after": "a"}},
            "the stages wait for each other in a cycle: a needs a\n",
        ),
        (
            {
                "read": {"notebook": "b.ipynb", "parameters": {"label": "${dat.x}"}},
                "data": {"notebook": "a.ipynb"},
            },
            "stage 'read' needs stage 'dat', which is not there; did you mean 'data'?",
        ),
        (
            {"a": {"notebook": "a.ipynb", "job": {"gpu": 0}}},
            "stage 'a' has no parameter 'gpu'; did you mean 'gpus'?",
        ),
        (
            {"a": {"notebook": "a.ipynb", "paramters": {}}},
            "stage 'a' has an unknown key 'paramters'; did you mean 'parameters'?",
        ),
        (
            {"a": {"notebook": "a.ipynb", "parameters": {"lable": 1}}},
            "stage 'a': a.ipynb has no parameter 'lable'; did you mean 'label'?",
        ),
        (
            {"a": {"notebook": "a.ipynb", "parameters": {"lable": "${b.x}"}}},
            "stage 'a': a.ipynb has no parameter 'lable'; did you mean 'label'?",
        ),
        *(
            (
                {"a": {"notebook": "a.ipynb"}, "b": {"notebook": "a.ipynb", "parameters": {"label": text}}},
                f"stage 'b', parameter 'label': {told} is no reference; there are ${{stage.folder}}, "
                "${stage.artifact} and ${stage.outcome.name}\n",
            )
            for text, told in [
                ("${a}", "${a}"),
                ("x ${a.tasks} ${a.}", "${a.}"),
                ("${a.tasks", "${a.tasks"),
                ("${the a.tasks}", "${the a.tasks}"),
            ]
        ),
        ({"a": {"notebook": "a.ipynb", "parameters": {"n": "many"}}}, "parameter 'n' must be int"),
        ({"a": {"notebook": "a.ipynb", "profile": "demi"}}, "there is no profile 'demi'"),
        ({"a": {"notebook": "aa.ipynb"}}, "there is no notebook 'aa.ipynb'"),
        ({"a": {"parameters": {}}}, "stage 'a' must say which `notebook:` it runs"),
        ({}, "must hold `stages:` with at least one stage in it"),
        ({"a b": {"notebook": "a.ipynb"}}, "run name 'a b' may hold letters"),
    ],
)
def test_a_bad_file_is_refused_before_anything_runs(file, described, message, capsys):
    assert cli.main(["pipeline", str(file(described))]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert list_runs() == []


def test_an_unknown_artifact_is_named_when_its_stage_is_done(file, capsys):
    described = stages()
    described["read"]["parameters"] = {"label": "${data.taks}"}
    assert cli.main(["pipeline", str(file(described))]) == 1
    run = newest("road-data")
    sentence = f"${{data.taks}} is no artifact of {run.path.name}; did you mean 'tasks'?"
    assert sentence in capsys.readouterr().err
    described["read"]["parameters"] = {"n": "${data.outcome.maid}"}
    assert cli.main(["pipeline", str(file(described))]) == 1
    assert f"is not in the outcome of {run.path.name}; did you mean 'made'?" in capsys.readouterr().err
    assert len(list_runs()) == 1


def test_a_stage_whose_folder_is_gone_fails_alone(notebook, tmp_path, runs_root, start):
    wait = "import time\n(run.path / 'ready').touch()\nwhile not (run.path.parent / 'go').exists():"
    notebook(f"{wait}\n    time.sleep(0.1)", "run.record({'n': n})", name="a")
    beside = {"notebook": "a.ipynb", "job": {"gpus": 0}}
    described = {"lost": beside, "kept": beside, "behind": beside | {"after": "lost"}}
    (tmp_path / "road.yaml").write_text(json.dumps({"stages": described}))
    process = start("pipeline", tmp_path / "road.yaml")
    wait_for(lambda: len(list(runs_root.glob("*/ready"))) == 2)
    shutil.rmtree(newest("road-lost").path)
    (runs_root / "go").touch()
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert [(run.name, run.status) for run in list_runs()] == [("road-kept", "done")]
    assert "is not a run folder: it holds no manifest.json\n" in errors
    assert "stage 'behind': not run: it needs lost\n" in errors


def test_of_two_that_start_at_once_one_runs_a_stage(file, start):
    path = file({"data": stages()["data"]})
    both = [start("pipeline", path), start("pipeline", path)]
    for process in both:
        process.communicate(timeout=120)
    assert 0 in {process.returncode for process in both}
    assert [run.status for run in list_runs()] == ["done"]


@pytest.mark.parametrize("changes", ["parameters", "notebook"])
def test_a_stage_that_went_on_with_something_else_is_not_done(changes, notebook, tmp_path, capsys):
    parameters = "n = 3  # how many\naccept_other_settings = False  # in what is resumed\n"
    path = notebook("assert n > 3", "run.record({'n': n})", name="c", parameters=parameters)
    before = path.read_text()
    (tmp_path / "road.yaml").write_text("stages: {one: {notebook: c.ipynb}}\n")
    assert cli.main(["pipeline", str(tmp_path / "road.yaml")]) == 1
    resume = ["run", "--resume", "road-one"]
    if changes == "notebook":
        path.write_text(before.replace("assert n > 3", "assert n > 2"))
    else:
        resume += ["-p", "n", "9", "-p", "accept_other_settings", "true"]
    assert cli.main(resume) == 0
    path.write_text(before)
    capsys.readouterr()
    assert cli.main(["pipeline", str(tmp_path / "road.yaml"), "--dry-run"]) == 0
    assert "would run  changed since " in capsys.readouterr().out


def test_fingerprints_follow_content_and_not_folders(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name / "deep").mkdir(parents=True)
        (tmp_path / name / "deep" / "a.txt").write_text("same")
    assert fingerprints.fingerprint(tmp_path / "one") == fingerprints.fingerprint(tmp_path / "two")
    (tmp_path / "two" / "deep" / "a.txt").write_text("other")
    assert fingerprints.fingerprint(tmp_path / "one") != fingerprints.fingerprint(tmp_path / "two")
    shutil.move(tmp_path / "one" / "deep" / "a.txt", tmp_path / "one" / "deep" / "b.txt")
    (tmp_path / "two" / "deep" / "a.txt").write_text("same")
    assert fingerprints.fingerprint(tmp_path / "one") != fingerprints.fingerprint(tmp_path / "two")
    given = {"tasks": f"{tmp_path}/one, {tmp_path}/two", "text": "one"}
    inputs = fingerprints.run_inputs("x", given, given)["parameters"]
    assert inputs["text"] == "one", "a name is no file, even if one is called so"
    assert inputs["tasks"].count(" @ ") == 1
    assert len(inputs["tasks"].split(" @ ")[1].split()) == 2


@pytest.mark.parametrize("value", ["{0}", ["{0}"], {"a": "{0}"}, {"a": ["x", {"b": "{0}"}]}])
def test_files_count_wherever_a_value_names_them_and_behind_links(value, tmp_path):
    """A folder that a link leads to counts, too, and a link that leads in a circle ends."""
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "a.txt").write_text("before")
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "linked").symlink_to(tmp_path / "real")
    (tmp_path / "real" / "back").symlink_to(tmp_path / "set")
    given = {"p": json.loads(json.dumps(value).replace("{0}", f"{tmp_path}/set"))}
    before = fingerprints.run_inputs("x", given, given)
    assert before == fingerprints.run_inputs("x", given, given)
    (tmp_path / "real" / "a.txt").write_text("after")
    assert fingerprints.differences(before, fingerprints.run_inputs("x", given, given)) == ["p"]


def test_the_folder_of_a_run_counts_by_what_the_run_left_not_by_what_is_written_about_it():
    one, two = (new_run(name) for name in ("one", "two"))
    for run in (one, two):
        (run.path / "parts").mkdir()
        (run.path / "parts" / "a.txt").write_text("same")
        (run.path / "table.html").write_text("a table")
    stopped = fingerprints.fingerprint(one.path)
    (one.path / "parts" / "a.txt").write_text("other")
    assert fingerprints.fingerprint(one.path) != stopped, "what is not done counts by all its files"
    (one.path / "parts" / "a.txt").write_text("same")
    for run in (one, two):
        run.record({"solved": 1, "of": 2}, artifacts=["parts", "table.html"])
    before = fingerprints.fingerprint(one.path)
    (one.path / "notebook.html").write_text("the page")
    (one.path / "log.txt").write_text("what it printed")
    one.update(seconds=5.0, report_problem=None)
    assert fingerprints.fingerprint(one.path) == before == fingerprints.fingerprint(two.path)
    two.record({"solved": 2})
    (one.path / "parts" / "a.txt").write_text("other")
    other = {fingerprints.fingerprint(run.path) for run in (one, two)}
    (one.path / "table.html").unlink()
    assert len({before, *other, fingerprints.fingerprint(one.path)}) == 4


def test_a_stage_that_takes_the_folder_of_another_is_done_once(file, capsys):
    whole = {"notebook": "a.ipynb", "parameters": {"label": "${data.folder}"}}
    path = file({"data": stages()["data"], "copy": whole})
    assert cli.main(["pipeline", str(path)]) == 0
    capsys.readouterr()
    assert cli.main(["pipeline", str(path)]) == 0
    assert capsys.readouterr().err.count("done with the same inputs") == 2


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("rows.jsonl", 1),
        ("./rows.jsonl", 1),
        ("./set", 1),
        ("barc:rows.jsonl", 1),
        ("deep/a.txt*100 + rearc*3 + barc:rows.jsonl * 2", 2),
        ("deep, rows.jsonl", 1),
        ("deep/,rows.jsonl", 2),
        ("sampled = ./set | ./odd=1,a; refined = ./set[:64]+deep/a.txt | ./set[:8]", 4),
        ("one=./odd=1|two = ./set", 1),
        ("./odd=1,a", 1),
        (", ".join(["deep/a.txt"] * 500), 500),
        ("set", 0),
        ("deep", 0),
        ("rearc*100 + dsl", 0),
        ("~nobody-at-all/x, y = 3", 0),
        ("a question, " * 1000, 0),
    ],
)
def test_every_form_that_names_files_is_counted(text, named, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in ("deep", "set", "odd=1,a"):
        (tmp_path / folder).mkdir()
    for name in ("deep/a.txt", "rows.jsonl", "set/a", "dsl", "odd=1,a/a"):
        (tmp_path / name).write_text(name)
    counted = fingerprints.run_inputs("x", {"p": text}, {"p": text})["parameters"]["p"]
    if named:
        assert len(counted.removeprefix(f"{text} @ ").split()) == named
        assert counted.startswith(f"{text} @ ")
    else:
        assert counted == text


def test_a_stage_runs_again_when_a_file_beside_it_changes(file, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.txt").write_text("four")
    path = file({"read": {"notebook": "b.ipynb", "parameters": {"label": "rows.txt"}}})
    assert cli.main(["pipeline", str(path)]) == 0
    assert cli.main(["pipeline", str(path)]) == 0
    assert "done with the same inputs" in capsys.readouterr().err
    (tmp_path / "rows.txt").write_text("fives")
    assert cli.main(["pipeline", str(path)]) == 0
    assert "label" in capsys.readouterr().err
    assert newest("road-read").manifest["outcome"]["length"] == 5


def test_the_demo_is_a_pipeline_that_can_be_read():
    demo = read_pipeline(files.notebooks_folder() / "pipelines" / "demo.yaml")
    assert next(iter(demo.stages)) == "data"
    assert {stage.notebook.stem[:2] for stage in demo.stages.values()} == {"01", "03", "04", "05", "06"}
    assert demo.stages["evaluation"].needs == ("data", "inference", "trained", "grpo")
    assert demo.run_name("data") == "demo-data"
    assert (
        "arcnb pipeline notebooks/pipelines/demo.yaml" in Path(demo.path.parents[2], "Makefile").read_text()
    )


def test_the_gallery_has_a_run_of_every_notebook():
    demo, more = (
        read_pipeline(files.notebooks_folder() / "pipelines" / f"{name}.yaml") for name in ("demo", "gallery")
    )
    stems = {stage.notebook.stem[:2] for stage in (*demo.stages.values(), *more.stages.values())}
    assert stems == {f"{number:02}" for number in range(1, 10)}
    makefile = Path(demo.path.parents[2], "Makefile").read_text()
    assert set(more.stages) <= set(makefile.partition("gallery-,")[2].partition(")")[0].split())
    gpu = read_pipeline(demo.path.with_name("gpu.yaml"))
    for stage in gpu.stages:
        assert gpu.run_name(stage) in gpu.path.read_text(), "its command has all pages"


def test_stages_run_in_the_order_of_the_file_where_they_may_and_say_what_they_are_for(file, capsys):
    """Of stages that need the same one, the one written first goes first; `about` is said before any runs."""
    one = {"notebook": "a.ipynb", "after": ["data"]}
    path = file({"late": one, "data": {"notebook": "a.ipynb"}, "later": one}, about="Three stages.\n")
    pipeline = read_pipeline(path)
    assert list(pipeline.stages) == ["data", "late", "later"]
    assert pipeline.about == "Three stages."
    assert cli.main(["pipeline", str(path), "--again", "nothing"]) == 2
    assert capsys.readouterr().err.splitlines()[0] == "Three stages."


WAIT = """import time
from pathlib import Path
end = time.monotonic() + 100 * n
while not Path(label).is_file():
    assert time.monotonic() < end, 'no other stage ran meanwhile'
    time.sleep(0.1)"""


@pytest.mark.long("two notebooks run")
def test_a_stage_that_asks_for_no_gpu_runs_beside_others(file, notebook, tmp_path, capsys):
    """The first waits for what the second writes."""
    there = str(tmp_path / "there")
    notebook(WAIT, "run.record({'waited': True})", name="wait")
    notebook("open(label, 'w').close()", name="write")
    beside = {"notebook": "wait.ipynb", "parameters": {"label": there, "n": 1}, "job": {"gpus": 0}}
    path = file({"first": beside, "second": {"notebook": "write.ipynb", "parameters": {"label": there}}})
    assert cli.main(["pipeline", str(path)]) == 0
    first, second = newest("road-first"), newest("road-second")
    assert first.manifest["outcome"] == {"waited": True}
    assert capsys.readouterr().out.split() == [str(first.path), str(second.path)]


LATE = """import time
from pathlib import Path
from arcnb.lab.pages import export

def late(run, write=export.export_run):
    end = time.monotonic() + 60
    while not Path({there!r}).is_file() and time.monotonic() < end:
        time.sleep(0.05)
    return write(run)

export.export_run = late"""


@pytest.mark.long("two notebooks run")
def test_a_stage_begins_before_the_page_of_the_one_before_is_written(file, notebook, tmp_path, monkeypatch):
    """Pages are written once the second stage has looked for the first one's, or after a minute."""
    folder, there = tmp_path / "late", tmp_path / "there"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(LATE.format(there=str(there)))
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    look = "from pathlib import Path\npages = len(list(Path(label).parent.glob('*.html')))"
    notebook(look, f"open({str(there)!r}, 'w').close()\nrun.record({{'pages': pages}})", name="look")
    looking = {"notebook": "look.ipynb", "parameters": {"label": "${data.tasks}"}}
    assert cli.main(["pipeline", str(file({"data": {"notebook": "a.ipynb"}, "look": looking}))]) == 0
    assert newest("road-look").manifest["outcome"] == {"pages": 0}
    assert newest("road-data").page_path.is_file()
