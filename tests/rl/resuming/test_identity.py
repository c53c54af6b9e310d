"""Which run a checkpoint is of, and what its reader is told."""

import json
from dataclasses import replace

import numpy as np
from safetensors.numpy import save_file

from arcnb.rl.plan.grpo import GrpoPlan
from arcnb.rl.resuming.identity import adapter_shape, run_notes
from tests.rl.conftest import QUICK


def test_notes_say_what_was_not_held_out_and_what_shape_counts(tasks, tmp_path):
    def notes(held_out=(), adapter=None, **asked):
        return run_notes(GrpoPlan.of(asked), list(tasks)[:2], held_out, adapter)

    assert notes(list(tasks)[2:]) == []
    assert notes(train_on_held_out=True)[0].startswith("train_on_held_out: what is reserved was not left out")
    (note,) = notes(list(tasks))
    assert note.startswith("2 of 3 eval tasks are trained on, too")
    config = {"r": 8, "lora_alpha": 16, "use_rslora": True, "target_modules": ".*q_proj"}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    matrix = {"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": np.zeros((8, 4), np.float32)}
    save_file(matrix, tmp_path / "adapter_model.safetensors")
    assert adapter_shape(tmp_path)["target_modules"] == ["q_proj"]
    assert notes(adapter=tmp_path) == [], "a shape that nobody asked for"
    assert notes(adapter=tmp_path, lora_r=8, lora_alpha=16) == []
    (note,) = notes(adapter=tmp_path, lora_r=16, lora_alpha=16)
    assert "(r=8) and not r=16" in note


def test_a_server_started_anew_is_no_other_run(tmp_path):
    """Its address and the port for its weights are chosen at each start."""
    plan = GrpoPlan.of(QUICK | {"rewards.terms": {}}, output=tmp_path)
    served = {"vllm_server_base_url": "http://127.0.0.1:8123", "vllm_group_port": 4711}
    assert replace(plan, trl=plan.trl | served).identity() == plan.identity()
