"""Short runs of TRL's trainer itself, or of a subclass of it, on prompts and a reward of letters."""

from collections.abc import Callable

import torch

from arcnb.models.registry import load_tokenizer
from arcnb.models.training.log import stop_printing
from arcnb.rl.shared_prompt.trainer import shared_prefix_trainer

PROMPTS = ["a b c d e f g h i j k l", "one two", "x y z x y z x y z x y z x y z", "nothing at all here"]
STEPS = 4
UNKNOWN = (3,)  # tokens, modulo 29, whose log-probability vLLM does not give
DEFAULTS = {
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 1,
    "max_completion_length": 8,
    "beta": 0.05,
    "learning_rate": 1e-2,
    "bf16": False,
}
COMPARED = {"loss", "reward", "reward_std", "kl", "entropy", "grad_norm", "completions/mean_length"}


def share_of_letter_e(completions, **_):
    return [text.count("e") / 10 + len(text) / 100 for text in completions]


def by_vllm(base: type) -> type:
    """The trainer that takes its samples for vLLM's: their log-probabilities are up to 0.05 nats from the
    learner's, so that TRL corrects them."""

    class ByVllm(base):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.use_vllm = True

        def _generate_single_turn(self, prompt_ids, images, fields, num_generations):
            self.use_vllm = False
            try:
                made, _ = super()._generate_single_turn(prompt_ids, images, fields, num_generations)
            finally:
                self.use_vllm = True
            return made, [self._sampled(*pair) for pair in zip(prompt_ids, made, strict=True)]

        @torch.no_grad()
        def _sampled(self, prompt, completion):
            self.model.eval()
            logits = self.model(torch.tensor([[*prompt, *completion]])).logits[0, len(prompt) - 1 : -1]
            self.model.train()
            ids = torch.tensor(completion)
            values = logits.log_softmax(-1).gather(1, ids.unsqueeze(1)).squeeze(1)
            values += 0.05 * torch.sin(ids.float() * 7 + torch.arange(len(ids)))
            return [
                None if one % 29 in UNKNOWN else value
                for one, value in zip(completion, values.tolist(), strict=True)
            ]

    return ByVllm


def in_our_order(base: type) -> type:
    """The trainer that runs a prompt with every completion, on micro-batches that keep groups together."""

    class Ordinary(shared_prefix_trainer(base)):
        _get_per_token_logps_and_entropies = base._get_per_token_logps_and_entropies

    return Ordinary


def seeding():
    """Each step draws by its number, however much was drawn before, as in runs of ours."""
    from transformers import TrainerCallback

    class Seeding(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            torch.manual_seed(state.global_step)

    return Seeding()


def train(
    model,
    folder,
    share: bool,
    lora: bool = True,
    half: bool = False,
    offload: bool = False,
    ordered: bool = False,
    wrap: Callable[[type], type] = lambda base: base,
    samples: Callable[[type], type] = lambda base: base,
    reward: Callable = share_of_letter_e,
    **settings,
):
    """(logged steps, tokens that went through the model in training) of a run of 4 steps.

    samples, wrap: make subclasses of TRL's trainer, the one below the trainer that shares prompts, the other
    above.
    """
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM
    from trl import GRPOConfig, GRPOTrainer

    config = GRPOConfig(
        output_dir=str(folder),
        max_steps=STEPS,
        num_generations=4,
        lr_scheduler_type="constant",
        logging_steps=1,
        report_to="none",
        save_strategy="no",
        shuffle_dataset=False,
        disable_tqdm=True,
        use_cpu=True,
        seed=3,
        **DEFAULTS | settings,
    )
    dtype = torch.bfloat16 if half else torch.float32
    policy = AutoModelForCausalLM.from_pretrained(model.path, dtype=dtype)
    base = samples(GRPOTrainer)
    if share:
        base = shared_prefix_trainer(base, offload=offload)
    elif ordered:
        base = in_our_order(base)
    trainer = wrap(base)(
        model=policy,
        reward_funcs=reward,
        args=config,
        train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in PROMPTS * 4]),
        processing_class=load_tokenizer(model),
        callbacks=[seeding()],
        peft_config=LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj", "v_proj"]) if lora else None,
    )
    stop_printing(trainer)
    tokens = 0

    def count(module, args, output):
        nonlocal tokens
        if module.training:
            tokens += args[0].numel()

    policy.get_input_embeddings().register_forward_hook(count)
    trainer.train()
    return [row for row in trainer.state.log_history if "grad_norm" in row], tokens
