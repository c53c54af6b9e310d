"""The plan of notebook 02: what it knows, and what it refuses before any work."""

import ast
import dataclasses
import json
import subprocess
import sys
from dataclasses import replace

import nbformat
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from arcnb.errors import ArcnbError
from arcnb.lab.notebooks.parameters import notebook_parameters
from arcnb.models.sft.plan import PLAN, RESERVED, SFT_CONFIG, SftPlan, problems
from arcnb.plans import MORE, refuse
from arcnb.synth.task_sets import recipe_problems
from tests.paths import NOTEBOOKS

NOTEBOOK = NOTEBOOKS / "02_sft.ipynb"


def test_the_parameters_cell_is_short_and_agrees_with_the_plan():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    (cell,) = (cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", []))
    assert len(cell.source.splitlines()) <= 25
    declared = notebook_parameters(notebook, NOTEBOOK.name)
    assert declared.plan is SftPlan
    assert list(declared)[-1] == MORE
    for name, parameter in declared.items():
        if name != MORE:
            known = SftPlan.find(name)
            assert name == known.flat
            assert parameter.default == known.default, name
            if not known.path.startswith("trl."):
                assert known.meaning.startswith(parameter.comment.removesuffix(f" ({known.unit})")), name


def test_the_notebook_asks_once_before_anything_is_loaded_or_made():
    cells = [cell.source for cell in nbformat.read(NOTEBOOK, as_version=4).cells if cell.cell_type == "code"]
    *_, asks = (number for number, source in enumerate(cells) if "refuse(" in source)
    nodes = [node for source in cells[: asks + 1] for node in ast.walk(ast.parse(source))]
    called = {ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)}
    assert called == {"open_run", "SftPlan.of", "refuse", "recipe_problems", "plan.check", "sft.problems"}


def test_the_settings_of_the_library_exist():
    from trl import SFTConfig

    fields = {entry.name for entry in dataclasses.fields(SFTConfig)}
    assert {*SFT_CONFIG.defaults, *SFT_CONFIG.free} <= fields
    assert fields >= RESERVED - {"seed"}
    assert SftPlan.of({"packing": True, "max_length": 99}).trl.keys() == SFT_CONFIG.defaults.keys()


def test_checkpoints_that_nothing_can_go_on_from_cannot_be_asked_for():
    with pytest.raises(ArcnbError, match="save_only_model is derived"):
        SftPlan.of({"save_only_model": True})


def test_importing_and_making_the_plan_loads_nothing_heavy():
    script = (
        "import sys; from arcnb.models.sft.plan import SftPlan; SftPlan.of({'neftune_noise_alpha': 5}); "
        "print([name for name in ('torch', 'trl', 'transformers', 'vllm', 'pandas') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_what_the_program_sets_itself_is_refused():
    with pytest.raises(ArcnbError, match="eval_strategy is derived from the other settings"):
        SftPlan.of({"more": {"eval_strategy": "epoch"}})


def test_a_plan_comes_through_json_as_it_was():
    plan = SftPlan.of({"lora_r": 4, "weight_decay": 0.1, "target_modules": ["q_proj"], "optim": "sgd"})
    assert SftPlan.of(json.loads(json.dumps(plan.values()))) == plan


def test_a_training_on_another_template_or_other_conversations_is_another_one(tmp_path):
    file, found = tmp_path / "mine", []
    for text in ("{% block system %}a{% endblock %}", "{% block system %}b{% endblock %}"):
        file.write_text(text)
        found += [SftPlan.of({name: str(file)}).identity() for name in ("template", "sft_conversations")]
    assert found[0] != found[2]
    assert found[1] != found[3]


def test_peft_is_told_of_dora_besides_the_shape():
    lora = SftPlan.of({"lora_r": 4, "target_modules": ["q_proj"], "use_dora": True}).lora
    shape = {"r": 4, "lora_alpha": 64, "use_rslora": True, "target_modules": ["q_proj"]}
    assert lora.config == shape | {"use_dora": True}


WRONG = [
    ({"max_length": 60}, r"no row fits max_length=60: with template arc_code already .* has \d+ tokens"),
    ({"max_length": 9999}, "max_length=9999 exceeds the 2048 tokens"),
    ({"max_steps": -1, "num_train_epochs": 0.0}, "num_train_epochs must be positive where max_steps is not"),
    ({"max_steps": -1, "packing": True}, "packing needs max_steps"),
    ({"report_to": "wandbb"}, "report_to='wandbb' does not exist; there are none, wandb"),
    ({"template": "arc_cod"}, "there is no template arc_cod; known are arc_code"),
    ({"adapter": "/nowhere"}, "adapter folder /nowhere does not exist"),
    ({"lora.target_modules": ["q_proj", "c_attn"]}, "has no layer 'c_attn'; there are .*q_proj"),
    ({"lora.target_modules": ["q_proj", "embed_tokens"]}, "LoRA of embed_tokens cannot be used later"),
    ({"full": True, "adapter": "/nowhere"}, "full=True trains all weights, so adapter='/nowhere'"),
    ({"model": "/nowhere/at/all"}, "model folder /nowhere/at/all does not exist"),
    ({"resume": "/nowhere"}, "resume='/nowhere': there is no complete checkpoint"),
    ({"sft_conversations": "/nowhere"}, "sft_conversations: /nowhere: no such file"),
]


@pytest.mark.parametrize(("wrong", "sentence"), WRONG)
def test_what_cannot_work_is_refused_before_the_work(small_model, tmp_path, wrong, sentence):
    plan = SftPlan.of({"model": small_model.path} | wrong)
    with pytest.raises(ArcnbError, match=sentence):
        refuse(problems(plan, tmp_path))


def test_an_adapter_that_cannot_be_trained_on_is_refused_before_the_model_is_loaded(small_model, tmp_path):
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    net = AutoModelForCausalLM.from_pretrained(small_model.path)
    get_peft_model(net, LoraConfig(target_modules=["q_proj", "lm_head"])).save_pretrained(tmp_path / "head")
    plan = SftPlan.of({"model": small_model.path, "adapter": str(tmp_path / "head")})
    (sentence,) = problems(plan, tmp_path)
    assert sentence.endswith(
        "head changes lm_head, which training cannot go on with; start from one of inner layers alone"
    )


def test_all_problems_are_named_at_once_and_a_good_plan_has_none(small_model, tmp_path):
    good = {"model": small_model.path}
    assert problems(SftPlan.of(good), tmp_path) == []
    wrong = {"report_to": "wandbb", "adapter": "/nowhere", "resume": "/nowhere"}
    assert len(problems(SftPlan.of(good | wrong), tmp_path)) == 3


def test_the_page_says_what_became_of_reserved_tasks():
    assert SftPlan.of({}).said_of_reserved(0) == ""
    assert SftPlan.of({}).said_of_reserved(80) == "Reserved tasks left out: 80."
    said = SftPlan.of({"eval_tasks": "dsl*20"}).said_of_reserved(20)
    assert said == "Reserved tasks and eval tasks left out: 20."
    said = SftPlan.of({"train_on_held_out": True}).said_of_reserved(0)
    assert said.startswith("train_on_held_out: reserved tasks were learnt, too")


def test_conversations_are_those_to_learn_from(small_model, tmp_path):
    row = {"task_id": "t", "messages": [{"role": "user", "content": "a"}], "prefix": "", "parent": "t/0/0/0"}
    for name, columns in {"refine": {}, "sft": {"answer": "x"}}.items():
        pq.write_table(pa.Table.from_pylist([row | columns]), tmp_path / f"{name}.parquet")
    plan = SftPlan.of({"model": small_model.path, "sft_conversations": str(tmp_path / "sft.parquet")})
    assert problems(plan) == []
    plan = replace(plan, sft_conversations=str(tmp_path / "refine.parquet"))
    (said,) = problems(plan)
    assert "refine.parquet is a refine.parquet" in said
    assert "it is for refine_conversations of notebook 05" in said


def test_recipes_are_read_before_a_task_is_made():
    assert recipe_problems("rearc*10 + dsl/scenes*2 + rearc/originals", "arc-agi-1/evaluation") == []
    said = recipe_problems("dsl + rearc", "dls*4", "dsl*x", "")
    assert [sentence[:24] for sentence in said[:2]] == [
        "source dsl never ends: s",
        "source rearc never ends:",
    ]
    assert "did you mean 'dsl'?" in said[2]
    assert "what follows * is a number of tasks" in said[3]
    assert "has a part without a source" in said[4]


def test_a_checkpoint_of_other_settings_is_refused_unless_accepted(small_model, tmp_path, monkeypatch):
    monkeypatch.setattr("arcnb.models.training.checkpoints.checkpoint_problem", lambda folder: None)
    (tmp_path / "checkpoints" / "checkpoint-3").mkdir(parents=True)
    asked = {"model": small_model.path}
    assert "does not say its settings" in problems(SftPlan.of(asked), tmp_path)[0]
    kept = tmp_path / "checkpoints" / PLAN
    kept.write_text(json.dumps(SftPlan.of(asked).identity()))
    assert problems(SftPlan.of(asked), tmp_path) == []
    assert problems(SftPlan.of(asked | {"workers": 1, "save_steps": 7}), tmp_path) == []
    other = asked | {"seed": 1, "learning_rate": 1e-3}
    sentence = r"learning_rate was 0.0005 and is 0.001; seed was 0 and is 1; set accept_other_settings=True"
    with pytest.raises(ArcnbError, match=sentence):
        refuse(problems(SftPlan.of(other), tmp_path))
    for way in ({"accept_other_settings": True}, {"resume": "never"}):
        assert problems(SftPlan.of(other | way), tmp_path) == []
    for gone in ({"sft_conversations": "gone.parquet"}, {"template": "gone.jinja"}):
        said = problems(SftPlan.of(asked | gone), tmp_path)
        assert said
        assert all("gone" in sentence for sentence in said)
