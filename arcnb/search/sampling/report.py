"""What a sampling stage did, in numbers that a notebook shows and a manifest keeps."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class InferenceReport:
    """Seconds are wall time; tokens and rates count what this call made.

    asked, found, made: predictions of this shard: planned, on disk from before, made now. stopped: tasks that
    ended early; dropped: predictions made for them that did not count any more. too_long: task id -> prompt
    tokens of its longest skipped prompt. truncated: completions that reached max_tokens. prompt_tokens: a
    prompt counts once, however many completions share it. away_seconds: time that this process spent on
    anything else than driving the engine (building prompts, passing results on); an engine in a process of
    its own does not stop for it, so this bounds from above how long it waited. tail_seconds: from the
    engine's end until the last programs were run, scored and on disk. program_seconds: time that
    programs of the executor ran meanwhile, of all workers together; one whose verdict was known did not run.
    """

    asked: int = 0
    found: int = 0
    made: int = 0
    stopped: int = 0
    dropped: int = 0
    too_long: dict[str, int] = field(default_factory=dict)
    prompts_skipped: int = 0
    truncated: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0
    away_seconds: float = 0.0
    tail_seconds: float = 0.0
    program_seconds: float = 0.0
    workers: int = 1

    @property
    def rates(self) -> dict[str, float]:
        """Throughput, and shares of the stage's time, from 0 to 1."""
        seconds, made = self.seconds or float("inf"), self.made or float("inf")
        return {
            "predictions_per_hour": 3600 * self.made / seconds,
            "prompt_tokens_per_second": self.prompt_tokens / seconds,
            "completion_tokens_per_second": self.completion_tokens / seconds,
            "truncated_share": self.truncated / made,
            "engine_waiting_share": self.away_seconds / seconds,  # at most
            "executor_share": self.program_seconds / (seconds * self.workers),
        }

    def outcome(self) -> dict:
        """Plain values for the run's manifest."""
        return {f"inference_{name}": value for name, value in (vars(self) | self.rates).items()}

    def __str__(self) -> str:
        rates = self.rates
        lines = [
            f"{self.made:,} predictions made, {self.found:,} found from before, of {self.asked:,} asked; "
            f"{self.seconds:.0f} s, {rates['predictions_per_hour']:,.0f} predictions an hour",
            f"{rates['prompt_tokens_per_second']:,.0f} prompt and "
            f"{rates['completion_tokens_per_second']:,.0f} completion tokens a second; "
            f"{rates['truncated_share']:.1%} of the completions truncated",
            f"the engine waited for this process at most {rates['engine_waiting_share']:.1%} of the time; "
            f"programs kept {self.workers} workers busy for {rates['executor_share']:.1%} of it, "
            f"the last {self.tail_seconds:.1f} s after the engine's end",
        ]
        if self.stopped:
            lines.append(
                f"{self.stopped} tasks ended early; {self.dropped} predictions came too late to count"
            )
        if self.too_long:
            lines.append(f"{self.prompts_skipped} prompts skipped, too long for the context:")
            lines += [f"  {id_}: {n:,} tokens" for id_, n in sorted(self.too_long.items())]
        return "\n".join(lines)
