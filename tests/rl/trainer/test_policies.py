"""The model that is trained."""

from arcnb.rl.trainer.policies import has_moved


def test_an_adapter_has_moved_when_a_weight_is_another_whatever_its_type(tmp_path):
    import torch
    from safetensors.torch import save_file

    def saved(name, **tensors):
        (tmp_path / name).mkdir()
        save_file(tensors, tmp_path / name / "adapter_model.safetensors")
        return tmp_path / name

    weights = {"a.lora_A.weight": torch.ones(2, 2), "a.lora_B.weight": torch.zeros(2, 2)}
    start = saved("start", **{name: tensor.bfloat16() for name, tensor in weights.items()})
    same = saved("same", **weights)
    other = saved("other", **weights | {"a.lora_B.weight": torch.full((2, 2), 1e-9)})
    assert not has_moved(same, start)
    assert has_moved(other, start)
    assert not has_moved(same, None)
    assert has_moved(other, None)
