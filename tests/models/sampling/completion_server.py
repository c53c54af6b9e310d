"""A stand-in for a vLLM server: the two routes of its HTTP interface that arcnb uses, with made-up tokens.

What it answers is a function of the prompt and the seed. `fail` makes it answer 500, `delay` is in seconds.
"""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # as many as a backend asks at once; 5 would turn some away on a busy machine


class CompletionServer:
    def __init__(self, tokenizer, name="tiny", max_model_len=256, token_ids=True):
        self.tokenizer, self.name, self.max_model_len, self.token_ids = (
            tokenizer,
            name,
            max_model_len,
            token_ids,
        )
        self.fail, self.questions, self.hung_up = False, [], 0
        self.answers = threading.Semaphore(10**6)  # how many may be given
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                models = [
                    {"id": "mine", "max_model_len": None, "parent": outer.name},  # as vLLM says of a LoRA
                    {"id": "other", "max_model_len": 99},
                    {"id": outer.name, "max_model_len": outer.max_model_len},
                ]
                self.answer(200, {"data": models[::-1]})

            def do_POST(self):
                question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.questions.append(question)
                if outer.fail:
                    return self.answer(500, {"error": "out of order"})
                if question["temperature"] == 1.25:
                    return self.answer(400, {"error": "not that temperature"})
                outer.answers.acquire()
                return self.answer(200, outer.complete(question))

            def answer(self, status, content):
                body = json.dumps(content).encode()
                try:
                    self.send_response(status)
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)
                except OSError:
                    outer.hung_up += 1

            def log_message(self, *args):
                pass

        self.http = _Listener(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True).start()

    def complete(self, question: dict) -> dict:
        rng = np.random.default_rng([question["seed"], *question["prompt"]])
        greedy = np.random.default_rng(question["prompt"])
        ids = (
            (greedy if question["temperature"] == 0 else rng)
            .integers(100, 200, question["max_tokens"])
            .tolist()
        )
        choice = {"text": self.tokenizer.decode(ids), "finish_reason": "length"}
        if self.token_ids:
            choice["token_ids"] = ids
        if question["logprobs"] is not None:
            choice["logprobs"] = {"token_logprobs": [-0.5] * len(ids)}
        return {"choices": [choice]}

    def close(self):
        self.http.shutdown()
        self.http.server_close()
