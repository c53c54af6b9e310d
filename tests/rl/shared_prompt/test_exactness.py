"""Shared-prompt log-probabilities and gradients against the model's own whole logits."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from arcnb.errors import ArcnbError
from arcnb.rl.shared_prompt.kernels import best_kernel
from arcnb.rl.shared_prompt.packing import Blocks, pack
from arcnb.rl.shared_prompt.trainer import prepare_model, row_log_probs, shuffle_groups

VOCABULARY = 97
PAD = 0


def tiny(kind: str, seed: int = 0, **changes):
    """A random float32 model of two layers, four query heads and two key heads, with TRL's fused head."""
    import transformers
    from trl.trainer.utils import add_fused_lm_head

    torch.manual_seed(seed)
    shape = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "pad_token_id": PAD,
    }
    config = getattr(transformers, f"{kind}Config")(**shape | changes)
    model = getattr(transformers, f"{kind}ForCausalLM")(config)
    with torch.no_grad():  # larger than a fresh model's, so that attention is far from uniform
        for parameter in model.parameters():
            parameter.mul_(4.0) if parameter.ndim > 1 else parameter.add_(torch.randn_like(parameter) / 4)
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    return model


def batch(prompts: list[int], completions: list[list[int]], seed: int = 0):
    """(input_ids, attention_mask, n_completion) as TRL pads them: prompts of these lengths, left; completions
    of these lengths for each prompt, right."""
    generator = torch.Generator().manual_seed(seed)

    def tokens(n):
        return torch.randint(1, VOCABULARY, (n,), generator=generator)

    n_prompt, n_completion = max(prompts), max(max(lengths) for lengths in completions)
    ids, mask = [], []
    for length, group in zip(prompts, completions, strict=True):
        prompt = tokens(length)
        for n in group:
            pads = torch.full((n_prompt - length,), PAD), torch.full((n_completion - n,), PAD)
            ids.append(torch.cat([pads[0], prompt, tokens(n), pads[1]]))
            mask.append(torch.cat([pads[0], torch.ones(length + n, dtype=torch.int64), pads[1]]))
    return torch.stack(ids), torch.stack(mask), n_completion


def ordinary(model, ids, mask, n_completion):
    """Log-probabilities and entropies of completion tokens from whole logits, every prompt run for itself."""
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    logits = model(input_ids=ids, attention_mask=mask, position_ids=positions).logits
    logits = logits[:, -n_completion - 1 : -1].log_softmax(-1)
    kept = mask[:, -n_completion:]
    log_probs = logits.gather(-1, ids[:, -n_completion:, None]).squeeze(-1) * kept
    return log_probs, -(logits.exp() * logits).sum(-1) * kept


def gradients(model, log_probs, entropies) -> dict[str, torch.Tensor]:
    """Of a loss in which every completion token has its own weight, and entropy takes part."""
    weights = torch.randn(log_probs.shape, generator=torch.Generator().manual_seed(5)).to(log_probs.device)
    model.zero_grad()
    (log_probs * weights + 0.3 * entropies * weights.flip(0)).sum().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.requires_grad}


def assert_same(model, ids, mask, n_completion, token_budget=None, kernel="auto"):
    """Log-probabilities, entropies and every parameter's gradient, relative error under 1e-5."""
    expected = ordinary(model, ids, mask, n_completion)
    expected_gradients = gradients(model, *expected)
    prepare_model(model)
    rows = pack(ids, mask, n_completion, token_budget, kernel)
    found = row_log_probs(model, rows, len(ids), n_completion)
    found_gradients = gradients(model, *found)
    for one, other in zip(found, expected, strict=True):
        assert relative_error(one, other) < 1e-5
    assert found_gradients.keys() == expected_gradients.keys()
    errors = {name: relative_error(found_gradients[name], g) for name, g in expected_gradients.items()}
    assert max(errors.values()) < 1e-5, errors
    return rows


def relative_error(found, expected) -> float:
    return ((found - expected).norm() / expected.norm().clamp(min=1e-12)).item()


@pytest.mark.parametrize("kind", ["Llama", "Qwen2", "Qwen3", "Mistral"])
@pytest.mark.parametrize("kernel", ["auto", "math"])
def test_log_probs_entropies_and_every_gradient_equal_the_ordinary_ones(kind, kernel):
    model = tiny(kind, **({"sliding_window": None} if kind == "Mistral" else {}))
    rows = assert_same(model, *batch([23], [[9, 4, 12, 1, 7]]), kernel=kernel)
    assert [row.input_ids.size(1) for row in rows] == [22 + 33]


class Largest(TorchDispatchMode):
    """Entries of the largest tensor that an operation made meanwhile, backward passes included."""

    n = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in tree_flatten(result)[0]:
            if isinstance(tensor, torch.Tensor):
                self.n = max(self.n, tensor.numel())
        return result


def test_logits_are_never_whole_in_memory():
    vocabulary, lengths = 70_000, [40, 40, 40]  # TRL's tiles have 32,768 entries of the vocabulary
    model = tiny("Llama", vocab_size=vocabulary)
    ids, mask, n_completion = batch([8], [lengths])
    logits = sum(lengths) * vocabulary
    with Largest() as whole:
        gradients(model, *ordinary(model, ids, mask, n_completion))
    assert whole.n >= logits
    prepare_model(model)
    with Largest() as packed:
        gradients(model, *row_log_probs(model, pack(ids, mask, n_completion), len(ids), n_completion))
    assert packed.n < 0.6 * logits


@pytest.mark.parametrize(
    ("prompts", "completions"),
    [
        ([20], [[6]]),
        ([20], [[0, 6, 0, 3]]),
        ([2], [[5, 5]]),
        ([11, 30, 17], [[4, 8], [1, 6, 3], [7]]),
        ([30, 30], [[0, 0], [2, 5]]),
    ],
    ids=["one completion", "empty completions", "shortest prompt", "three prompts", "a group of nothing"],
)
def test_shapes_of_batches(prompts, completions):
    assert_same(tiny("Llama"), *batch(prompts, completions))


def test_bounds_of_both_parts_say_where_every_run_begins():
    row = pack(*batch([7, 5], [[3, 0, 4], [2]]))[0]
    own, shared = row.layout.own, row.layout.shared
    assert own.query_bounds.tolist() == own.key_bounds.tolist() == [0, 6, 10, 13, 17, 19]
    assert shared.query_bounds.tolist() == [0, 7, 9]
    assert shared.key_bounds.tolist() == [0, 6, 10]


def test_groups_are_found_wherever_their_completions_are():
    ids, mask, n_completion = batch([11, 30], [[4, 8, 2], [1, 6, 3]])
    order = torch.tensor([3, 0, 5, 2, 1, 4])
    rows = assert_same(tiny("Llama"), ids[order], mask[order], n_completion)
    assert [row.input_ids.size(1) for row in rows] == [10 + 29 + 14 + 10]


@pytest.mark.parametrize(("budget", "expected"), [(40, [40, 40]), (30, [30, 30, 30]), (1, [30, 30, 30])])
def test_a_budget_repeats_the_prompt_in_further_rows(budget, expected):
    ids, mask, n_completion = batch([21], [[10, 10, 10]] if budget != 40 else [[10, 10, 10, 10]])
    rows = assert_same(tiny("Llama"), ids, mask, n_completion, token_budget=budget)
    assert [row.input_ids.size(1) for row in rows] == expected


def test_a_budget_packs_small_groups_together():
    ids, mask, n_completion = batch([11, 11, 11], [[5, 5], [5, 5], [5, 5]])
    rows = assert_same(tiny("Llama"), ids, mask, n_completion, token_budget=45)
    assert [row.input_ids.size(1) for row in rows] == [40, 20]


def test_gradient_checkpointing():
    model = tiny("Qwen3")
    model.gradient_checkpointing_enable()
    model.train()
    assert_same(model, *batch([15, 9], [[5, 3], [4, 6]]))


@pytest.mark.parametrize("checkpointing", [False, True])
def test_lora_trains_the_same_and_switches_off_the_same(checkpointing):
    from peft import LoraConfig, get_peft_model

    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    model = get_peft_model(tiny("Llama"), LoraConfig(r=2, target_modules=targets, init_lora_weights=False))
    if checkpointing:
        model.gradient_checkpointing_enable()
        model.enable_input_require_grads()
    sample = batch([19], [[5, 8, 2]])
    assert_same(model, *sample)
    rows = pack(*sample)
    with torch.no_grad(), model.disable_adapter():
        found, _ = row_log_probs(model, rows, 3, 8)
        expected, _ = ordinary(model, *sample)
    assert relative_error(found, expected) < 1e-5


def test_an_adapter_switched_off_changes_something():
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
    model = get_peft_model(tiny("Llama"), config)
    prepare_model(model)
    rows = pack(*batch([19], [[5, 8, 2]]))
    with torch.no_grad():
        on, _ = row_log_probs(model, rows, 3, 8)
        with model.disable_adapter():
            off, _ = row_log_probs(model, rows, 3, 8)
    assert relative_error(off, on) > 1e-3


def test_nothing_to_learn_from_gives_a_differentiable_zero():
    model = tiny("Llama")
    prepare_model(model)
    ids, mask, n_completion = batch([5], [[3, 3]])
    mask[:, -n_completion:] = 0
    log_probs, entropies = row_log_probs(model, pack(ids, mask, n_completion), 2, n_completion)
    assert log_probs.shape == entropies.shape == (2, 3)
    log_probs.sum().backward()
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())


def test_bfloat16_is_as_near_to_float32_as_the_ordinary_path():
    exact = tiny("Llama", num_hidden_layers=4)
    sample = batch([120], [[40, 13, 64, 30]])
    truth = ordinary(exact, *sample)
    true_gradients = gradients(exact, *truth)
    model = tiny("Llama", num_hidden_layers=4).bfloat16()
    plain = ordinary(model, *sample)
    plain_gradients = gradients(model, *plain)
    prepare_model(model)
    shared = row_log_probs(model, pack(*sample), 4, 64)
    shared_gradients = gradients(model, *shared)
    assert relative_error(shared[0], truth[0]) < 1.25 * relative_error(plain[0].float(), truth[0])

    def distance(found):
        return sum(relative_error(found[name].float(), g) for name, g in true_gradients.items())

    assert distance(shared_gradients) < 1.25 * distance(plain_gradients)


def test_generation_is_untouched():
    model = tiny("Llama").eval()
    ids, mask, _ = batch([12, 7], [[1], [1]])
    before = model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=6, do_sample=False)
    prepare_model(model)
    after = model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=6, do_sample=False)
    assert torch.equal(before, after)


@pytest.mark.parametrize(
    ("prompts", "hide", "message"),
    [
        ([1], None, "prompt 0 of the batch has 1 tokens"),
        ([5], 6, "completion 1 of the batch has masked tokens"),
    ],
)
def test_batches_that_cannot_be_packed_are_named(prompts, hide, message):
    ids, mask, n_completion = batch(prompts, [[3, 3]])
    if hide:
        mask[1, hide] = 0
    with pytest.raises(ArcnbError, match=message):
        pack(ids, mask, n_completion)


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("Mistral", {"sliding_window": 8}, "sliding_window=8"),
        ("Llama", {"attention_dropout": 0.1}, "attention_dropout=0.1"),
        ("Gemma2", {"head_dim": 8, "attn_logit_softcapping": 50.0}, "softcap"),
    ],
)
def test_models_that_cannot_be_packed_are_named(kind, changes, message):
    model = tiny(kind, **changes).train()
    prepare_model(model)
    with pytest.raises(ArcnbError, match=message):
        row_log_probs(model, pack(*batch([9], [[3, 3]])), 2, 3)


def test_attention_in_chunks_is_named():
    """Models tell their masks alone of it, which packed rows do not look at."""
    model = tiny("Llama")
    model.config.layer_types = ["chunked_attention", "full_attention"]
    with pytest.raises(ArcnbError, match="does not support the model's chunked attention"):
        prepare_model(model)


def test_a_layer_without_attention_is_noticed():
    model = tiny("Llama")
    prepare_model(model)
    model.config.num_hidden_layers = 3
    with pytest.raises(ArcnbError, match="2 of the model's 3 layers"):
        row_log_probs(model, pack(*batch([9], [[3, 3]])), 2, 3)


def test_shuffling_keeps_groups_together_and_uses_the_generator_as_trl_does():
    from trl.trainer.utils import shuffle_sequence_dict

    prompts = torch.arange(3).repeat_interleave(4).unsqueeze(1)
    batch = {"prompt_ids": prompts, "advantages": torch.arange(12.0), "num_items_in_batch": torch.tensor(7)}
    torch.manual_seed(3)
    shuffled = shuffle_groups(batch)
    after = torch.rand(1)
    torch.manual_seed(3)
    theirs = shuffle_sequence_dict(batch)
    assert torch.equal(after, torch.rand(1))
    found = shuffled["prompt_ids"].view(3, 4)
    assert (found == found[:, :1]).all()
    assert sorted(shuffled["advantages"].tolist()) == list(range(12))
    for group in range(3):
        assert torch.equal(
            shuffled["advantages"][shuffled["prompt_ids"][:, 0] == group],
            theirs["advantages"][theirs["prompt_ids"][:, 0] == group],
        )
    torch.manual_seed(3)
    one = {"prompt_ids": torch.zeros(5, 2), "advantages": torch.arange(5.0)}
    ours = shuffle_groups(one)
    torch.manual_seed(3)
    assert torch.equal(ours["advantages"], shuffle_sequence_dict(one)["advantages"])


def test_cudnn_only_where_a_run_is_large_enough_to_pay_for_its_plan():
    def shared(*sizes):
        return Blocks.of([n for n, _ in sizes], [m for _, m in sizes], False, "cpu")

    assert best_kernel("cpu", torch.float32, shared((99, 99))) == "cpu"
    assert best_kernel("cuda", torch.float32, shared((99, 99))) == "math"
    assert best_kernel("cuda", torch.bfloat16, None) == "flash"
    assert best_kernel("cuda", torch.bfloat16, shared((32 * 1024, 3800))) == "cudnn"
    assert best_kernel("cuda", torch.bfloat16, shared(*[(16 * 100, 1000)] * 8)) == "flash"
