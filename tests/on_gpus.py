"""The tests that need GPUs, each in a process of its own, one after the other.

    python -m tests.on_gpus                        # all of them
    python -m tests.on_gpus -k group_attention     # those that pytest takes by -k
    python -m tests.on_gpus --seconds 120          # patience with one test

Engines measure free GPU memory while they open, so two tests at a time disturb each other, and an engine that
hangs would take the tests behind it along. A line a test: what became of it, seconds, its id, and the last
error of one that failed; whole outputs are in the folder --output. The exit code is 1 if any failed or was
killed.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILES = ("tests/rl/test_gpu.py", "tests/models/sampling/test_gpu.py")
PYTEST = [sys.executable, "-m", "pytest", "-rs", "--tb=short"]


def node_ids(chosen: str) -> list[str]:
    command = [*PYTEST, "--collect-only", "-q", "-o", "addopts=--import-mode=importlib", *FILES]
    if chosen:
        command += ["-k", chosen]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    found = [line for line in listed.stdout.splitlines() if "::" in line]
    if not found:
        raise SystemExit(f"pytest found no tests on GPUs: {listed.stdout[-500:]}{listed.stderr[-500:]}")
    return found


def outcome(node: str, seconds: float, log: Path) -> str:
    """Runs one test; passed, skipped, FAILED or KILLED."""
    with open(log, "w") as said:
        process = subprocess.Popen(
            [*PYTEST, node], cwd=ROOT, stdout=said, stderr=said, start_new_session=True
        )
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            return "KILLED"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if code == 0 and "\nSKIPPED [" in log.read_text(errors="replace"):
        return "skipped"
    return "passed" if code == 0 else f"FAILED (exit code {code})" if code != 1 else "FAILED"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("-k", default="", metavar="WORDS")
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument(
        "--output", type=Path, default=Path("on_gpus"), help="folder for what the tests print"
    )
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    worst = 0
    for number, node in enumerate(node_ids(args.k)):
        log, began = args.output / f"{number:02d}.log", time.monotonic()
        became = outcome(node, args.seconds, log)
        errors = re.findall(r"^E  +(.*)|^(left behind .*)", log.read_text(errors="replace"), re.MULTILINE)
        why = f"  {''.join(errors[-1])[:200]}" if errors and became[0].isupper() else ""
        print(f"{became:8} {time.monotonic() - began:5.0f} s  {node}{why}", flush=True)
        worst = max(worst, became[0].isupper())
    return worst


if __name__ == "__main__":
    sys.exit(main())
