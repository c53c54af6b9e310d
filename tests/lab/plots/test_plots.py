"""Figures: right values, no display needed, no pyplot, the same bytes twice."""

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from arcnb.errors import ArcnbError
from arcnb.lab.plots import plots
from arcnb.lab.plots.figure import save_figure
from arcnb.models.training.log import read_metrics


@pytest.fixture
def curve():
    rates = {"mean": [0.1, 0.2, 0.3], "low": [0.0, 0.1, 0.2], "high": [0.2, 0.3, 0.5]}
    return pd.DataFrame({"k": [1, 2, 4], **rates, "n_short": 0})


def test_pass_at_k_draws_percent(curve):
    (axes,) = plots.pass_at_k(curve).axes
    np.testing.assert_allclose(axes.lines[0].get_ydata(), [10, 20, 30])
    assert list(axes.get_xticks()) == [1, 2, 4]
    assert axes.get_legend() is None
    (axes,) = plots.pass_at_k({"base": curve, "refined": curve}).axes
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["base", "refined"]


def test_a_name_between_dollars_is_no_formula(curve):
    assert r"$\foo$" in plots.pass_at_k({r"$\foo$": curve, "b": curve})._repr_svg_()


def test_pass_at_k_of_nothing_is_an_empty_plot(curve):
    nothing = curve.head(0).astype(object)  # a shard that is ready before any other has written
    (axes,) = plots.pass_at_k(curve.assign(n_short=[0, 0, 2])).axes
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["(2 tasks have fewer)"]
    (axes,) = plots.pass_at_k({"shard": nothing}).axes
    assert len(axes.lines[0].get_ydata()) == 0
    (axes,) = plots.pass_at_k(curve.assign(mean=0.0, low=0.0, high=0.0)).axes
    assert axes.get_ylim()[1] >= 10, "none solved: no scale of hundredths of a percent"


def test_training_curves_skip_what_has_no_values(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "reward": 0.5, "kl": null}\n{"step": 2, "reward": 0.75}\n{"step": 3, "rew')
    metrics = read_metrics(path)
    assert len(metrics) == 2
    (axes,) = plots.training_curves(metrics, ["reward", "kl", "missing"]).axes
    assert axes.get_title(loc="left") == "reward"
    np.testing.assert_allclose(axes.lines[0].get_ydata(), [0.5, 0.75])
    with pytest.raises(ValueError, match="none of kl has values"):
        plots.training_curves(metrics, ["kl"])
    path.write_bytes(b'{"step": 1}\n\xff\xfe')
    assert read_metrics(path) == [{"step": 1}]
    for line in (b"{bad}", b"\x00\x00", b"\xff", b"[1]", b"3"):
        path.write_bytes(line + b"\n{}\n")
        with pytest.raises(ArcnbError, match=rf"^{path}, line 1 is not a JSON object"):
            read_metrics(path)


def test_long_curves_of_a_group_are_smoothed_and_named_once():
    metrics = pd.DataFrame({"step": range(100), "a/x": np.arange(100) % 2, "a/y": 1.0})
    (axes,) = plots.grouped_curves(metrics, {"both": ["a/x", "a/y"]}).axes
    raw, smooth, *_ = axes.lines
    assert len(axes.lines) == 4
    assert set(raw.get_ydata()) == {0, 1}
    assert min(smooth.get_ydata()[5:95]) > 0.3
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["x", "y"]


def test_a_line_that_is_alone_in_its_group_is_named_and_one_that_is_the_title_is_not():
    metrics = [{"step": step, "error/NameError": 0.1, "kl": 0.2} for step in range(3)]
    errors, kl = plots.grouped_curves(metrics, {"exceptions": ["error/NameError"], "kl": ["kl"]}).axes
    assert [axes.get_title(loc="left") for axes in (errors, kl)] == ["exceptions: NameError", "kl"]
    assert errors.get_legend() is kl.get_legend() is None


def test_a_legend_lies_over_no_line():
    metrics = [{"step": step, "a/x": 0.0, "a/y": 1.0} for step in range(3)]
    figure = plots.grouped_curves(metrics, {"both": ["a/x", "a/y"], "one": ["a/x"]})
    figure.draw_without_rendering()
    axes = figure.axes[0]
    assert axes.get_legend().get_window_extent().y1 <= axes.get_window_extent().y0


def test_panels_of_the_same_runs_share_one_legend():
    logs = {name: [{"step": step, "x": 0.0, "y": 1.0} for step in range(3)] for name in ("a", "b")}
    figure = plots.compared_curves(logs, ["x", "y"])
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["a", "b"]
    assert [axes.get_legend() for axes in figure.axes] == [None, None]


@pytest.mark.parametrize("steps", [1, 2, 30])
def test_steps_are_whole_numbers(steps):
    (axes,) = plots.training_curves([{"step": n, "loss": 1.0} for n in range(4, 4 + steps)], ["loss"]).axes
    assert all(float(tick).is_integer() for tick in axes.get_xticks())
    assert len(axes.get_xticks()) > 0


def test_smoothing_keeps_the_raw_values():
    metrics = pd.DataFrame({"step": range(100), "loss": np.arange(100) % 2})
    raw, smooth = plots.training_curves(metrics, ["loss"], smooth=10).axes[0].lines
    assert set(raw.get_ydata()) == {0, 1}
    assert abs(smooth.get_ydata()[50] - 0.5) < 0.1


def test_histogram_marks_its_limit():
    (axes,) = plots.histogram([1, 2, 3, 100], "Lengths", "tokens", limit=10).axes
    assert axes.texts[0].get_text() == "dashed: 10 (25.0 % above)"
    assert axes.texts[0].get_position()[1] > 1, "above the bars, not over them"
    assert sum(patch.get_height() for patch in axes.patches) == 4
    with pytest.raises(ValueError, match="no values"):
        plots.histogram([], "Lengths", "tokens")


def test_counts_are_written_out_in_the_text_of_a_picture():
    assert repr(plots.histogram([1] * 1234, "Lengths", "tokens")).endswith("1 bar, the highest 1234")


def test_there_is_no_picture_of_no_correlation():
    assert plots.correlation(pd.DataFrame()) is None


def test_correlation_names_rows_and_columns():
    table = pd.DataFrame([[1, -0.5], [-0.5, 1]], columns=["crop", "fill"], index=["crop", "fill"])
    axes = plots.correlation(table).axes[0]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["crop", "fill"]
    np.testing.assert_allclose(axes.images[0].get_array(), table)


def test_the_same_data_gives_the_same_picture(curve, tmp_path):
    first = save_figure(plots.pass_at_k(curve), tmp_path / "a.svg").read_bytes()
    second = save_figure(plots.pass_at_k(curve), tmp_path / "b.svg").read_bytes()
    assert first == second
    assert b"k: predictions per task" in first, "letters stay letters"
    assert save_figure(plots.pass_at_k(curve), tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"


def test_a_notebook_gets_svg_and_png(curve):
    from IPython.core.formatters import DisplayFormatter

    data, metadata = DisplayFormatter().format(plots.pass_at_k(curve))
    assert data["image/svg+xml"].startswith("<?xml")
    assert data["image/png"][:4] == b"\x89PNG"
    assert metadata["image/png"] == {"width": 560}


def test_no_display_and_no_pyplot_is_needed():
    script = (
        "import sys; from arcnb.lab import plots; f = plots.histogram([1, 2], 'a', 'b'); f._repr_svg_();"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, env={"PATH": "", "HOME": "/nonexistent"})


def test_heat_map_has_a_row_a_set_and_a_column_a_solved_task():
    rates = pd.DataFrame({"a": [0.0, 0.5, 0.0], "b": [0.0, 1.0, 0.25]}, index=["t0", "t1", "t2"])
    axes = plots.heat_map(rates).axes[0]
    np.testing.assert_allclose(axes.images[0].get_array(), [[0.5, 0], [1, 0.25]])
    assert [text.get_text() for text in axes.get_yticklabels()] == ["a", "b"]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["t1", "t2"]
    assert axes.get_xlabel() == "2 of 3 tasks are solved by some prediction; the others are left out"
    nothing = plots.heat_map(rates * 0).axes[0]
    assert nothing.images[0].get_array().shape == (2, 3)


def test_upset_counts_the_tasks_of_each_group_of_sets():
    solved = pd.DataFrame({"a": [1, 1, 1, 0, 0], "b": [1, 1, 0, 1, 0]}, dtype=bool)
    bars, dots = plots.upset(solved).axes
    assert sorted(patch.get_height() for patch in bars.patches) == [1, 1, 2]
    assert list(dots.lines[0].get_ydata()) == [0, 1]
    assert [text.get_text() for text in dots.get_yticklabels()] == ["a (3)", "b (3)"]
    bars, dots = plots.upset(solved & False).axes
    assert not bars.patches
    assert dots.get_xlabel() == "no task is solved"
