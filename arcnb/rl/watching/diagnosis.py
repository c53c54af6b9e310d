"""The page that a collapse guard leaves: what fired, in which order things went wrong, what it looked like.

One self-contained HTML file: signals with their first window, last window and limit, small curves of the run,
and the completions of the last batch. `remedies` says what each signal has been seen to come from.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import shorten

from arcnb.arc.predictions.prediction import Prediction
from arcnb.machine.files import write_whole
from arcnb.rl.watching.guard import SERIES, Alarm, CollapseMonitor, signal_value

REMEDIES = {
    "truncation": "Completions run into max_completion_length. Masked truncated completions lie outside the "
    "loss, so nothing pushes length down: keep them and add the overlong term.",
    "repetition": "Completions repeat themselves. A repetition penalty while sampling hides this from the "
    "learner; use the repetition term of the reward instead.",
    "unique_tokens": "Few distinct tokens are left. If entropy fell long before, the learning rate is too "
    "high or the KL weight too low.",
    "unique_outputs": "The completions of a group do the same thing. If the reward gives a point for outputs "
    "that are merely valid and few programs are right, that point is what most groups teach: reward right "
    "grids only (right-grids), lower the learning rate, raise beta.",
    "kl": "The policy is far from its start. Lower the learning rate or raise beta; if KL rose before "
    "anything else, the step size is the cause rather than the reward.",
    "gap": "Sampler and learner disagree about the same tokens. Sample plainly (top_p 1, no penalties) and "
    "check that prompts carry one begin-of-text token.",
    "ratio": "The importance correction works far from 1: sequence-level weights are next to 0 or clipped. "
    "Sample plainly or choose a token-level correction.",
    "held_out": "What training improves is not what the eval tasks need: a reward that can be earned "
    "without solving, too few tasks, or too large a step.",
    "reward": "Reward fell. If another signal came first, start there; if none did, look at the error "
    "classes.",
}
TEMPLATE = Path(__file__).with_name("diagnosis.html.jinja")


def write_diagnosis(
    path: Path,
    alarms: Sequence[Alarm],
    monitor: CollapseMonitor,
    history: Sequence[Mapping],
    latest: Sequence[tuple[Prediction, float]],
    action: str,
    settings: Mapping,
) -> None:
    """Write the page for alarms at one step; history: the logged rows so far, oldest first."""
    import jinja2

    page = jinja2.Template(TEMPLATE.read_text(), autoescape=True, undefined=jinja2.StrictUndefined).render(
        step=alarms[0].step,
        alarms=alarms,
        action=action,
        order=sorted(monitor.crossed.items(), key=lambda entry: entry[1]),
        window=monitor.options.window,
        signals=list(_signals(monitor, {alarm.signal for alarm in alarms}, history)),
        remedies=REMEDIES,
        completions=list(_completions(latest)),
        settings={str(name): shorten(str(value), 300) for name, value in settings.items()},
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, page.encode(errors="replace"))


def _signals(monitor: CollapseMonitor, fired: set[str], history: Sequence[Mapping]) -> Iterator[dict]:
    for signal in SERIES:
        values = [value for row in history if (value := signal_value(signal, row)) is not None]
        if values:
            first = monitor.first.get(signal, math.nan)
            ends = {"first": first, "last": monitor.now(signal)}
            yield {"signal": signal, "fired": signal in fired, **ends, "curve": sparkline(values)}


def sparkline(values: Sequence[float]) -> str:
    """The values as one small SVG line, from lowest to highest; numbers that are none are left out."""
    finite = [(i, value) for i, value in enumerate(values) if math.isfinite(value)]
    if len(finite) < 2:
        return ""
    low, high = min(value for _, value in finite), max(value for _, value in finite)
    width, height, span = 260, 36, high - low or 1.0
    points = " ".join(
        f"{i * width / (len(values) - 1):.1f},{height - 2 - (value - low) / span * (height - 4):.1f}"
        for i, value in finite
    )
    return (
        f"<svg width='{width}' height='{height}' role='img'><title>{low:.3g} to {high:.3g}</title>"
        f"<polyline points='{points}' fill='none' stroke='#0a84c6' stroke-width='1.5'/></svg>"
    )


def _completions(latest: Sequence[tuple[Prediction, float]]) -> Iterator[tuple[str, Prediction, float]]:
    """The best completion, and the first that was truncated."""
    if latest:
        yield "Best", *max(latest, key=lambda entry: entry[1])
    for prediction, reward in latest:
        if prediction.finish_reason == "length":
            yield "First truncated", prediction, reward
            break
