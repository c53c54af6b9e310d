"""Does the test suite notice when a promise is broken? Deliberate breaks, one a promise, room by room.

    python -m tests.breaks                # all of them
    python -m tests.breaks held_out       # those whose promise or file holds the words
    python -m tests.breaks arcnb/arc/     # those of a room

Each break is a small edit of one file, which must make at least one of its tests fail. The tracked files are
copied to a temporary folder, edited and tested there, and restored; the work tree is never touched. First all
tests run unbroken and must pass. A line says `noticed`, `MISSED` (the tests still pass) or `WRONG` (the old
text does not occur once, or the tests cannot be run); the exit code is 1 if there was any of the last two.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 120  # patience with the tests of one break
_FAILED = re.compile(r"^\d+ (failed|error)|, \d+ (failed|error)", re.MULTILINE)


@dataclass(frozen=True)
class Break:
    """promise: a short sentence. In `file` the only `old` becomes `new`. tests: ids; one must fail."""

    promise: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


BREAKS: list[Break] = [
    # arc
    Break(
        "Only a grid equal to the expected one is a right grid",
        "arcnb/arc/scores/similarity.py",
        "similarity == 1 for",
        "similarity > 0.9 for",
        (
            "tests/arc/scores/test_metrics.py::test_scores_agree_with_the_reference",
            "tests/arc/scores/test_similarity.py::test_only_equal_grids_score_one",
        ),
    ),
    Break(
        "Scores are unknown, not zero, where test outputs are unknown",
        "arcnb/arc/scores/similarity.py",
        "return dict.fromkeys(names)",
        "return dict.fromkeys(names, 0)",
        ("tests/arc/scores/test_metrics.py::test_unknown_test_outputs_score_none_not_zero",),
    ),
    Break(
        "A seed depends on every key, the task's among them",
        "arcnb/arc/seeds.py",
        "for part in (seed, *keys)]",
        "for part in (seed, *keys[:1])]",
        ("tests/arc/test_seeds.py::test_every_key_matters",),
    ),
    Break(
        "pass@k is unbiased: drawn without replacement",
        "arcnb/arc/scores/pass_rates.py",
        "1 - math.comb(n - c, k) / math.comb(n, k)",
        "1 - ((n - c) / n) ** k",
        ("tests/arc/scores/test_metrics.py::test_pass_at_k_is_the_share_of_k_subsets_with_a_right_one",),
    ),
    Break(
        "The interval of a comparison is paired by task",
        "arcnb/arc/scores/pass_rates.py",
        "(b[column] - a[column]).to_numpy(float)",
        "np.sort(b[column].to_numpy(float)) - np.sort(a[column].to_numpy(float))",
        ("tests/arc/scores/test_metrics.py::test_as_many_tasks_but_other_ones_are_no_certain_tie",),
    ),
    Break(
        "McNemar's test is exact and two sided",
        "arcnb/arc/scores/intervals.py",
        "chances[sums >= observed].sum()",
        "chances[sums >= observed].sum() / 2",
        ("tests/arc/scores/test_metrics.py::test_mcnemar_is_the_exact_binomial_test",),
    ),
    Break(
        "The two attempts of a submission differ where there are two outputs",
        "arcnb/arc/scores/attempts.py",
        "(grid.shape, grid.tobytes())",
        "(grid.shape, len(voters))",
        ("tests/arc/scores/test_submission.py::test_our_rules_never_spend_both_attempts_on_one_grid",),
    ),
    Break(
        "A task that a submission lacks counts zero",
        "arcnb/arc/scores/submission.py",
        "        entries = submission.get(task.task_id, [{}] * len(task.test))",
        "        if not (entries := submission.get(task.task_id)):\n            continue",
        (
            "tests/arc/scores/test_submission.py::test_a_missing_task_counts_zero_where_the_reference_leaves_it_out",
        ),
    ),
    Break(
        "Inverting an augmentation undoes it",
        "arcnb/arc/augmentation.py",
        "np.rot90(grid, -self.n_rot90)",
        "np.rot90(grid, self.n_rot90)",
        ("tests/arc/test_augmentation.py::test_invert_undoes_apply_both_ways",),
    ),
    # programs
    Break(
        "A program that runs too long is a timeout",
        "arcnb/programs/sandbox/time_limits.py",
        'return 0.0, ("timeout", "Timeout", late)',
        'return 0.0, ("error", "Timeout", late)',
        ("tests/programs/executor/test_service.py::test_a_fraction_of_a_second_is_a_limit_for_one_input",),
    ),
    Break(
        "A program that depends on chance is found by its second run",
        "arcnb/programs/executor/verdicts.py",
        "        if not differ:",
        "        if differ or not differ:",
        ("tests/programs/attacks/test_state.py::test_dependence_on_chance_is_found_by_the_second_run",),
    ),
    Break(
        "The last block that defines the entry is the program",
        "arcnb/programs/extraction.py",
        "for block in reversed(blocks):\n        for text",
        "for block in blocks:\n        for text",
        ("tests/programs/test_extraction.py::test_the_last_block_that_defines_the_entry_wins",),
    ),
    Break(
        "A completion that was cut is read as cut",
        "arcnb/programs/judging.py",
        'truncated=prediction.finish_reason == "length"',
        "truncated=False",
        ("tests/programs/test_judging.py::test_a_cut_completion_is_seen_as_cut",),
    ),
    Break(
        "Outputs are scored in the frame of the original task",
        "arcnb/programs/judging.py",
        "[augmentation.invert(grid) for grid in execution.outputs]",
        "list(execution.outputs)",
        (
            "tests/programs/test_judging.py::test_programs_run_in_the_augmented_frame_and_are_scored_in_the_original",
        ),
    ),
    Break(
        "A limit that cannot be kept is refused",
        "arcnb/programs/executor/limits.py",
        "not 0 < value < bound",
        "not value < bound",
        ("tests/programs/executor/test_service.py::test_impossible_limits_are_refused_by_name",),
    ),
    # synth
    Break(
        "A held-out task is known when it was remade under another name",
        "arcnb/synth/splits.py",
        '("task_id", "original", "real")',
        '("task_id",)',
        ("tests/synth/test_splits.py::test_renamed_and_remade_held_out_tasks_are_known",),
    ),
    Break(
        "No evaluation task is among the trainable ones",
        "arcnb/synth/splits.py",
        "if not left_out(task)]",
        "if task.task_id not in HELD_OUT_TRAINING]",
        (
            "tests/synth/test_splits.py::test_what_is_trained_on_leaves_out_held_out_and_evaluation_tasks_of_any_data",
        ),
    ),
    Break(
        "A task whose program gives other outputs is rejected",
        "arcnb/synth/validation/validation.py",
        'return "wrong output"',
        "pass",
        ("tests/synth/validation/test_validation.py::test_wrong_recorded_output_is_rejected",),
    ),
    Break(
        "Another program that does the same is a duplicate",
        "arcnb/synth/validation/duplicates.py",
        "            if one.is_solved:",
        "            if False:",
        (
            "tests/synth/validation/test_validation.py::test_same_behaviour_is_a_duplicate_under_another_program",
        ),
    ),
    # models
    Break(
        "Under ZeRO-3 a recomputed layer is released before the next one comes",
        "arcnb/models/training/zero3.py",
        '{"use_reentrant": False}',
        '{"use_reentrant": True}',
        ("tests/models/training/test_zero3.py::test_reentrant_only_where_the_other_would_fail",),
    ),
    Break(
        "Of processes that failed together the first is named",
        "arcnb/models/training/output.py",
        "text.rpartition(_CAUSE)[2]",
        "text",
        ("tests/models/training/test_nodes.py::test_a_process_that_the_launcher_had_to_kill_is_not_why",),
    ),
    Break(
        "An adapter of another model is refused",
        "arcnb/models/lora/compatibility.py",
        "        if not fits:\n",
        "        if not fits and not target:\n",
        ("tests/models/test_registry.py::test_adapter_of_another_width_is_refused",),
    ),
    Break(
        "A prompt shows no test output",
        "arcnb/models/prompts/rendering.py",
        "test_input = task.test[0].input",
        "test_input = task.test[0].output",
        ("tests/models/prompts/test_rendering.py::test_test_outputs_and_other_test_inputs_are_not_shown",),
    ),
    Break(
        "A prompt begins with exactly one begin-of-text token",
        "arcnb/models/prompts/chat.py",
        "[bos, *rest] if is_added",
        "[bos, *ids] if is_added",
        ("tests/models/prompts/test_chat.py::test_exactly_one_begin_of_text_token_at_the_start",),
    ),
    Break(
        "Feedback says nothing of test pairs",
        "arcnb/models/prompts/feedback.py",
        "zip(task.train, outputs, strict=False)",
        "zip((*task.train, *task.test), outputs, strict=False)",
        ("tests/models/prompts/test_feedback.py::test_nothing_is_said_about_test_pairs",),
    ),
    Break(
        "Two processes do not choose the same GPU",
        "arcnb/machine/locks.py",
        "fcntl.LOCK_EX | waiting",
        "fcntl.LOCK_SH | waiting",
        ("tests/machine/test_gpus.py::test_processes_take_different_ones_until_none_is_left",),
    ),
    # search
    Break(
        "p-values of several pairs are adjusted",
        "arcnb/arc/scores/intervals.py",
        "p_values[i] * (len(p_values) - rank)",
        "p_values[i]",
        (
            "tests/search/comparing/test_fair_comparison.py::test_several_differences_share_their_chances_of_error",
        ),
    ),
    Break(
        "A set goes on with the adapter that it was begun with",
        "arcnb/models/registry.py",
        "    for path, *_ in files:\n        digest.update(path.read_bytes())",
        "    for path, *_ in files:\n        digest.update(path.name.encode())",
        (
            "tests/search/sampling/test_conditions.py::test_an_adapter_trained_again_under_its_path_is_another_one",
        ),
    ),
    Break(
        "A program that answers otherwise the second time is not learned from",
        "arcnb/search/learning/lessons/hindsight.py",
        "replace(once, check_determinism=True)",
        "replace(once, check_determinism=False)",
        (
            "tests/search/learning/test_hindsight.py::test_a_program_that_depends_on_chance_is_not_learned_from",
        ),
    ),
    Break(
        "A model comes to what its teacher would write",
        "arcnb/search/learning/learner/loss.py",
        "return (own.exp() * (own - other)).sum(-1)",
        "return (own.exp() * (other - own)).sum(-1)",
        (
            "tests/search/learning/test_learner.py::test_a_teacher_s_gradient_is_that_of_the_divergence_from_its_distribution",
            "tests/search/learning/test_learner.py::test_an_answer_with_a_teacher_comes_to_what_the_model_made_of_it_there",
        ),
    ),
    Break(
        "A teacher that makes right answers less likely is left out of a search",
        "arcnb/search/learning/lessons/trial.py",
        "if self.gain <= 0:",
        "if self.gain <= -9:",
        (
            "tests/search/learning/test_search_and_learn.py::test_a_teacher_that_knows_no_more_is_left_out_and_said",
        ),
    ),
    Break(
        "The best evaluation is said where the last one is below it",
        "arcnb/rl/watching/report.py",
        "or rates[best] <= rates[last]",
        "or rates[best] > rates[last]",
        (
            "tests/rl/watching/test_report.py::test_sentences_say_where_held_out_samples_went_and_whether_that_is_more_than_chance",
        ),
    ),
    Break(
        "A teacher that makes right answers less likely counts for nothing in GRPO",
        "arcnb/rl/trainer/crediting.py",
        "weight = plan.self_teacher if gain > 0 else 0.0",
        "weight = plan.self_teacher",
        ("tests/rl/trainer/test_self_teacher.py::test_tokens_are_worth_what_feedback_makes_them_likelier",),
    ),
    Break(
        "Feedback is silent on answers that fail on test pairs alone",
        "arcnb/models/prompts/conversations.py",
        "right = prediction.train_is_correct or self.right_on_train(prediction)",
        "right = prediction.solved",
        (
            "tests/search/learning/test_feedback.py::test_failed_answers_come_once_closest_last_and_the_teacher_reads_the_feedback",
        ),
    ),
    Break(
        "A task ends after its k-th success, not one later",
        "arcnb/search/sampling/early_stop.py",
        "if self._solving[task_id] >= self.k:",
        "if self._solving[task_id] > self.k:",
        (
            "tests/search/sampling/test_early_stop.py::test_rounds_on_disk_and_rounds_without_a_prompt_count_as_known",
        ),
    ),
    Break(
        "What is refined is chosen without test outputs",
        "arcnb/search/turns/selection.py",
        "not p.train_is_correct]",
        "not p.test_is_correct]",
        ("tests/search/turns/test_selection.py::test_every_chooser_gives_at_most_k_and_never_a_solved_one",),
    ),
    Break(
        "A sign-flip test counts both directions",
        "arcnb/arc/scores/intervals.py",
        "(np.abs(flipped) >= abs(differences.sum()) - 1e-12)",
        "(flipped >= differences.sum() - 1e-12)",
        ("tests/search/comparing/test_paired_shares.py::test_a_difference_of_one_sign_is_seen",),
    ),
    Break(
        "A gain on trained tasks is no gain on held-out ones",
        "arcnb/search/comparing/changes.py",
        'kind = "trained" if task.task_id in trained else',
        'kind = "trained" if True else',
        (
            "tests/search/comparing/test_changes.py::test_groups_are_told_apart_and_a_gain_on_trained_tasks_is_one_of_trained_tasks_alone",
        ),
    ),
    # rl
    Break(
        "A resumed run keeps the log of the steps that it goes on from",
        "arcnb/models/training/checkpoints.py",
        "if line not in undone)",
        "if line in undone)",
        ("tests/rl/resuming/test_resume.py::test_a_long_log_is_set_aside_line_by_line",),
    ),
    Break(
        "Rewards are those of ironbar/arc25",
        "arcnb/rl/rewards/schemes.py",
        "1 + 8 * scores.correct",
        "1 + 8 * scores.train_correct",
        ("tests/rl/rewards/test_schemes.py::test_reward_agrees_with_the_golden_vector",),
    ),
    Break(
        "A program that cheats earns nothing",
        "arcnb/rl/rewards/terms.py",
        "0.0 if rollout.cheating else self.of_scores(rollout.scores)",
        "self.of_scores(rollout.scores)",
        ("tests/rl/rewards/test_terms.py::test_a_program_that_cheats_earns_nothing",),
    ),
    Break(
        "A truncated completion pays for its length in full",
        "arcnb/rl/rewards/terms.py",
        "        if rollout.truncated:",
        "        if rollout.truncated and over > 0:",
        (
            "tests/rl/rewards/test_terms.py::test_the_overlong_ramp_begins_at_the_buffer_and_ends_at_the_limit",
        ),
    ),
    Break(
        "The guard sees a collapse within a window",
        "arcnb/rl/watching/guard.py",
        "elif signal not in self.crossed:",
        "elif signal in self.crossed:",
        ("tests/rl/watching/test_guard.py::test_each_signal_is_seen_within_a_window",),
    ),
    Break(
        "Held-out evaluation is summed up as pass@k",
        "arcnb/rl/watching/held_out.py",
        "sum(row[1] for row in group), k) for",
        "sum(row[1] for row in group), 1) for",
        ("tests/rl/watching/test_held_out.py::test_held_out_samples_are_summed_up_as_pass_at_k",),
    ),
    Break(
        "One observation alone convicts no program of cheating",
        "arcnb/rl/rewards/cheating.py",
        "if len(found) > 1 else None",
        "if len(found) > 0 else None",
        ("tests/rl/rewards/test_cheating.py::test_programs_that_memorise_are_found_and_honest_ones_are_not",),
    ),
    # problems
    Break(
        "A reward sees its first tests only",
        "arcnb/problems/grading.py",
        "seen, others = answers[: self.max_tests], answers",
        "seen, others = answers[:], answers",
        ("tests/problems/test_python.py::test_predictions_get_shares_of_tests",),
    ),
    Break(
        "The bonus is for all tests passed",
        "arcnb/problems/training/reward.py",
        "self.base * share + self.perfect * (share == 1)",
        "self.base * share + self.perfect * (share > 0)",
        ("tests/problems/test_training.py::test_share_of_tests_and_a_bonus_for_all",),
    ),
    Break(
        "A value that equals everything passes no test",
        "arcnb/problems/sets/values.py",
        "    if value is UNREADABLE:\n        return False",
        "    if value is UNREADABLE:\n        return True",
        ("tests/problems/test_python.py::test_what_equals_everything_passes_nothing",),
    ),
    Break(
        "A run that cannot fit its GPUs is refused",
        "arcnb/models/memory/training.py",
        "if needed <= room:",
        "if needed <= 20 * room:",
        ("tests/problems/test_training.py::test_memory_says_no_to_what_cannot_fit",),
    ),
    Break(
        "A prompt shows expected values only where asked",
        "arcnb/problems/prompt_text.py",
        "problem.tests[: self.shown_tests]",
        "problem.tests",
        ("tests/problems/test_python.py::test_prompts_show_no_expected_value_unless_asked",),
    ),
    # lab
    Break(
        "An unknown parameter is refused",
        "arcnb/lab/notebooks/parameters.py",
        '        raise ArcnbError(f"{where}{joint}{error}") from None',
        '        return Parameter(name, None, "any", "")',
        ("tests/lab/notebooks/test_parameters.py::test_unknown_names_suggest_the_nearest",),
    ),
    Break(
        "An interrupted write leaves the previous manifest",
        "arcnb/machine/files.py",
        'file = temporary.open("xb")',
        'file = path.open("wb")',
        ("tests/machine/test_files.py::test_a_write_without_space_or_quota_leaves_the_previous_copy",),
    ),
    Break(
        "A run that works is not removed",
        "arcnb/lab/runs/disk.py",
        'if status == "running":',
        'if status == "working":',
        ("tests/lab/runs/test_disk.py::test_running_runs_are_not_removed",),
    ),
    Break(
        "A run that others need is not removed",
        "arcnb/lab/runs/disk.py",
        "pointed.get(run.path.resolve(), set()) - going",
        "pointed.get(run.path.resolve(), set()) & going",
        ("tests/lab/runs/test_disk.py::test_disk_use_and_what_others_need",),
    ),
    Break(
        "The smallest effect is one that is seen four times in five",
        "arcnb/arc/scores/change.py",
        "t.ppf((0.975, 0.8), n - 1)",
        "t.ppf((0.975, 0.5), n - 1)",
        ("tests/search/comparing/test_changes.py::test_the_smallest_effect_is_seen_four_times_in_five",),
    ),
    Break(
        "A cell's progress is in the log however long it takes",
        "arcnb/lab/execution/journal.py",
        "if now - self.told >= max(",
        "if now - self.printed >= max(",
        ("tests/lab/execution/test_engine.py::test_a_bar_is_in_the_log_also_after_hours",),
    ),
    Break(
        "A run without a heartbeat is taken for dead",
        "arcnb/lab/runs/run.py",
        'beat["age"] < SILENCE_SECONDS',
        'beat["age"] >= 0',
        ("tests/lab/runs/test_run.py::test_a_run_of_another_machine_lives_by_its_heartbeat",),
    ),
    Break(
        "A stage runs again when the content of its files changes",
        "arcnb/lab/runs/fingerprints.py",
        "digest.update(path.read_bytes())",
        "digest.update(path.name.encode())",
        ("tests/lab/batch/test_pipelines.py::test_fingerprints_follow_content_and_not_folders",),
    ),
    Break(
        "Sets are compared on the tasks that they share",
        "arcnb/lab/plots/comparison.py",
        "set(versions).intersection(*(",
        "set(versions).union(*(",
        ("tests/lab/plots/test_comparison.py::test_predictions_are_compared_on_the_tasks_they_share",),
    ),
]


def main(words: list[str]) -> int:
    """Tries the breaks that the words choose, prints a line each, and returns the exit code."""
    chosen = [one for one in BREAKS if all(word in f"{one.promise} {one.file}" for word in words)]
    if not chosen:
        print(f"no promise and no file holds {' '.join(words)!r}")
        return 1
    start = time.monotonic()
    # Not called after the project: other sessions of the tests would take the folder for one left behind.
    with tempfile.TemporaryDirectory(prefix="breaks-") as folder:
        place = Path(folder) / "copy"
        _copy(place)
        (Path(folder) / "tmp").mkdir()
        tests = list(dict.fromkeys(test for one in chosen for test in one.tests))
        code, output = _pytest(place, tests, 10 * SECONDS)
        if code:
            print(output)
            print(f"the tests do not pass unbroken (exit {code}), so that they show nothing")
            return 1
        print(f"unbroken, the tests pass ({time.monotonic() - start:.0f} s)", flush=True)
        verdicts = [_try(place, one) for one in chosen]
    noticed = verdicts.count("noticed")
    print(f"{noticed} of {len(chosen)} breaks noticed in {time.monotonic() - start:.0f} s")
    return int(noticed < len(chosen))


def _try(place: Path, one: Break) -> str:
    """Breaks, tests, restores and prints; returns the verdict."""
    start, path, why = time.monotonic(), place / one.file, ""
    whole = path.read_text() if path.is_file() else ""
    if whole.count(one.old) != 1 or one.old == one.new:
        verdict, why = "WRONG", f": {one.file} holds the old text {whole.count(one.old)} times"
    else:
        times = path.stat()
        path.write_text(whole.replace(one.old, one.new))
        # Python knows byte code by seconds and size: two breaks of a file within a second must not share it.
        second = times.st_mtime_ns - (1 + BREAKS.index(one)) * 1_000_000_000
        os.utime(path, ns=(second, second))
        try:
            code, output = _pytest(place, one.tests, SECONDS)
        finally:
            path.write_text(whole)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        verdict = {0: "MISSED", 1: "noticed"}.get(code, "WRONG")
        if verdict == "WRONG":
            why = f": exit {code}, {(output.strip().splitlines() or ['no output'])[-1]}"
    print(f"{verdict:<8} {one.promise} ({time.monotonic() - start:.1f} s){why}", flush=True)
    return verdict


def _copy(place: Path) -> None:
    """The tracked files, and a proof that Python imports the copy and not an installed package."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():  # not one that was just removed
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, place / name)
    command = [sys.executable, "-c", "import arcnb; print(arcnb.__file__)"]
    found = subprocess.run(command, cwd=place, env=_environment(place), capture_output=True, text=True)
    if Path(found.stdout.strip()) != place / "arcnb" / "__init__.py":
        raise SystemExit(f"Python does not import the copy: {found.stdout}{found.stderr}")


def _pytest(place: Path, tests: list[str] | tuple[str, ...], seconds: float) -> tuple[int, str]:
    """pytest's exit code and output for these tests in the copy; 124 after so many seconds."""
    command = [sys.executable, "-m", "pytest", "-x", "--tb=short", "-p", "no:cacheprovider"]
    try:
        done = subprocess.run(
            [*command, *tests],
            cwd=place,
            env=_environment(place),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired as error:
        output = error.stdout or b""
        return 124, output.decode(errors="replace") if isinstance(output, bytes) else output
    # 1 is also the code of a session whose tests pass beside another one's folders (tests/conftest.py).
    code = 0 if done.returncode == 1 and not _FAILED.search(done.stdout) else done.returncode
    return code, done.stdout


def _environment(place: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(place), "TMPDIR": str(place.parent / "tmp")}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
