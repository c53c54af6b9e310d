"""The trainer's loss and gradients, and what it does when memory runs out."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from torch.nn.functional import cross_entropy
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
)

from arcnb.errors import ArcnbError
from arcnb.models.embedded import embedded_model
from arcnb.models.lora.precision import input_casting
from arcnb.models.memory.shape import Shape
from arcnb.models.sft.rows import collator
from arcnb.search.learning.learner import learner as learner_module
from arcnb.search.learning.learner.learner import LoraLearner
from arcnb.search.learning.learner.loss import (
    add_answer_gradients,
    answer_log_probs,
    answer_states,
    head_logits,
)
from arcnb.search.learning.learner.memory import PartSize, padded_tokens
from arcnb.search.learning.learner.settings import LoraSettings

LORA = LoraSettings(r=2, alpha=8, learning_rate=0.01, batch_tokens=1000)
ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
SIZES = {
    "vocab_size": 99,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "pad_token_id": 0,
}
MODELS = {
    "plain": (LlamaForCausalLM, LlamaConfig(**SIZES)),
    "capped": (Gemma2ForCausalLM, Gemma2Config(**SIZES, head_dim=16, final_logit_softcapping=2.0)),
    "divided": (GraniteForCausalLM, GraniteConfig(**SIZES, logits_scaling=3.0)),
    "scaled": (CohereForCausalLM, CohereConfig(**SIZES, logit_scale=0.25)),
}


def rows_of(lengths, answer=4):
    """Rows of random tokens; the answer ends each, and a part in the middle counts too."""
    random = torch.Generator().manual_seed(0)
    rows = []
    for length in lengths:
        ids = torch.randint(1, 99, (length,), generator=random).tolist()
        labels = [-100] * (length - answer) + ids[-answer:]
        labels[2] = ids[2]
        rows.append({"input_ids": ids, "labels": labels})
    return rows


def gradients(model):
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("logits", [1, 300, 10**6])
@pytest.mark.parametrize("name", list(MODELS))
def test_loss_and_gradients_are_those_of_whole_logits(name, logits):
    kind, config = MODELS[name]
    torch.manual_seed(0)
    model = kind(config)
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(20)  # large logits: a missing cap or scale would show
    batch = collator(0)(rows_of([9, 14, 14, 21]))
    n_answer = int((batch["labels"] != -100).sum())
    shown = {key: value for key, value in batch.items() if key != "labels"}
    whole = model(**shown, use_cache=False).logits[:, :-1]
    loss = cross_entropy(whole.flatten(0, 1), batch["labels"][:, 1:].flatten())
    loss.backward()
    expected = gradients(model)
    model.zero_grad()
    found = add_answer_gradients(model, batch, n_answer, logits=logits)
    torch.testing.assert_close(found, loss.detach(), rtol=1e-5, atol=0)
    got = gradients(model)
    assert got.keys() == expected.keys()
    for key, value in expected.items():
        assert (got[key] - value).norm() <= 1e-5 * value.norm(), key


@pytest.mark.parametrize("logits", [1, 300, 10**6])
def test_a_teacher_s_gradient_is_that_of_the_divergence_from_its_distribution(logits):
    torch.manual_seed(0)
    model = LlamaForCausalLM(MODELS["plain"][1])
    batch = collator(0)(rows_of([9, 14, 21]))
    shown = {key: value for key, value in batch.items() if key != "labels"}
    targets = batch["labels"][:, 1:]
    learned = targets != -100
    logp = model(**shown, use_cache=False).logits[:, :-1].log_softmax(-1)[learned]
    drawn = logp.gather(-1, targets[learned].unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(answer_log_probs(model, batch, logits), drawn.detach())
    states = answer_states(model, batch)
    torch.testing.assert_close(head_logits(model, states).log_softmax(-1), logp)
    states += torch.randn(states.shape, generator=torch.Generator().manual_seed(1))
    other = head_logits(model, states).log_softmax(-1).detach()
    plain = torch.arange(15) // 5 == 1  # an answer that is learned as it is
    divergence = torch.nn.functional.kl_div(other, logp, log_target=True, reduction="none").sum(-1)
    loss = torch.where(plain, -drawn, divergence).sum() / 15
    loss.backward()
    expected = gradients(model)
    model.zero_grad()
    found = add_answer_gradients(model, batch, 15, (states, ~plain), logits)
    torch.testing.assert_close(found, loss.detach())
    for key, value in gradients(model).items():
        assert (value - expected[key]).norm() <= 1e-5 * expected[key].norm(), key


def test_an_answer_with_a_teacher_comes_to_what_the_model_made_of_it_there(tmp_path, small_model):
    """However long it is learned: a teacher stays what it was."""
    own, told = rows_of([40, 60], answer=16)
    told = {name: told[name][:-16] + own[name][-16:] for name in told}
    own["labels"][2] = told["labels"][2] = -100
    row = own | {"told": told}
    with LoraLearner(small_model, replace(LORA, learning_rate=1e-2)) as learner:
        learner._set_weights(None, 7)
        model, collate = learner._net.get_base_model(), collator(0)
        goal = head_logits(model, answer_states(model, collate([told]))).log_softmax(-1)

        def distance():
            now = head_logits(model, answer_states(model, collate([own]))).log_softmax(-1)
            return float((now.exp() * (now - goal)).sum(-1).mean())

        before = distance()
        report = learner.learn([row] * 400, None, tmp_path / "a", 7)
        assert report.losses[0] == pytest.approx(before, rel=1e-3)
        assert distance() < 0.1 * before


def test_a_teacher_s_gain_is_that_of_right_answers_a_token(small_model):
    own, told = rows_of([40, 60], answer=16)
    told = {name: told[name][:-16] + own[name][-16:] for name in told}
    short, longer = rows_of([30, 50], answer=6)
    longer = {name: longer[name][:-6] + short[name][-6:] for name in longer}
    for row in (own, told, short, longer):
        row["labels"][2] = -100
    with LoraLearner(small_model, replace(LORA, batch_tokens=70)) as learner:
        learner._set_weights(None, 7)
        model, collate = learner._net.get_base_model(), collator(0)
        rows = (told, longer, own, short)
        with learner._cast():
            of = [float(answer_log_probs(model, collate([row])).sum()) for row in rows]
        gain = learner.teacher_gain([own | {"told": told}, short | {"told": longer}], None, 7)
    assert gain == pytest.approx((of[0] + of[1] - of[2] - of[3]) / 22, abs=1e-5)
    assert abs(gain) > 1e-4


class Head(torch.nn.Module):
    """Notes how many rows of logits are asked for at a time."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.asked = inner, []

    def forward(self, hidden):
        self.asked.append(hidden.shape[:-1].numel())
        return self.inner(hidden)


def test_no_more_logits_than_allowed_exist_at_a_time():
    model = LlamaForCausalLM(MODELS["plain"][1])
    model.lm_head = Head(model.lm_head)
    model.get_output_embeddings = lambda: model.lm_head
    add_answer_gradients(model, collator(0)(rows_of([9, 14, 21])), 15, logits=99 * 4)
    assert model.lm_head.asked == [4, 4, 4, 3]  # the 15 labelled tokens of 63, four at a time


class Memory:
    """A GPU's memory: a pass over more padded tokens than it holds ends in an error, its gradients made."""

    def __init__(self, tokens, recomputed_tokens=0, error=torch.OutOfMemoryError("CUDA out of memory.")):
        self.tokens, self.recomputed_tokens, self.error = tokens, recomputed_tokens, error
        self.passes = []

    def __call__(self, model, batch, n_answer, teacher):
        loss = add_answer_gradients(model, batch, n_answer, teacher)
        tokens = batch["input_ids"].numel()
        if tokens > (self.recomputed_tokens if model.is_gradient_checkpointing else self.tokens):
            raise self.error
        self.passes.append(tokens)
        return loss


ROWS = rows_of([20, 24, 28, 32] * 2)  # two steps of 104 tokens, 128 with padding


@pytest.fixture
def learned(tmp_path, small_model, monkeypatch):
    """learned(settings, memory) is (report, weights)."""

    def train(settings=LORA, memory=add_answer_gradients):
        monkeypatch.setattr(learner_module, "add_answer_gradients", memory)
        with LoraLearner(small_model, settings) as learner:
            report = learner.learn(ROWS, None, tmp_path / "a", 7)
        return report, load_file(tmp_path / "a" / "adapter_model.safetensors")

    return train


def assert_same(found, expected):
    """Weights of two trainings whose sums differ in order only (Adam's first steps amplify rounding)."""
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-3, atol=1e-6)


OUT_OF_MEMORY = [
    torch.OutOfMemoryError("CUDA out of memory."),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
]


def test_a_step_that_runs_out_of_memory_is_done_in_halves(learned):
    whole, weights = learned()
    asked, asked_weights = learned(replace(LORA, batch_tokens=64))
    assert whole.notes == asked.notes == []
    for error in OUT_OF_MEMORY:
        memory = Memory(70, error=error)
        halved, found = learned(memory=memory)
        assert memory.passes == [48, 64] * 2  # 128 padded tokens failed once; 64 hold for the rest
        assert all(torch.equal(found[name], value) for name, value in asked_weights.items())
        assert_same(found, weights)
        assert (halved.steps, halved.rows, halved.tokens) == (whole.steps, whole.rows, whole.tokens)
        assert halved.losses == pytest.approx(whole.losses, rel=1e-4)
        assert halved.notes == [
            "training ran out of GPU memory with 1,000 tokens in a forward pass and goes on with 64 tokens "
            "in a forward pass: the same optimizer steps, in smaller parts"
        ]


def test_single_rows_that_do_not_fit_are_recomputed(learned):
    _, weights = learned()
    memory = Memory(30, recomputed_tokens=40)
    report, found = learned(memory=memory)
    # the rows of 20, 24 and 28 fit alone, that of 32 does not: the step begins anew each time
    assert memory.passes[-4:] == [20, 24, 28, 32]
    assert_same(found, weights)
    (note,) = report.notes
    assert "tokens in a forward pass and gradient checkpointing: the same" in note


def test_memory_for_not_even_one_row_is_said_with_what_it_needs(learned, tmp_path):
    with pytest.raises(ArcnbError, match="one row of 32 tokens and gradient checkpointing"):
        learned(memory=Memory(10, recomputed_tokens=30))
    assert not (tmp_path / "a").exists()


def test_other_errors_are_not_taken_for_memory(learned):
    with pytest.raises(RuntimeError, match="of another kind"):
        learned(memory=Memory(10, error=RuntimeError("of another kind")))


def test_a_later_training_keeps_what_fits_and_says_nothing_more(tmp_path, small_model, monkeypatch):
    memory = Memory(70)
    monkeypatch.setattr(learner_module, "add_answer_gradients", memory)
    with LoraLearner(small_model, LORA) as learner:
        first = learner.learn(ROWS, None, tmp_path / "a", 7)
        second = learner.learn(ROWS, tmp_path / "a", tmp_path / "b", 7)
    assert (len(first.notes), second.notes) == (1, [])
    assert memory.passes == [48, 64] * 4


def test_rank_alpha_and_layers_of_the_adapter_are_those_asked_for(learned, tmp_path):
    _, weights = learned(replace(LORA, r=3, alpha=5, target_modules=["q_proj", "down_proj"]))
    config = json.loads((tmp_path / "a" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["use_rslora"]) == (3, 5, True)
    assert set(config["target_modules"]) == {"q_proj", "down_proj"}
    assert {min(value.shape) for value in weights.values()} == {3}


def test_recomputing_changes_no_weight(learned):
    _, weights = learned()
    _, found = learned(replace(LORA, gradient_checkpointing=True))
    assert_same(found, weights)


def test_a_teacher_that_is_not_finite_is_an_error(tmp_path, small_model, monkeypatch):
    own, told = rows_of([20, 20])
    states = answer_states
    monkeypatch.setattr(learner_module, "answer_states", lambda *shown: states(*shown) * torch.nan)
    with LoraLearner(small_model, LORA) as learner, pytest.raises(ArcnbError, match="step 1 is nan"):
        learner.learn([own | {"told": told}], None, tmp_path / "a", 7)


def test_the_passes_of_a_teacher_can_be_stopped(tmp_path, small_model, monkeypatch):
    passes, states = [], answer_states
    monkeypatch.setattr(learner_module, "answer_states", lambda *shown: passes.append(1) or states(*shown))
    own, told = rows_of([20, 20])
    with LoraLearner(small_model, replace(LORA, batch_tokens=20)) as learner:
        stopped = learner.learn([own | {"told": told}] * 4, None, tmp_path / "a", 7, lambda: len(passes) > 1)
    assert stopped is None
    assert len(passes) == 2
    assert not (tmp_path / "a").exists()


def test_parts_hold_their_tokens_and_halve_down_to_single_rows():
    size, rows = PartSize(1000), rows_of([20, 24, 28, 32])
    seen = [size.tokens]
    while size.lower(rows) and not size.checkpointing:
        seen.append(size.tokens)
        assert all(padded_tokens(part) <= size.tokens or len(part) == 1 for part in size.parts(rows))
    assert seen == [1000, 64, 32]
    assert size.checkpointing
    assert not size.lower(rows)


@pytest.mark.parametrize("modules", [ALL, ALL[:4], ("self_attn.o_proj", "mlp.up_proj")])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_bytes_per_token_are_those_that_autograd_keeps(modules, checkpointing):
    """Against the storages that autograd saves in bfloat16, a layer, at the embedded model's widths."""

    def per_layer(measure):
        configs = [embedded_widths(n) for n in (3, 1)]
        return (measure(configs[0]) - measure(configs[1])) / 2

    def a_token(config):  # what grows with the tokens, without the casts of the weights
        few, many = (saved_bytes(config, modules, checkpointing, n) for n in (64, 128))
        return (many - few) / 64

    kept = per_layer(a_token)
    said = per_layer(lambda config: Shape.of(config.to_dict()).kept_per_token(modules, checkpointing))
    assert said == pytest.approx(kept, rel=0.03)


def test_bytes_per_token_are_what_trainings_took_of_a_gpu():
    """peak_memory_gb of three searches each on an H200, embedded model, LoRA on all layers: 8.89 to 8.91 GB
    with parts of up to 12,288 tokens,
    16.63 to 16.68 with 24,576 (docs/results/log/2026-11-23_search_and_learn.md)."""
    a_token = (16.65 - 8.90) * 2**30 / 12288
    config = LlamaConfig.from_pretrained(embedded_model())
    assert Shape.of(config.to_dict()).kept_per_token(ALL) == pytest.approx(a_token, rel=0.03)


def embedded_widths(n):
    return LlamaConfig.from_pretrained(embedded_model(), num_hidden_layers=n, vocab_size=99, pad_token_id=0)


def saved_bytes(config, modules, checkpointing, n_tokens):
    from peft import LoraConfig, get_peft_model

    base = LlamaForCausalLM(config).to(torch.bfloat16)
    net = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", r=16, target_modules=list(modules)))
    if checkpointing:
        net.gradient_checkpointing_enable({"use_reentrant": False})
        net.enable_input_require_grads()
    net.train()
    weights = {weight.untyped_storage().data_ptr() for weight in net.parameters()}
    saved = {}  # holds the tensors too, lest one takes the address of another

    def keep(tensor):
        if tensor.untyped_storage().data_ptr() not in weights:
            saved[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    with hooks, torch.autocast("cpu", torch.bfloat16), input_casting(net, enabled=False):  # as on a GPU
        net.get_base_model().base_model(input_ids=torch.ones(1, n_tokens, dtype=torch.long), use_cache=False)
    return sum(tensor.untyped_storage().nbytes() for tensor in saved.values())
