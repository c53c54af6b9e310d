"""Hook of mkdocs: pages of the repository outside docs/ join the site, and links lead to them there."""

import os
import re
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
JOINED = [
    "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "bench/README.md",
    "bench/experiments/README.md", "tests/README.md", "arcnb/models/adapters/default/README.md",
]  # fmt: skip
_LINK = re.compile(r"(!?\[[^\]]*\])\(([^)\s]+)\)")


def on_files(files, config):
    """Adds the pages of JOINED, below repository/."""
    for name in JOINED:
        files.append(File.generated(config, f"repository/{name}", abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown, page, **_):
    """Links as the site has them; what it does not have (source files, folders) stays as its words alone."""
    here = page.file.src_uri
    source = Path(here.removeprefix("repository/")) if here.startswith("repository/") else Path("docs", here)
    if markdown.startswith("---\n"):  # the model card begins with its facts for the hub
        markdown = markdown.split("---\n", 2)[2]

    def moved(match):
        words, target = match.groups()
        if re.match(r"[a-z]+:|#", target):
            return match[0]
        path, _, anchor = target.partition("#")
        path = os.path.normpath(source.parent / path)
        if path in JOINED:
            path = f"repository/{path}"
        elif path.startswith("docs/") and (ROOT / path).is_file():
            path = path.removeprefix("docs/")
        else:
            return words[1:-1]
        return f"{words}({os.path.relpath(path, Path(here).parent)}{'#' + anchor if anchor else ''})"

    markdown = _LINK.sub(moved, markdown)
    return re.sub(r"<!-- api: (\S+) -->", r"::: \1", markdown)


def on_post_page(output, **_):
    """No page asks another host for anything: what the theme would fetch from one is worker.js."""
    ours = (Path(__file__).parent / "worker.js").read_text(encoding="utf-8")
    return output.replace(
        '<script src="https://unpkg.com/iframe-worker/shim"></script>', f"<script>{ours}</script>"
    )
