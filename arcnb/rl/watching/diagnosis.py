"""The page that a collapse guard leaves: what fired, in which order things went wrong, what it looked like.

One self-contained HTML file: signals with their first window, last window and limit, small curves of the run,
and the completions of the last batch. `remedies` says what each signal has been seen to come from.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import shorten

from arcnb.arc.predictions.prediction import Prediction
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
_STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em}
table{border-collapse:collapse;margin:1em 0}td,th{padding:.2em .8em;text-align:left;border-bottom:1px solid
#8884} td.n{text-align:right;font-variant-numeric:tabular-nums}.fired{font-weight:bold;color:#c0392b}
pre{white-space:pre-wrap;background:#8881;padding:.8em;max-height:24em;overflow:auto}svg{vertical-align:middle}
@media(prefers-color-scheme:dark){body{background:#16191d;color:#d7dade}.fired{color:#ff7b6b}}"""


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
    step = alarms[0].step
    fired = {alarm.signal for alarm in alarms}
    order = sorted(monitor.crossed.items(), key=lambda entry: entry[1])
    parts = [
        f"<h1>Collapse alarm at step {step}</h1>",
        f"<p>What was done: <b>{html.escape(action)}</b>.</p>",
        "<ul>" + "".join(f"<li>{html.escape(alarm.sentence)}</li>" for alarm in alarms) + "</ul>",
        "<h2>In which order</h2><p>Signals over their limits, first to cross first: "
        + ", ".join(f"{signal} (step {at})" for signal, at in order)
        + ". The first is the place to look.</p>",
        "<h2>Signals</h2>" + _signal_table(monitor, fired, history),
        "<h2>What each may come from</h2><ul>"
        + "".join(f"<li><b>{signal}</b>: {html.escape(REMEDIES[signal])}</li>" for signal, _ in order)
        + "</ul>",
        "<h2>Completions of the last step</h2>" + _completions(latest),
        "<h2>Settings</h2><table>"
        + "".join(
            f"<tr><td>{html.escape(str(name))}</td><td>{html.escape(shorten(str(value), 300))}</td></tr>"
            for name, value in sorted(settings.items())
        )
        + "</table>",
    ]
    page = (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        f"<title>Collapse alarm at step {step}</title><style>{_STYLE}</style></head>"
        f"<body>{''.join(parts)}</body></html>"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8", errors="replace")


def _signal_table(monitor: CollapseMonitor, fired: set[str], history: Sequence[Mapping]) -> str:
    window = monitor.options.window
    rows = [f"<tr><th>signal</th><th>first {window} steps</th><th>last {window}</th><th>run</th></tr>"]
    for signal in SERIES:
        values = [value for row in history if (value := signal_value(signal, row)) is not None]
        if not values:
            continue
        mark = " class='fired'" if signal in fired else ""
        first = monitor.first.get(signal, math.nan)
        rows.append(
            f"<tr><td{mark}>{signal}</td><td class='n'>{first:.3g}</td>"
            f"<td class='n'>{monitor.now(signal):.3g}</td><td>{sparkline(values)}</td></tr>"
        )
    return f"<table>{''.join(rows)}</table>"


def sparkline(values: Sequence[float], width: int = 260, height: int = 36) -> str:
    """The values as one small SVG line, from lowest to highest; numbers that are none are left out."""
    finite = [(i, value) for i, value in enumerate(values) if math.isfinite(value)]
    if len(finite) < 2:
        return ""
    low, high = min(value for _, value in finite), max(value for _, value in finite)
    span = high - low or 1.0
    points = " ".join(
        f"{i * width / max(1, len(values) - 1):.1f},{height - 2 - (value - low) / span * (height - 4):.1f}"
        for i, value in finite
    )
    return (
        f"<svg width='{width}' height='{height}' role='img'><title>{low:.3g} to {high:.3g}</title>"
        f"<polyline points='{points}' fill='none' stroke='#0a84c6' stroke-width='1.5'/></svg>"
    )


def _completions(latest: Sequence[tuple[Prediction, float]]) -> str:
    if not latest:
        return "<p>None were kept.</p>"
    best = max(latest, key=lambda entry: entry[1])
    truncated = next((entry for entry in latest if entry[0].finish_reason == "length"), None)
    shown = [("Best", best)] + ([("First truncated", truncated)] if truncated else [])
    return "".join(
        f"<h3>{title}: reward {reward:.3g}, {prediction.n_tokens} tokens, {prediction.status}</h3>"
        f"<pre>{html.escape(prediction.completion[:6000])}</pre>"
        for title, (prediction, reward) in shown
    )
