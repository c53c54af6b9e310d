"""What a fine-tuning is said to need of a GPU, against what torch holds on a CPU, and what is refused."""

import json
import shutil
import weakref
from contextlib import nullcontext

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from transformers import LlamaConfig, LlamaForCausalLM
from trl.kernels import chunked_logprob
from trl.trainer import utils

from arcnb.errors import ArcnbError
from arcnb.machine.gpus import Gpu
from arcnb.models.lora.options import Lora
from arcnb.models.lora.precision import input_casting
from arcnb.models.memory.shape import GIB, Shape
from arcnb.models.memory.training import TILE, training_bytes
from arcnb.models.sft import plan as plan_module
from arcnb.models.sft.plan import SAVING, SftPlan, problems

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")


class Held(TorchDispatchMode):
    """Bytes of the tensors that were made within and are still there."""

    def __init__(self):
        super().__init__()
        self.bytes, self.seen = 0, weakref.WeakKeyDictionary()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for tensor in tree_iter(out):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage() not in self.seen:
                storage = tensor.untyped_storage()
                self.seen[storage] = size = storage.nbytes()
                self.bytes += size
                weakref.finalize(storage, self._forget, size)
        return out

    def _forget(self, size):
        self.bytes -= size


def config(layers):
    sizes = {"hidden_size": 96, "intermediate_size": 256, "head_dim": 32}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    return LlamaConfig(num_hidden_layers=layers, vocab_size=99, pad_token_id=0, **sizes, **heads)


def kept(layers, length, full=False, targets=None, checkpointing=False, packed=False):
    """Bytes between forward and backward pass of one row, under autocast."""
    net = LlamaForCausalLM(config(layers)).to(torch.float32 if full else torch.bfloat16)
    if not full:
        modules = list(targets or Lora().target_modules)
        net = get_peft_model(net, LoraConfig(task_type="CAUSAL_LM", r=1, target_modules=modules))
    if checkpointing:
        net.gradient_checkpointing_enable({"use_reentrant": False})
        if not full:
            net.enable_input_require_grads()
    net.train()
    positions = torch.arange(length) % (length // 2 if packed else length)
    ids = torch.zeros(1, length, dtype=torch.long)
    casting = nullcontext() if full else input_casting(net, enabled=False)
    with casting, torch.autocast("cpu", torch.bfloat16), Held() as held:
        out = net(input_ids=ids, position_ids=positions[None], use_cache=False)
    assert out.logits.requires_grad
    return held.bytes


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("learnt", [{"full": True}, {}, {"targets": ATTENTION}])
def test_a_token_keeps_what_torch_keeps_of_it(learnt, checkpointing):
    def a_layer(length):
        three, two = (kept(n, length, checkpointing=checkpointing, **learnt) for n in (3, 2))
        return three - two

    def said(layers):
        shape = Shape.of(config(layers).to_dict())
        return shape.kept_per_token(learnt.get("targets"), checkpointing, learnt.get("full", False))

    measured = (a_layer(512) - a_layer(256)) / 256  # without the copies of weights
    assert said(3) - said(2) == pytest.approx(measured, rel=0.03)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_packed_rows_keep_their_mask_in_every_layer(checkpointing):
    length, layers = 512, 3
    added = [kept(layers, length, checkpointing=checkpointing, packed=packed) for packed in (False, True)]
    said = Shape.of(config(layers).to_dict()).kept_by_packing(length, checkpointing)
    if checkpointing:  # the layer at work is not there between the passes
        said -= 2 * length**2 + 4 * 32 * 2 * length
    assert said == pytest.approx(added[1] - added[0], rel=0.03)


def test_an_adapter_has_the_parameters_that_peft_gives_it():
    net = get_peft_model(
        LlamaForCausalLM(config(2)),
        LoraConfig(task_type="CAUSAL_LM", r=5, target_modules=Lora().target_modules),
    )
    assert Shape.of(config(2).to_dict()).lora(5) == net.get_nb_trainable_parameters()[0]


def test_logits_are_counted_as_the_tile_that_is_at_work():
    assert TILE == (chunked_logprob.TOKEN_CHUNK_SIZE, utils._CHUNKED_LOGPROB_CHUNK_SIZE)


def sizes(**asked):
    plan = SftPlan.of({"per_device_train_batch_size": 8, "max_length": 1024} | asked)
    shape = plan_module._shape(plan)
    return shape, training_bytes(shape, plan.layout)


def test_the_embedded_models_training_by_hand():
    """8 rows of 1,024 tokens, rank 32, on one GPU and on two."""
    shape, held = sizes()
    n = shape.lora(32)
    assert held["weights"] == 2 * shape.parameters
    assert (held["adapter"], held["gradients"], held["optimizer"]) == (4 * n, 4 * n, 8 * n)
    assert held["activations"] == 8192 * 31 * 22272
    assert held["logits"] == 2 * 4096 * 32768 + 4 * 8192 * 576
    assert sizes(num_processes=2)[1]["gradients"] == 8 * n, "DDP has copies"


def test_options_change_what_is_counted():
    shape, plain = sizes()
    assert sizes(gradient_checkpointing=True)[1]["activations"] == 8192 * (30 * 2 * 576 + 22272)
    assert sizes(target_modules=["q_proj"])[1]["activations"] == 8192 * 31 * (22272 - 2 * 576 - 2 * 1536)
    assert sizes(label_smoothing_factor=0.1)[1]["logits"] == 10 * 8192 * shape.vocabulary
    packed = sizes(packing=True)[1]["activations"] - plain["activations"]
    assert packed == 8 * shape.kept_by_packing(1024)
    whole = sizes(full=True)[1]
    held = [whole[what] for what in ("weights", "float32 weights", "gradients", "optimizer")]
    assert held == [n * shape.parameters for n in (2, 4, 4, 8)]
    assert whole["activations"] == 8192 * 31 * (22272 + 14 * 576)


def test_quantized_weights_are_counted_as_their_files_are(small_model, tmp_path):
    folder = shutil.copytree(small_model.folder, tmp_path / "four_bits")
    described = json.loads((folder / "config.json").read_text()) | {"quantization_config": {"bits": 4}}
    (folder / "config.json").write_text(json.dumps(described))
    plan = SftPlan.of({"model": str(folder)})
    held = training_bytes(plan_module._shape(plan), plan.layout)
    assert held["weights"] == sum(path.stat().st_size for path in folder.glob("*.safetensors"))


@pytest.fixture
def here(monkeypatch):
    """Sets the memory of the GPUs that are seen, GiB."""

    def see(*gib):
        gpus = [Gpu(n, f"GPU-{n}", one * GIB, one * GIB) for n, one in enumerate(gib)]
        for module in ("arcnb.models.sft.plan", "arcnb.models.memory.training"):
            monkeypatch.setattr(f"{module}.visible_gpus", lambda: gpus)

    see()
    return see


LARGE = {"per_device_train_batch_size": 32, "max_length": 2048}


def test_what_cannot_fit_is_refused_with_the_largest_item_and_what_to_do(here):
    here(80, 40)
    (said,) = problems(SftPlan.of(LARGE))
    assert "default cannot fit: each training GPU needs about 49" in said
    assert "(activations: 42.1), and of 40 GiB there are 40.0 to be used; lower per_device_train" in said
    here(80, 80)
    assert problems(SftPlan.of(LARGE)) == []
    assert problems(SftPlan.of(LARGE | {"gpu_memory_gib": 40.0}))[0].startswith("default cannot fit")
    here(40)
    assert problems(SftPlan.of(LARGE | {"gpu_memory_gib": 80.0})) == []
    assert problems(SftPlan.of(LARGE | {"gradient_checkpointing": True})) == []


def test_without_a_gpu_nothing_is_refused_and_the_estimate_is_shown(here):
    plan = SftPlan.of(LARGE | {"per_device_train_batch_size": 64})
    assert problems(plan) == []
    table = plan.needed_memory().set_index("what")["GiB"]
    assert table["needed"] > table["room"] == 80


@pytest.mark.parametrize("saving", SAVING)
def test_nothing_is_refused_with_an_option_that_saves_what_is_counted(here, saving):
    here(40)
    value = {"optim": "adafactor", "fsdp": "full_shard", "deepspeed": "zero3.json"}.get(saving, True)
    assert problems(SftPlan.of(LARGE | {"more": {saving: value}})) == []


def test_a_model_of_unknown_sizes_has_no_estimate(here, small_model, monkeypatch):
    here(1)
    plan = SftPlan.of({"model": small_model.path, "per_device_train_batch_size": 999})
    assert problems(plan)

    def unknown(*given):
        raise ArcnbError("does not say the sizes of a plain decoder")

    monkeypatch.setattr(plan_module, "shape_of", unknown)
    assert problems(plan) == []
    assert plan.needed_memory().empty
