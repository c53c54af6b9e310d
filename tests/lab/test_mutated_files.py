"""Whatever stands in a file of the lab, its reader says one sentence about it: mutated files, by seed."""

import json
import random
from pathlib import Path

import pytest
import yaml

from arcnb.errors import ArcnbError
from arcnb.lab import cli
from arcnb.lab.batch.parameter_sets import (
    ParameterSet,
    grid_sets,
    multiplied,
    read_sweep_file,
    refuse_duplicates,
)
from arcnb.lab.batch.pipelines import read_pipeline
from arcnb.lab.batch.sweeps import find_sweep, plan_sweep
from arcnb.lab.clusters.jobs import checked_options, environment_of, resources_of
from arcnb.lab.notebooks.files import declared_beside, read_notebook
from arcnb.lab.notebooks.parameters import check_parameters, notebook_parameters
from arcnb.lab.notebooks.profiles import parse_value, profile_values, read_yaml
from arcnb.lab.runs.cards import run_card, run_facts
from arcnb.lab.runs.finding import find_run
from arcnb.lab.runs.run import new_run

PARAMETERS = "n: int = 3\nrate = 0.5\nks = [1, 2]\nlabel: str | None = None\nmore = {}\nodd: Odd = None\n"
PROFILE = "all:\n  n: 4\n01_small:\n  rate: 1e-3\n  ks: [1, 2]\nlabel: x\n"
PIPELINE = (
    "name: two\nabout: Two.\nstages:\n  a:\n    notebook: 01_small.ipynb\n    profile: p\n  b:\n"
    "    notebook: 01_small.ipynb\n    parameters: {label: '${a.x}', n: 2}\n    after: [a]\n"
    "    job: {gpus: 1, time: 2h}\n"
)
SWEEP = (
    "notebook: 01_small.ipynb\nprofile: p\nparameters: {n: 1}\nsets: {one: {rate: 0.1}, two: {rate: 0.2}}\n"
    "grid: {label: [a, b]}\nname: s\nseconds: 60\n"
)
SITE = "gpus: 2\nmemory: 64G\ntime: 1-12\nextra: [--qos=high]\nenv: {A: b}\nrequeue: true\n"
VALUES = "n: 1\nrate: 2\nks: [1]\nlabel: x\n"
ODD = [
    None, True, -1, 0, 10**30, float("nan"), float("inf"), "", "x", "\0", "\ud800", "${a.b}", "a" * 5000, [],
    [[]], {}, {"a": {"b": None}}, {1: 2}, ["a", 1, None], "../..", "2025-01-31", "~nobody/x",
]  # fmt: skip
N = 150  # mutations of each file


def mutated_text(text: str, chance: random.Random) -> bytes:
    """Bytes cut, doubled, swapped, or put in."""
    content = bytearray(text.encode())
    for _ in range(chance.randint(1, 4)):
        at, end = sorted(chance.randrange(len(content) + 1) for _ in range(2))
        match chance.randrange(5):
            case 0:
                del content[at:end]
            case 1:
                content[at:at] = content[at:end]
            case 2:
                content[at:at] = chance.choice(
                    [b"\x00", b"\xff", b"{", b"]", b":", b"\n", b"- ", b"&a ", b"*a "]
                )
            case 3:
                content[at : at + 1] = bytes([chance.randrange(256)])
            case 4:
                content = content[:at]
    return bytes(content)


def mutated(value, chance: random.Random):
    """The structure with one of its parts replaced, taken out, or doubled under another name."""
    if isinstance(value, dict) and value and chance.random() < 0.8:
        name = chance.choice(list(value))
        other = dict(value)
        match chance.randrange(4):
            case 0:
                del other[name]
            case 1:
                other[chance.choice(["x", "all", 7, "", "n", None])] = other[name]
            case _:
                other[name] = mutated(value[name], chance)
        return other
    if isinstance(value, list) and value and chance.random() < 0.6:
        at = chance.randrange(len(value))
        return [*value[:at], mutated(value[at], chance), *value[at + 1 :]]
    return chance.choice(ODD)


def broken(text: str, load, dump, seed: int) -> bytes:
    chance = random.Random(seed)
    if chance.random() < 0.4:
        return mutated_text(text, chance)
    value = load(text)
    for _ in range(chance.randint(1, 3)):
        value = mutated(value, chance)
    return dump(value).encode("utf-8", "surrogatepass")


def yaml_text(value) -> str:
    return yaml.safe_dump(value, allow_unicode=True)


def is_refused(read, *given) -> bool:
    """Whether a reader says a sentence; any exception but the package's own fails the test."""
    try:
        read(*given)
    except ArcnbError as error:
        return bool(str(error))
    return False


@pytest.fixture
def small(notebook, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = notebook(parameters=PARAMETERS)
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "p.yaml").write_text("n: 5\n")
    return path


def profile(path: Path, small: Path):
    profile_values(path, small.stem, declared_beside(small, "p"))


def pipeline(path: Path, small: Path):
    for stage in read_pipeline(path).stages.values():
        resources_of(checked_options(stage.job, "stage"), "stage", "slurm")


def sweep(path: Path, small: Path):
    said, beside = read_sweep_file(path), declared_beside(small, "p")
    own = beside[small.stem]
    base = said.base(small, beside)
    refuse_duplicates(multiplied([grid_sets(said.grid(own), own, "x"), said.sets(own)]), base)


def site(path: Path, small: Path):
    options = checked_options(read_yaml(path), str(path))
    for scheduler in ("slurm", "htcondor"):
        resources_of(options, "x", scheduler)
    environment_of(options, "x")


def values(path: Path, small: Path):
    declared = notebook_parameters(read_notebook(small))
    for name, value in read_yaml(path).items():
        check_parameters({name: value}, declared, "x")


@pytest.mark.parametrize(
    ("text", "read"),
    [
        (PROFILE, profile),
        (PIPELINE, pipeline),
        (SWEEP, sweep),
        (SITE, site),
        ("n: 1\nrate: 2\nks: [1]\nlabel: x\n", values),
    ],
    ids=["profiles", "pipelines", "sweeps", "job files", "parameters"],
)
def test_a_mutated_yaml_file_is_read_or_refused_in_one_sentence(small, tmp_path, text, read):
    file = tmp_path / "file.yaml"
    refused = 0
    file.write_text(text)
    read(file, small)
    for seed in range(N):
        file.write_bytes(broken(text, yaml.safe_load, yaml_text, seed))
        refused += is_refused(read, file, small)
    assert N / 4 < refused < N


def test_a_mutated_notebook_is_read_or_refused_in_one_sentence(small, tmp_path):
    text = small.read_text()
    file = tmp_path / "other.ipynb"
    refused = 0
    for seed in range(N):
        file.write_bytes(broken(text, json.loads, json.dumps, seed))
        refused += is_refused(lambda: notebook_parameters(read_notebook(file), file.name))
    assert N / 8 < refused < N


def test_a_mutated_manifest_is_read_or_refused_in_one_sentence(small, capsys):
    run = new_run("kept", {"n": 3}, {"path": str(small), "sha256": "x"}).record({"solved": 2})
    file = run.path / "manifest.json"
    text = file.read_text()
    refused = 0

    def looked_at():
        found = find_run(run.path)
        run_card("kept", found.manifest, *found.verdict())
        run_facts(found.manifest)
        assert found.copy_path

    for seed in range(N):
        file.write_bytes(broken(text, json.loads, json.dumps, seed))
        refused += is_refused(looked_at)
        assert cli.main(["ls"]) == 0
        assert cli.main(["show", str(run.path)]) in (0, 2)
        capsys.readouterr()
    assert N / 4 < refused < N


@pytest.mark.parametrize("name", ["heartbeat.json", "job/job.json"])
def test_mutated_notes_of_a_run_hide_no_run(small, name, capsys):
    run = new_run("kept", {"n": 3}, {"path": str(small), "sha256": "x"})
    beat = {"time": "now", "pid": 1, "cell": {"index": 1, "of": 2, "title": "A"}, "progress": "1 of 2"}
    job = {"scheduler": "slurm", "task": "12_3", "folder": "x", "submitted": "now", "cluster": "c"}
    text = json.dumps(beat | job)
    file = run.path / name
    file.parent.mkdir(exist_ok=True)
    for seed in range(N):
        file.write_bytes(broken(text, json.loads, json.dumps, seed))
        assert cli.main(["ls"]) == 0
        assert cli.main(["show", "kept"]) == 0
        assert cli.main(["status", "--all"]) in (0, 1, 2)
        capsys.readouterr()


def test_a_mutated_record_of_a_sweep_is_read_or_refused_in_one_sentence(small):
    sets = [ParameterSet({"n": n}, {"n": n}) for n in (1, 2)]
    (file,) = plan_sweep("s", small, {"n": 3}, sets).folder.glob("*.json")
    text = file.read_text()
    for seed in range(N):
        file.write_bytes(broken(text, json.loads, json.dumps, seed))
        is_refused(lambda: find_sweep("s").table_text())


def test_what_stands_behind_p_is_a_value_or_refused_in_one_sentence(small):
    declared = notebook_parameters(read_notebook(small))
    for seed in range(N * 4):
        chance = random.Random(seed)
        text = mutated_text(chance.choice(["1e-3", "[1, 2]", "{a: 1}", "text", "'q", "- 1\n- 2"]), chance)
        name = chance.choice(list(declared))
        value = parse_value(text.decode(errors="replace"), declared[name])
        is_refused(check_parameters, {name: value}, declared, "x")


def test_the_mutations_reach_deep():
    found = [broken(PIPELINE, yaml.safe_load, yaml_text, seed) for seed in range(N)]
    assert len(set(found)) > N * 0.8
    assert sum(b"stages" in text for text in found) > N / 2
