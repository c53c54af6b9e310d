"""Models of a shape with random weights, for times and memory: nobody has to have trained one.

    python bench/model_shapes.py 8b FOLDER                      # samples end at their limit
    python bench/model_shapes.py 7b FOLDER --ends-after 400     # or after about so many tokens

A model that is there stays as it is. The tokenizer is the embedded model's, filled up to the shape's
vocabulary with words that no text contains, so that every sampled token can be decoded. 32b needs 65 GB of
memory, on a GPU where there is one.
"""

import argparse
import json
from pathlib import Path

LLAMA_8B = {
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
}
TINY = {
    "vocab_size": 49152,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def qwen(hidden: int, intermediate: int, layers: int, heads: int, groups: int, **more) -> dict:
    """The shape of a Qwen2.5 of 7B or more; of a smaller one by what is different."""
    return {
        "vocab_size": 152064,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "max_position_embeddings": 32768,
        "tie_word_embeddings": False,
        **more,
    }


QWENS = {
    "1.5b": qwen(1536, 8960, 28, 12, 2, vocab_size=151936, tie_word_embeddings=True),
    "7b": qwen(3584, 18944, 28, 28, 4),
    "14b": qwen(5120, 13824, 48, 40, 8),
    "32b": qwen(5120, 27648, 64, 40, 8),
}
SHAPES = ("tiny", "8b", *QWENS)


def model_config(shape: str):
    """The embedded model's configuration, or one of these shapes."""
    from transformers import AutoConfig, LlamaConfig, Qwen2Config

    from arcnb.models.registry import resolve_model

    if shape == "embedded":
        return AutoConfig.from_pretrained(resolve_model("default").path)
    if shape in QWENS:
        return Qwen2Config(**QWENS[shape])
    return LlamaConfig(**{"8b": LLAMA_8B, "tiny": TINY}[shape])


def make_model(shape: str, folder: Path, ends_after: float = 0) -> None:
    """ends_after: about how many tokens a sample has at temperature 1; 0: it has no end."""
    import torch
    from transformers import AutoModelForCausalLM

    from arcnb.models.registry import load_tokenizer, resolve_model

    tokenizer = load_tokenizer(resolve_model("default"))
    config = model_config(shape)
    config.eos_token_id, config.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    tokenizer.save_pretrained(folder)
    words = json.loads((folder / "tokenizer.json").read_text())
    for i in range(len(tokenizer), config.vocab_size):
        words["model"]["vocab"][f"<filler {i}>"] = i
    (folder / "tokenizer.json").write_text(json.dumps(words))
    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    if ends_after:
        end_samples(model, ends_after)
    model.save_pretrained(folder)


def end_samples(model, tokens: float) -> None:
    """Scale the head's row of the end until its chance is one in so many, in the mean over random texts."""
    import torch

    with torch.no_grad():
        ids = torch.randint(0, model.config.vocab_size, (4, 256), device=model.device)
        hidden = model.model(ids).last_hidden_state[:, 128:].float()
        head, end = model.lm_head.weight, model.config.eos_token_id
        others = torch.logsumexp(hidden @ head.float().T, dim=-1)
        along = hidden @ head[end].float()
        low, high = 1.0, 1000.0
        for _ in range(40):
            middle = (low + high) / 2
            chance = torch.sigmoid(middle * along - others).mean().item()
            low, high = (middle, high) if chance < 1 / tokens else (low, middle)
        head[end] *= low


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ends-after", type=float, default=0, metavar="TOKENS")
    asked = parser.parse_args()
    if not (asked.folder / "config.json").is_file():
        make_model(asked.shape, asked.folder, asked.ends_after)
