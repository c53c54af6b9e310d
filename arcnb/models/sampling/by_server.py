"""Generation by vLLM servers that are already running (`vllm serve MODEL`, OpenAI-compatible).

Prompts go as token ids to `/v1/completions`; the servers must serve the model whose tokenizer made them. With
several servers a request's completions all go to one of them (its prefix cache then serves the rest), the
one with the least to do. A server that fails is left out for the rest of the run, and its completions are
asked for elsewhere; the run fails when none is left.

Adapters are a server's business: start it with `--lora-modules NAME=FOLDER`; the adapter is then NAME here.
"""

import contextlib
import http.client
import json
import operator
import socket
import threading
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from arcnb.errors import ArcnbError
from arcnb.models.registry import ModelPath, load_tokenizer
from arcnb.models.sampling.backends import (
    CLOSED,
    Backend,
    Completion,
    Draw,
    EngineOptions,
    Request,
    Sampling,
    draws,
    fits,
    skipped,
)


@dataclass
class _Order(Draw):
    """A completion to ask for, and of whom."""

    server: str


@dataclass
class _Call:
    """A running call of generate: the keys that its caller does not want any more, and whether it is over."""

    cancelled: set[Hashable] = field(default_factory=set)
    over: bool = False

    def unwanted(self, order: _Order) -> bool:
        return self.over or order.request.key in self.cancelled


class _ServerFailure(Exception):
    """A server gave no answer, or says that it is broken; a different server may work."""


class ServerBackend(Backend):
    """See the module; opened by `arcnb.models.sampling.backends.open_backend`."""

    name = "server"

    def __init__(self, model: ModelPath, adapter: str | None, options: EngineOptions):
        if not options.server_urls:
            raise ArcnbError("server_urls is empty; give the address of a running server")
        self._lock = threading.Lock()
        self._busy: Counter[str] = Counter()  # completions that each server is working on
        self._open: dict[http.client.HTTPConnection, Hashable] = {}
        self._call = _Call()
        self._closed = False
        self.model, self.options = model, options
        self._servers = [_address(url) for url in options.server_urls]  # those that have not failed
        self._last_failure = ""
        served = self._find(adapter or options.server_model)
        self.tokenizer = load_tokenizer(model)
        lengths = [n for entry in served if isinstance(n := entry.get("max_model_len"), int)]
        limits = [n for n in (*lengths, options.max_model_len, model.context) if n]
        if not limits:
            raise ArcnbError("neither the servers nor the model state a context; set max_length")
        self.context = min(limits)

    @property
    def description(self) -> str:
        served = ", ".join(f"{name} at {url}" for url, name in self._names.items())
        return f"vllm server: {served}, context {self.context} tokens"

    def use_adapter(self, adapter: str | None) -> None:
        """Asks for the adapter that the servers know by this name, or for the model itself, from now on."""
        self._find(str(adapter) if adapter else self.options.server_model)

    def _find(self, name: str | None) -> list[dict]:
        """What the servers say of the model or adapter that is to answer; its names are kept."""
        served = [self._served_model(url, name) for url in self._servers]
        self._names = {url: entry["id"] for url, entry in zip(self._servers, served, strict=True)}
        return served

    def generate(self, requests: Iterable[Request], sampling: Sampling) -> Iterator[Completion]:
        if self._closed:
            raise ArcnbError(CLOSED)
        self._call = call = _Call()
        if not self._servers:
            raise self._none_left()
        self._busy = Counter()
        window = self.options.server_concurrency * len(self._servers)
        orders = self._orders(requests, sampling, call)
        pool = ThreadPoolExecutor(window, thread_name_prefix="vllm-server")
        running, more = set(), True
        try:
            while True:
                while more and len(running) < window:
                    order = next(orders, None)
                    if order is None:
                        more = False
                    elif isinstance(order, Completion):
                        yield order
                    else:
                        running.add(pool.submit(self._complete, call, order, sampling))
                if not running:
                    return
                finished = next(as_completed(running))
                running.remove(finished)
                answer = finished.result()
                if answer is not None and answer.key not in call.cancelled:
                    yield answer
        finally:
            call.over = True
            pool.shutdown(wait=False, cancel_futures=True)
            self._hang_up(lambda key: True)

    def cancel(self, key: Hashable) -> None:
        self._call.cancelled.add(key)
        self._hang_up(lambda other: other == key)

    def close(self) -> None:
        """Ends the use of the servers; they go on running."""
        self._closed = True

    def _orders(
        self, requests: Iterable[Request], sampling: Sampling, call: _Call
    ) -> Iterator[_Order | Completion]:
        for request in requests:
            if request.key in call.cancelled:
                continue
            if not fits(request, sampling, self.context):
                yield from skipped(request)
                continue
            yield from draws(request, _Order, server=self._least_busy())

    def _complete(self, call: _Call, order: _Order, sampling: Sampling) -> Completion | None:
        """The completion; None if it is not wanted any more."""
        while not call.unwanted(order):
            server = self._for(order)
            try:
                return self._ask(server, order, sampling)
            except _ServerFailure as failure:
                if call.unwanted(order):  # we broke the connection ourselves
                    return None
                self._leave_out(server, failure)
        return None

    def _for(self, order: _Order) -> str:
        """The server of an order, or the least busy one if that has failed since."""
        with self._lock:
            if order.server in self._servers:
                return order.server
        return self._least_busy()

    def _leave_out(self, server: str, failure: _ServerFailure) -> None:
        """Asks a server nothing more, in this and every later call. ArcnbError when none is left."""
        with self._lock:
            self._servers = [other for other in self._servers if other != server]
            self._last_failure = str(failure)
            if not self._servers:
                raise self._none_left() from failure

    def _none_left(self) -> ArcnbError:
        return ArcnbError(f"no server is left; the last one: {self._last_failure}")

    def _ask(self, server: str, order: _Order, sampling: Sampling) -> Completion:
        question = {
            "model": self._names[server],
            "prompt": list(order.request.prompt_ids),
            "seed": order.seed if sampling.seeded else None,
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": sampling.min_p,
            "repetition_penalty": sampling.repetition_penalty,
            "ignore_eos": sampling.ignore_eos,
            "logprobs": 0 if sampling.logprob else None,
            "return_token_ids": True,
        }
        with self._lock:
            self._busy[server] += 1
        try:
            reply = self._exchange(server, "/v1/completions", question, order.request.key)
        finally:
            with self._lock:
                self._busy[server] -= 1
        return self._completion(server, reply, order, sampling)

    def _completion(self, server: str, reply: object, order: _Order, sampling: Sampling) -> Completion:
        """The completion in an answer; _ServerFailure where there is none in it."""
        try:
            choice = reply["choices"][0]
            text, finish_reason, ids = choice["text"], choice["finish_reason"], choice.get("token_ids")
            if not isinstance(text, str) or finish_reason not in ("stop", "length"):
                raise TypeError("text or finish_reason")
            if ids is None:  # a server older than this field; the end token is not in the text
                ids = self.tokenizer.encode(text, add_special_tokens=False)
            ids = [operator.index(i) for i in ids]
            logprob = sum(choice["logprobs"]["token_logprobs"]) if sampling.logprob else None
        except (LookupError, TypeError, AttributeError) as error:
            raise _ServerFailure(
                f"server {server} answers without a completion: {json.dumps(reply)[:300]}"
            ) from error
        return order.completion(text, ids, finish_reason, logprob)

    def _least_busy(self) -> str:
        with self._lock:
            if not self._servers:
                raise self._none_left()
            return min(self._servers, key=lambda server: self._busy[server])

    def _served_model(self, url: str, wanted: str | None) -> dict:
        """Name (`id`) and length (`max_model_len`) of the wanted model or adapter, or of the first."""
        try:
            reply = self._exchange(url, "/v1/models")
            entries = {str(entry["id"]): entry for entry in reply["data"]}
        except _ServerFailure as failure:
            raise ArcnbError(f"{failure}; is a vllm server running there?") from failure
        except (LookupError, TypeError) as error:
            raise ArcnbError(
                f"server {url} does not say which models it serves: {json.dumps(reply)[:300]}; "
                "is it a vllm server?"
            ) from error
        if not entries or wanted not in (None, *entries):
            asked = "any model" if wanted is None else repr(wanted)
            served = ", ".join(entries) or "none"
            hint = "" if wanted is None else ' (an adapter goes by the name it is served under, "" is none)'
            raise ArcnbError(f"the server at {url} does not serve {asked}; it serves {served}{hint}")
        entry = next(iter(entries.values())) if wanted is None else entries[wanted]
        model = entries.get(str(entry.get("parent")), entry)  # vLLM leaves out an adapter's
        return {"id": entry["id"], "max_model_len": model.get("max_model_len")}

    def _exchange(self, server: str, path: str, question: dict | None = None, key: Hashable = None) -> object:
        """One question and its answer, both JSON. Raises _ServerFailure, or ArcnbError if refused."""
        address = urlsplit(server)
        kind = http.client.HTTPSConnection if address.scheme == "https" else http.client.HTTPConnection
        connection = kind(address.netloc, timeout=self.options.server_timeout)
        with self._lock:
            self._open[connection] = key
        try:
            body = None if question is None else json.dumps(question)
            headers = {"Content-Type": "application/json"}
            connection.request("GET" if body is None else "POST", address.path + path, body, headers)
            response = connection.getresponse()
            text = response.read().decode(errors="replace")
            if response.status >= 500:
                raise _ServerFailure(f"server {server} answers {response.status}: {text[:300]}")
            if response.status != 200:
                raise ArcnbError(f"server {server} refuses the request ({response.status}): {text[:300]}")
            return json.loads(text)
        except (OSError, http.client.HTTPException, ValueError) as error:
            if isinstance(error, ArcnbError):
                raise
            raise _ServerFailure(
                f"server {server} gives no answer: {type(error).__name__}: {error}"
            ) from error
        finally:
            with self._lock:
                del self._open[connection]
            connection.close()

    def _hang_up(self, concerns) -> None:
        """Breaks the connections whose key `concerns`; the server then stops generating for them."""
        with self._lock:
            for connection, key in self._open.items():
                if concerns(key) and connection.sock is not None:
                    with contextlib.suppress(OSError):
                        connection.sock.shutdown(socket.SHUT_RDWR)


def _address(url: str) -> str:
    """The address of a server without what every client appends to it. ArcnbError if it is none."""
    parts = urlsplit(url)
    with contextlib.suppress(ValueError):  # a port that is no number
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return url.rstrip("/").removesuffix("/v1")
    raise ArcnbError(f"server_urls: {url!r} is no address such as http://localhost:8000")
