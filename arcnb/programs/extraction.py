"""Taking the program out of a model's completion.

    extract_program("Plan...\n```python\ndef transform(grid): ...\n```").program

The last block that parses and defines the entry function wins: drafts, scratch work and mentions of the
fence in prose come before it. Every stretch of text between two fences is looked at, so it does not matter
how the block is tagged, whether its fence was closed (a cut completion) or opened (the prompt's assistant
prefix may end with the opening fence), or whether there is any fence. Texts are parsed, never executed; the
work for one completion is bounded whatever it holds.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from arcnb.programs.syntax import ProgramSyntaxError, defined_names, parse_program

PARSE_BUDGET = 300_000  # characters parsed for one completion, about 0.3 s
REMEMBERED = 1024  # completions; a small model writes the same one again and again
CUT_ATTEMPTS = 20  # places tried when the end (or the beginning) of a text is not code

FENCE = re.compile(r"`{3,}|^[ \t]*~{3,}", re.MULTILINE)
_TAG = re.compile(r"[ \t]*([A-Za-z][\w+#.-]*)?")
_HEAD = re.compile(r"[^\n]{0,40}$", re.MULTILINE)  # the rest of a fence's line, if it can be a tag and blanks
_PYTHON_TAGS = {"python", "python3", "py", "py3", "pythonic", "ipython", "python2", "pycon"}
_CODE_LINE = re.compile(r"(?:import|from|def|class|async)\s|[@#]|[A-Za-z_]\w*\s*(?::[^=]*)?=[^=]")
_CONTINUES = re.compile(r"(?:else|elif|except|finally|case)\b|[\s)\]}]")


@dataclass(frozen=True)
class Extraction:
    """`program` is None when there is no code to run.

    how: `fenced` (a closed block), `unclosed` (a block without closing fence), `continued` (code that goes on
    from a fence opened before the completion), `plain` (no fences), `no_code`.
    reason: why it is not simply the last block, in words; None when it is.
    """

    program: str | None
    how: str
    reason: str | None = None


@dataclass
class _Search:
    """Parses candidate texts for one completion, within the budget; remembers the last complaint."""

    entry: str
    spent: int = 0
    complaints: dict[str, ProgramSyntaxError] = field(default_factory=dict)
    without: set[str] = field(default_factory=set)  # texts that parse and do not define the entry

    def defines(self, text: str) -> bool:
        """Whether `text` parses and defines the entry at module level."""
        if self.entry not in text or self.spent + len(text) > PARSE_BUDGET:
            return False
        self.spent += len(text)
        try:
            found = self.entry in defined_names(parse_program(text))
        except ProgramSyntaxError as error:
            self.complaints[text] = error
            return False
        if not found:
            self.without.add(text)
        return found

    def cut(self, text: str) -> str | None:
        """Longest beginning of `text`, in whole lines, that defines the entry; drops prose or a cut rest."""
        lines = text.split("\n")
        complaint = self.complaints.get(text)
        last = complaint.line if complaint and complaint.line else len(lines)
        ends = [n for n in range(1, min(last, len(lines))) if lines[n] and not _CONTINUES.match(lines[n])]
        for end in ends[::-1][:CUT_ATTEMPTS]:
            kept = "\n".join(lines[:end]).strip()
            if self.defines(kept):
                return kept
        return None


@dataclass(frozen=True)
class _Block:
    """A stretch between two fences; `texts` are its readings, without and with the fence's own line."""

    texts: tuple[str, ...]
    tag: str
    how: str


@lru_cache(REMEMBERED)
def extract_program(completion: str, entry: str = "transform", truncated: bool = False) -> Extraction:
    """Program of a completion; `truncated` says that it was cut at the token limit.

    When no block both parses and defines `entry`, the last one that means to define it is returned with the
    reason, so that the row says `syntax`; then the last block tagged as Python (the row will say that the
    entry is missing). A truncated completion whose program was cut in the middle has no code.
    """
    search = _Search(entry)
    blocks = list(_blocks(completion))
    for block in reversed(blocks):
        for text in block.texts:
            if search.defines(text):
                return Extraction(text, block.how, _later_refusals(blocks, block, search))
        part = _part(block, search)
        if part is not None:
            return Extraction(part, block.how, "only a part of the text is code")
    for text in _joined(completion, entry):
        if search.defines(text):
            return Extraction(text, "fenced", "the block itself holds fences")
    return _unfit(blocks, search, entry, truncated)


def open_fence(text: str) -> str:
    """The fence that is open at the end of a text, "" where none is."""
    fences = FENCE.findall(text)
    return fences[-1].strip() if len(fences) % 2 else ""


def _blocks(completion: str) -> Iterator[_Block]:
    fences = list(FENCE.finditer(completion))
    if not fences:
        yield _Block(_readings(completion), "", "plain")
        return
    yield _Block(_readings(completion[: fences[0].start()]), "", "continued")
    ends = [fence.start() for fence in fences[1:]] + [len(completion)]
    for number, (fence, end) in enumerate(zip(fences, ends, strict=True), start=1):
        text = completion[fence.end() : end]
        head, _, body = text.partition("\n")
        tag = _TAG.match(head)
        inline = text[tag.end() :]  # "```python def transform...": code behind the tag, or no newline at all
        how = "unclosed" if number == len(fences) else "fenced"
        texts = _readings(body) + (_readings(inline.strip()) if head.strip() else ())
        yield _Block(texts, (tag[1] or "").lower(), how)


def _readings(text: str) -> tuple[str, ...]:
    """The text stripped, and with a common indentation removed (a block inside a list item)."""
    plain = text.strip()
    lead = text[: len(text) - len(text.lstrip())]
    margin = lead[len(lead.rstrip(" \t")) :]
    if not margin or not plain:
        return (plain,)
    dedented = "\n".join(line.removeprefix(margin) for line in text.split("\n")).strip()
    return (plain,) if dedented == plain else (dedented, plain)


def _joined(completion: str, entry: str) -> Iterator[str]:
    """Blocks that hold fences themselves, as in a docstring: from an opening fence over inner ones."""
    fences = list(FENCE.finditer(completion))
    tried = 0
    for first in range(len(fences) - 1, -1, -1):
        head = _HEAD.match(completion, fences[first].end())
        if head is None or head[0].strip().lower() not in _PYTHON_TAGS:
            continue
        begin = head.end()
        for fence in fences[first + 2 : first + 10]:
            text = completion[begin : fence.start()].strip()
            if re.search(rf"\b{re.escape(entry)}\b", text):
                yield text
                tried += 1
        if tried > CUT_ATTEMPTS:
            return


def _part(block: _Block, search: _Search) -> str | None:
    """The program in a text that is not all code: prose around it, or a rest that was cut.

    A closed block is taken as it is: what follows its program there is the model's own error.
    """
    text = block.texts[0]
    if block.how == "fenced" or not _means_to_define(text, search.entry):
        return None
    kept = search.cut(text) if block.how != "continued" else None
    if kept is None and block.how != "unclosed":
        lines = text.split("\n")
        starts = [n for n, line in enumerate(lines) if n and _CODE_LINE.match(line)]
        for start in starts[:CUT_ATTEMPTS]:
            rest = "\n".join(lines[start:])
            kept = rest if search.defines(rest) else search.cut(rest) if block.how == "plain" else None
            if kept is not None:
                break
    return kept


def _unfit(blocks: list[_Block], search: _Search, entry: str, truncated: bool) -> Extraction:
    for block in reversed(blocks):
        text = block.texts[0]
        if not _means_to_define(text, entry):
            continue
        if text in search.without:  # a method or an inner function
            return Extraction(text, block.how, f"does not define {entry} at module level")
        complaint = search.complaints.get(text)
        what = f"line {complaint.line}: {complaint}" if complaint else "too much text to parse"
        if truncated and block is blocks[-1]:
            return Extraction(None, "no_code", f"cut off inside the program ({what})")
        return Extraction(text, block.how, f"does not parse ({what})")
    for block in reversed(blocks):
        text = next(filter(None, block.texts), "")
        if block.tag in _PYTHON_TAGS and text:
            return Extraction(text, block.how, f"does not define {entry}")
    tagged = any(block.tag in _PYTHON_TAGS for block in blocks)
    reason = "the code block is empty" if tagged else f"no code that defines {entry}"
    return Extraction(None, "no_code", reason)


def _means_to_define(text: str, entry: str) -> bool:
    name = re.escape(entry)
    return re.search(rf"^[ \t]*def\s+{name}\s*\(|^{name}\s*=", text, re.MULTILINE) is not None


def _later_refusals(blocks: list[_Block], chosen: _Block, search: _Search) -> str | None:
    later = blocks[blocks.index(chosen) + 1 :]
    refused = sum(_means_to_define(block.texts[0], search.entry) for block in later)
    return f"{refused} later block(s) define {search.entry} but do not parse" if refused else None
