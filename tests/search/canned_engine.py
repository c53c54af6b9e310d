"""An engine without a model for tests of what goes on around it: any completion is a function of its prompt.

It keeps the promises of `arcnb.models.sampling.backends.Backend`: it takes requests as it has room, answers
in an order of its own, and sends nothing more for a cancelled key.
"""

import random
import time
from collections.abc import Callable

from arcnb.arc.seeds import derive_seed
from arcnb.models.sampling.backends import Completion


class CannedEngine:
    name = "canned"

    def __init__(self, tokenizer, answer: Callable, context=8192, room=32, order=0, pace=0.0):
        """answer: (key, index) -> text. order: seed of the order of completions. pace: seconds for each."""
        self.tokenizer, self.context = tokenizer, context
        self.answer, self.room, self.order, self.pace = answer, room, order, pace
        self.asked, self.cancelled = [], set()

    def generate(self, requests, sampling):
        shuffle, under_way = random.Random(self.order), []
        self.cancelled = set()
        requests, more = iter(requests), True
        while more or under_way:
            while more and len(under_way) < self.room:
                request = next(requests, None)
                more = request is not None
                if more:
                    self.asked.append(request.key)
                    under_way += [(request, index) for index in range(request.n)]
            under_way = [pair for pair in under_way if pair[0].key not in self.cancelled]
            if under_way:
                request, index = under_way.pop(shuffle.randrange(len(under_way)))
                time.sleep(self.pace)
                yield self.completion(request, index)

    def completion(self, request, index):
        text, seed = self.answer(request.key, index), derive_seed(request.seed, index)
        n_tokens = max(1, len(text) // 3)
        return Completion(
            request.key, index, text, [1] * n_tokens, "stop", None, len(request.prompt_ids), seed
        )

    def cancel(self, key):
        self.cancelled.add(key)
