"""In the place of `vllm serve MODEL --port N ...`: answers what TRL's trainer asks of a server while it
trains, by tokens that derive from the prompt. It has no model and gets no weights: those go over NCCL, from
GPU to GPU.

    write_sitecustomize(folder)     # for a job with this folder in its PYTHONPATH
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

MODULE = "vllm.entrypoints.cli.main"
SITE = f"""
import sys
if {MODULE!r} in sys.orig_argv:
    from tests.lab.clusters.standin_vllm import serve
    serve(sys.orig_argv)
"""


def write_sitecustomize(folder: Path) -> None:
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(SITE)


def completion(prompt: list[int], index: int, length: int, end: int) -> list[int]:
    """Every other one ends by itself, so that the truncated ones earn less."""
    tokens = [100 + (sum(prompt) + 31 * index + 7 * place) % 1000 for place in range(length)]
    return tokens if index % 2 else [*tokens[: length // 2], end]


class Answer(BaseHTTPRequestHandler):
    end = 0

    def do_GET(self):
        about = {"model_config": {"logprobs_mode": "processed_logprobs"}}
        self.say({"data": [{"id": "model"}], "vllm_config": about})

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"] or 0)) or "{}")
        self.say({"choices": [*self.choices(asked)]} if "prompt" in asked else {"success": True})

    def choices(self, asked):
        for prompt in asked["prompt"]:
            for index in range(asked["n"]):
                tokens = completion(prompt, index, asked["max_tokens"], self.end)
                names, values = [f"token_id:{token}" for token in tokens], [-7.6] * len(tokens)
                logprobs = {"tokens": names, "token_logprobs": values, "top_logprobs": [None] * len(tokens)}
                yield {"prompt_token_ids": prompt, "token_ids": tokens, "logprobs": logprobs}

    def say(self, answer):
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def serve(words: list[str]) -> None:
    model, port = words[words.index("serve") + 1], int(words[words.index("--port") + 1])
    Answer.end = json.loads(Path(model, "config.json").read_text())["eos_token_id"]
    print("the stand-in serves", *sys.orig_argv, flush=True)
    ThreadingHTTPServer(("0.0.0.0", port), Answer).serve_forever()
