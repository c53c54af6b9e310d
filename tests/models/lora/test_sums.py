"""Two adapters as one."""

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

from arcnb.errors import ArcnbError
from arcnb.models.lora.sums import add_adapters, check_addable

TOKENS = torch.arange(5, 60)[None]


def base(tiny):
    return AutoModelForCausalLM.from_pretrained(tiny.path, dtype=torch.float32).eval()


def save(model, folder, **lora):
    """An adapter of the model that changes it, on disk."""
    torch.manual_seed(len(folder.name))
    get_peft_model(model, LoraConfig(init_lora_weights=False, **lora)).save_pretrained(folder)
    return folder


@torch.no_grad()
def logits(model):
    return model(TOKENS).logits


def test_the_sum_does_to_the_model_what_the_second_does_to_it_with_the_first_folded_in(tiny, tmp_path):
    first = save(
        base(tiny), tmp_path / "one", r=4, lora_alpha=6, use_rslora=True, target_modules=["q_proj", "up_proj"]
    )
    folded = PeftModel.from_pretrained(base(tiny), first).merge_and_unload()
    once = logits(folded)
    second = save(folded, tmp_path / "other", r=3, lora_alpha=5, target_modules=["q_proj", "down_proj"])
    # A model that peft has changed keeps its layers.
    again = PeftModel.from_pretrained(base(tiny), first).merge_and_unload()
    both = logits(PeftModel.from_pretrained(again, second).eval())
    assert (once - both).abs().max() > 0.01

    whole = add_adapters(first, second, tmp_path / "sum")
    model = PeftModel.from_pretrained(base(tiny), whole).eval()
    assert model.peft_config["default"].r == 7
    assert torch.allclose(logits(model), both, atol=1e-4)


@pytest.mark.parametrize(
    "which",
    [
        {"target_modules": r".*\.(q_proj|v_proj)"},
        {"target_modules": ["q_proj"], "layers_to_transform": [0]},
        {"target_modules": ["q_proj", "v_proj"], "exclude_modules": ["v_proj"]},
    ],
    ids=["pattern", "layers", "exclusion"],
)
def test_the_sum_has_every_matrix_however_the_first_says_which_it_has(tiny, tmp_path, which):
    first = save(base(tiny), tmp_path / "one", r=4, **which)
    folded = PeftModel.from_pretrained(base(tiny), first).merge_and_unload()
    second = save(folded, tmp_path / "other", r=3, target_modules=["q_proj", "v_proj", "k_proj"])
    again = PeftModel.from_pretrained(base(tiny), first).merge_and_unload()
    both = logits(PeftModel.from_pretrained(again, second).eval())
    whole = add_adapters(first, second, tmp_path / "sum")
    assert torch.allclose(logits(PeftModel.from_pretrained(base(tiny), whole).eval()), both, atol=1e-4)


def test_it_may_replace_the_second(tiny, tmp_path):
    first = save(base(tiny), tmp_path / "one", r=4, target_modules=["q_proj"])
    second = save(base(tiny), tmp_path / "other", r=2, target_modules=["v_proj"])
    apart = add_adapters(first, second, tmp_path / "sum")
    add_adapters(first, second, second)
    one, other = (logits(PeftModel.from_pretrained(base(tiny), folder)) for folder in (apart, second))
    assert torch.equal(one, other)


@pytest.mark.parametrize(
    "more", [{"use_dora": True}, {"lora_bias": True}, {"modules_to_save": ["lm_head"]}], ids=str
)
def test_what_is_more_than_two_matrices_is_refused(tiny, tmp_path, more):
    first = save(base(tiny), tmp_path / "one", r=4, target_modules=["q_proj"])
    second = save(base(tiny), tmp_path / "other", r=2, target_modules=["v_proj"], **more)
    with pytest.raises(
        ArcnbError, match=f"other cannot be added to a second adapter: it has {next(iter(more))}"
    ):
        add_adapters(first, second, tmp_path / "sum")


def test_an_embedding_is_refused_by_the_name_of_its_matrix(tiny, tmp_path):
    first = save(base(tiny), tmp_path / "one", r=4, target_modules=["embed_tokens", "q_proj"])
    with pytest.raises(ArcnbError, match=r"second adapter: it has \S*embed_tokens\S*$"):
        check_addable(first)
