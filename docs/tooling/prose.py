"""Counts what makes README and docs hard to read: long sentences, many numbers in one, undefined words.

python docs/tooling/prose.py             # says where, and ends with 1 if there is any
python docs/tooling/prose.py FILE ...    # of these files

Tables, code, headings and links' targets do not count. Files of results/ are records and are looked at for
words only; generated pages are not looked at.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
WORDS, NUMBERS = 30, 3
MADE = {
    "docs/reference/notebooks.md",
    "docs/reference/cli.md",
    "docs/reference/api.md",
    "docs/reference/files.md",
    "docs/reference/inputs.md",
}
RECORDS = "docs/results/"
# Words without a meaning of their own here, and what says it (docs/reference/glossary.md).
UNDEFINED = {
    r"\bheld[- ]out\b": "reserved tasks, reserved families, eval tasks, test pairs or the eval split",
    r"\b[Tt]he study\b": "ironbar/arc25, with a link",
    r"\bissues? \d+\b": "what it was about",
    r"\bgoals? (of|is|was|missed)\b": "target, and whose",
}


def pages() -> list[Path]:
    """README.md, the written pages below docs/ and those beside the code, in order."""
    others = (
        "CONTRIBUTING.md",
        "AGENTS.md",
        "tests/README.md",
        "bench/README.md",
        "bench/experiments/README.md",
    )
    found = [ROOT / name for name in ("README.md", *others)] + sorted((ROOT / "docs").rglob("*.md"))
    return [path for path in found if path.is_file() and name_of(path) not in MADE]


def name_of(path: Path) -> str:
    return path.resolve().relative_to(ROOT).as_posix()


def paragraphs(text: str) -> list[tuple[int, str]]:
    """(line, text) of each paragraph and list item, without code, tables, headings and targets of links."""
    found: list[tuple[int, str]] = []
    fenced, fresh = False, True
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith(("```", "~~~")):
            fenced, fresh = not fenced, True
        elif fenced or not line.strip() or re.match(r"( {4}|\t|\||#|!\[|<|---)", line):
            fresh = True
        elif fresh or re.match(r" *([*+-]|\d+\.) ", line):
            found.append((number, re.sub(r"^ *([*+-]|\d+\.) ", "", line)))
            fresh = False
        else:
            found[-1] = (found[-1][0], f"{found[-1][1]} {line.strip()}")
    return [(number, re.sub(r"\]\([^)]*\)", "]", text)) for number, text in found]


def sentences(text: str) -> list[str]:
    text = re.sub(r"`[^`]*`", lambda one: "`" + "x" * (len(one[0]) > 2) + "`", text)
    return re.split(r"(?<=[.!?:;])[)\"*_]*\s+(?=[^\s])", text)


def heavy(path: Path) -> list[str]:
    """What is too long or holds too many numbers, as lines to print."""
    found = []
    for number, paragraph in paragraphs(path.read_text(encoding="utf-8")):
        for one in sentences(paragraph):
            words = len(re.findall(r"[^\W\d_][\w'’-]*|`x`", one))
            numbers = len(re.findall(r"(?<![\w.-])[−+-]?\d[\d,.]*", one))
            if words > WORDS or numbers > NUMBERS:
                found.append(f"{name_of(path)}:{number}: {words} words, {numbers} numbers: {one[:90]}")
    return found


def undefined(path: Path, known: str) -> list[str]:
    """Words without a meaning, and short forms that the glossary does not have, as lines to print."""
    found = []
    for number, paragraph in paragraphs(path.read_text(encoding="utf-8")):
        plain = re.sub(r"`[^`]*`", "", paragraph)
        for pattern, better in UNDEFINED.items():
            if re.search(pattern, plain):
                found.append(f"{name_of(path)}:{number}: {re.search(pattern, plain)[0]!r}: say {better}")
        shorts = set(re.findall(r"\b[A-Z][A-Z0-9]{2,}\b", plain))
        for short in () if name_of(path).startswith(RECORDS) else shorts:
            if not re.search(rf"\b{short}\b", known):
                found.append(f"{name_of(path)}:{number}: {short} is not in docs/reference/glossary.md")
    return found


def main(arguments: list[str]) -> int:
    known = (ROOT / "docs/reference/glossary.md").read_text(encoding="utf-8")
    failed = False
    for path in map(Path, arguments) if arguments else pages():
        lines = [] if name_of(path).startswith(RECORDS) else heavy(path)
        words = undefined(path, known)
        for line in [*lines, *words]:
            print(line)
        failed |= bool(lines or words)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
