"""A LoRA that is trained over and over in one process: the model is loaded once, an adapter is a folder.

    learner = LoraLearner(model, LoraSettings(r=16))
    report = learner.learn(rows, start=None, folder=Path("adapters/round000"), seed=0)

Each call of `learn` begins with the adapter `start` (None: a fresh one), so it is a function of its arguments
and can be done again after a kill. It is a small loop of its own: TRL's trainer takes seconds to build, and
search and learn would build it for each round of each task.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from arcnb.errors import ArcnbError
from arcnb.machine.files import replaced_folder
from arcnb.machine.imports import nothing_collected
from arcnb.models.lora.compatibility import WEIGHTS
from arcnb.models.lora.precision import input_casting
from arcnb.models.registry import ModelPath, load_network, load_tokenizer
from arcnb.models.sft.rows import collator
from arcnb.search.learning.learner.loss import (
    add_answer_gradients,
    answer_log_probs,
    answer_states,
    n_labels,
    teacher_of,
)
from arcnb.search.learning.learner.memory import Room, out_of_memory
from arcnb.search.learning.learner.settings import LoraSettings, learning_rate_share


@dataclass(frozen=True)
class LearningReport:
    """One call of `learn`. loss_first, loss_last: mean loss a token, in nats, of the first and last tenth of
    the steps; of answers with a teacher, which come first, it is the divergence from the teacher.
    tokens: of all rows, prompts and what teachers read included. seconds: of training; save_seconds: of the
    rest. peak_memory_gb: most that tensors took of the GPU, GB (2**30); 0 on a CPU. notes: sentences on what
    was done other than asked.
    """

    adapter: Path
    rows: int
    steps: int
    tokens: int
    loss_first: float
    loss_last: float
    seconds: float
    save_seconds: float
    peak_memory_gb: float = 0.0
    notes: list[str] = field(default_factory=list)
    losses: list[float] = field(default_factory=list, repr=False)


class LoraLearner:
    """The model with one LoRA; a context manager that frees its memory. seconds: what loading it took."""

    @nothing_collected()
    def __init__(self, model: ModelPath, settings: LoraSettings):
        import torch
        from peft import LoraConfig, get_peft_model

        started = time.monotonic()
        self.settings = settings
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        dtype = torch.bfloat16 if self.device == "cuda" else torch.float32
        base = load_network(model, dtype=dtype).to(self.device)
        base.config.use_cache = False
        config = LoraConfig(task_type="CAUSAL_LM", lora_dropout=0.0, **settings.config)
        try:
            self._net = get_peft_model(base, config)
        except ValueError as error:  # no layer of the model has such a name
            raise ArcnbError(f"lora.target_modules {', '.join(settings.target_modules)}: {error}") from error
        self._net.create_or_update_model_card = lambda folder: None  # without a word of its own
        self._room = Room(self._net, settings)
        self._collate = collator(load_tokenizer(model).pad_token_id)
        self.seconds = time.monotonic() - started

    def learn(
        self,
        rows: Sequence[dict],
        start: Path | None,
        folder: Path,
        seed: int,
        stop: Callable[[], bool] = lambda: False,
    ) -> LearningReport | None:
        """Train on the rows in their order and leave the adapter in `folder`, whole or not at all.

        rows: {"input_ids", "labels"}, see arcnb.search.learning.lessons. With "told", a row of the same
        answer after what a teacher reads, the model comes to write what it would now write there. start: the
        adapter to go on from. stop: asked before every step; None is returned, and nothing left, as soon as
        it says so. Raises ArcnbError without rows, when a loss or a weight is not finite, or when memory runs
        out. Before that, a step that runs out of memory is done again in smaller parts, with the same
        gradient, and last with recomputed activations; what did fit is kept for the steps and calls after it.
        """
        import torch

        if not rows:
            raise ArcnbError("there is nothing to learn from")
        started, size_before = time.monotonic(), str(self._room.size)
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        try:
            self._set_weights(start, seed)
            prepared = time.monotonic()
            with self._cast():
                taught = self._taught(rows, stop)
                losses = None if taught is None else self._train(taught, stop)
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
            raise ArcnbError(f"the GPU's memory does not even hold the adapter: {error}") from error
        if losses is None:
            return None
        notes = []
        if str(self._room.size) != size_before:
            notes.append(
                f"training ran out of GPU memory with {size_before} and goes on with {self._room.size}: "
                "the same optimizer steps, in smaller parts"
            )
        trained = time.monotonic()
        with replaced_folder(folder) as work:  # one of that name is what a killed process had just finished
            self._net.save_pretrained(work)
        tenth = max(1, len(losses) // 10)
        return LearningReport(
            adapter=folder,
            rows=len(rows),
            steps=len(losses),
            tokens=sum(len(one["input_ids"]) for row in rows for one in (row, row.get("told")) if one),
            loss_first=sum(losses[:tenth]) / tenth,
            loss_last=sum(losses[-tenth:]) / tenth,
            seconds=trained - prepared,
            save_seconds=(prepared - started) + (time.monotonic() - trained),
            peak_memory_gb=torch.cuda.max_memory_allocated() / 2**30 if self.device == "cuda" else 0.0,
            notes=notes,
            losses=losses,
        )

    def teacher_gain(self, probes: Sequence[dict], start: Path | None, seed: int) -> float:
        """How much likelier right answers become where the model reads what a teacher reads, nats a token.

        probes: rows of right answers, each with "told"; start, seed: as for `learn`. Above 0 the teacher
        knows something that the model without it does not.
        """
        self._set_weights(start, seed)
        with self._cast():
            told, own = (
                sum(float(one.double().sum()) for one in self._of_rows(rows, answer_log_probs))
                for rows in ([row["told"] for row in probes], probes)
            )
        return (told - own) / sum(map(n_labels, probes))

    def close(self) -> None:
        """Frees the model's memory."""
        import gc

        import torch

        self._net = self._room = None
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def __enter__(self) -> LoraLearner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _set_weights(self, start: Path | None, seed: int) -> None:
        import torch
        from peft import set_peft_model_state_dict
        from safetensors.torch import load_file

        if start is not None:
            state = load_file(start / WEIGHTS, device=self.device)
            set_peft_model_state_dict(self._net, state)
            return
        devices = [torch.cuda.current_device()] if self.device == "cuda" else []
        with torch.random.fork_rng(devices):
            torch.manual_seed(seed)
            for module in self._net.modules():
                if hasattr(module, "reset_lora_parameters"):
                    module.reset_lora_parameters("default", init_lora_weights=True)

    def _train(self, rows: list[dict], stop: Callable[[], bool]) -> list[float] | None:
        """The mean loss of every step, in nats a token; None when it was stopped."""
        import torch

        settings = self.settings
        weights = [p for p in self._net.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(weights, lr=settings.learning_rate, weight_decay=settings.weight_decay)
        size = settings.per_device_train_batch_size
        steps = [rows[i : i + size] for i in range(0, len(rows), size)]
        self._net.train()
        losses, norms = [], []
        for number, step in enumerate(steps):
            if stop():
                return None
            for group in optimizer.param_groups:
                group["lr"] = settings.learning_rate * learning_rate_share(settings, number, len(steps))
            losses.append(self._room.within(step, self._add_gradients))
            norms.append(torch.nn.utils.clip_grad_norm_(weights, settings.max_grad_norm))
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        values = torch.stack([*losses, *norms]).float().cpu()  # read once: a GPU need not wait for us before
        for number, value in enumerate(values.tolist()):
            if not math.isfinite(value):
                what = "loss" if number < len(losses) else "gradient"
                raise ArcnbError(f"the {what} of step {number % len(losses) + 1} is {value}")
        if not all(bool(weight.isfinite().all()) for weight in weights):
            raise ArcnbError("the adapter's weights are not finite")
        return values[: len(losses)].tolist()

    def _add_gradients(self, rows: list[dict]):
        """Adds those of one optimizer step; its loss, as a tensor."""
        import torch

        n_answer = sum(map(n_labels, rows))
        total = torch.zeros((), device=self.device)
        for part in self._room.size.parts(rows):
            batch, teacher = self._collate(part), teacher_of(part)
            total += add_answer_gradients(self._net.get_base_model(), batch, n_answer, teacher)
        return total

    def _taught(self, rows: Sequence[dict], stop: Callable[[], bool]) -> list[dict] | None:
        """The rows; those with "told" have in its place "teacher", (n, width), on the CPU: the hidden states
        of the model, as it is before the training, in front of the labelled tokens there. None when it was
        stopped."""
        told = [row["told"] for row in rows if "told" in row]
        states = self._of_rows(told, answer_states, stop)
        if states is None:
            return None
        states = iter(states)
        return [row | {"teacher": next(states)} if "told" in row else row for row in rows]

    def _of_rows(
        self, rows: Sequence[dict], measure: Callable, stop: Callable[[], bool] = lambda: False
    ) -> list | None:
        """Of each row what `measure(model, batch)` says of its labelled tokens, (n, ...), on the CPU; None
        when it was stopped, which is asked before every pass."""

        def measured(rows: list[dict]) -> list | None:
            found = [None] * len(rows)
            for part in self._room.size.parts(rows):
                if stop():
                    return None
                values = measure(self._net.get_base_model(), self._collate(part)).cpu()
                for row, own in zip(part, values.split([n_labels(row) for row in part]), strict=True):
                    found[row["place"]] = own
            return found

        self._net.eval()
        placed = [row | {"place": place} for place, row in enumerate(rows)]
        return self._room.within(placed, measured) if rows else []

    def _cast(self):
        return input_casting(self._net, enabled=self.device != "cuda")  # there it is all under autocast
