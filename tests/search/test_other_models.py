"""Models that others made: profile, template, chat template fit together, on random models of their kind."""

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, Qwen2Config
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

from arcnb.arc import PredictionSet, load_tasks
from arcnb.lab.notebooks.files import declared_beside
from arcnb.lab.notebooks.profiles import profile_values
from arcnb.models.prompts.chat import render_text
from arcnb.models.prompts.format import prompt_format
from arcnb.models.registry import load_tokenizer, resolve_model
from arcnb.models.sampling.backends import open_backend
from arcnb.search import InferencePlan, inference, predict_turns
from tests.paths import NOTEBOOKS

# TRL carries the chat templates of many families.
CHATS = Path(find_spec("trl").origin).parent / "chat_templates"
HEADERS = ("<|start_header_id|>", "<|end_header_id|>")
FAMILIES = {
    "barc_8b": (LlamaConfig, "llama3_1.jinja", ("<|begin_of_text|>", "<|eot_id|>"), HEADERS),
    "qwen_coder_1.5b": (Qwen2Config, "qwen2_5.jinja", (None, "<|im_end|>"), ("<|im_start|>",)),
}


@pytest.fixture(scope="module", params=FAMILIES)
def family(request, tmp_path_factory):
    """(profile's name, folder of a random model with the family's classes and chat template)."""
    config, chat, (begin, end), others = FAMILIES[request.param]
    tokenizer = load_tokenizer(resolve_model("default"))
    tokenizer.add_special_tokens(
        {"eos_token": end, "extra_special_tokens": [*filter(None, [begin]), *others]}
    )
    tokenizer.bos_token = begin
    tokenizer.chat_template = (CHATS / chat).read_text()
    folder = tmp_path_factory.mktemp(request.param)
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    ends = {"eos_token_id": tokenizer.eos_token_id, "bos_token_id": tokenizer.bos_token_id}
    made = config(vocab_size=len(tokenizer), max_position_embeddings=12288, **shape, **heads, **ends)
    AutoModelForCausalLM.from_config(made).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return request.param, folder


def of_profile(name, **changed):
    declared = declared_beside(NOTEBOOKS / "03_inference.ipynb", profile=True)
    path = NOTEBOOKS / "profiles" / f"{name}.yaml"
    return InferencePlan.of(profile_values(path, "03_inference", declared) | changed)


def test_notebook_03_samples_and_judges_with_the_profile(family, tmp_path):
    name, folder = family
    few = {"n_predictions": 2, "per_prompt": 2, "max_completion_length": 4, "workers": 1}
    plan = of_profile(name, model=str(folder), backend="transformers", **few)
    tasks = load_tasks("arc-agi-1/training").subset(["25ff71a9"])
    (made,) = inference.sampled_sets(plan, tasks, tmp_path / "predictions").values()
    engine = open_backend(plan.backend, plan.model, None, plan.engine.options(max_lora_rank=0))
    with engine, plan.programs.executor() as executor:
        predict_turns(made, engine, executor, plan, None)
    rows = PredictionSet(tmp_path / "predictions").read()
    assert len(rows) == 2
    assert set(rows["status"]) <= {"no_code", "syntax", "error"}


def test_the_prompt_goes_through_the_chat_template_whole(family):
    name, folder = family
    plan = of_profile(name)
    (task,) = load_tasks("arc-agi-1/training").subset(["25ff71a9"])
    prompt = prompt_format(plan.template, plan.encoding).prompt(task)
    text = render_text(load_tokenizer(resolve_model(folder)), prompt.messages, prompt.prefix)
    for message in prompt.messages:
        assert message["content"] in text
    assert "helpful assistant" not in text  # the family's own system message stays out


def test_barcs_prompt_names_colors_and_ends_with_its_request():
    (task,) = load_tasks("arc-agi-1/training").subset(["25ff71a9"])
    _, user = prompt_format("barc", "color_names").prompt(task).messages
    assert (
        "Example 1\nInput:\nBlue Blue Blue\nBlack Black Black\nBlack Black Black\n\nOutput:\nBlack"
        in user["content"]
    )
    assert user["content"].endswith("based on the pattern observed in the reference examples.")
