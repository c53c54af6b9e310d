"""Pages for readers: links lead somewhere, none is lost, what is made from code is fresh, words are few."""

import re
import subprocess
import sys
import tomllib

import pytest
import yaml

from arcnb.lab.notebooks.files import declared_beside
from tests.paths import NOTEBOOKS, ROOT, tooling

DOCS = ROOT / "docs"
PAGES = [
    *sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md")), *sorted(ROOT.glob("bench/**/README.md")),
    ROOT / "tests/README.md", ROOT / "arcnb/models/adapters/default/README.md",
]  # fmt: skip


def links(page):
    """(path, anchor) of each link to another file, of pages without their code."""
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not re.match(r"[a-z]+:", target):
            path, _, anchor = target.partition("#")
            yield (page.parent / path).resolve() if path else page.resolve(), anchor


def anchors(page):
    """The anchors of a page's headings, as GitHub and mkdocs make them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    plain = (re.sub(r"[^\w\s-]", "", re.sub(r"\]\([^)]*\)", "]", title)).strip().lower() for title in titles)
    return {re.sub(r"[\s]", "-", title) for title in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page):
    dead = [str(path) for path, _ in links(page) if not path.exists()]
    assert dead == []
    lost = [f"{path}#{anchor}" for path, anchor in links(page) if anchor and anchor not in anchors(path)]
    assert lost == []


TEXTS = [
    *PAGES, *ROOT.glob("*.txt"), ROOT / "Makefile", *(ROOT / "containers").iterdir(),
    *(path for room in ("arcnb", "bench", "notebooks") for path in (ROOT / room).rglob("*.*")),
]  # fmt: skip


def test_files_that_a_text_names_are_there():
    named = re.compile(
        r"(?<![\w/.])((?:arcnb|bench|docs|notebooks|tests)/[\w/-]+\.(?:md|py|ya?ml|ipynb|html))"
        r"(?!` at commit)"
    )
    lost = []
    for path in TEXTS:
        if (
            path.suffix in (".md", ".py", ".yaml", ".ipynb", ".jinja", ".txt", "")
            and "results" not in path.parts
        ):
            names = set(named.findall(path.read_text(encoding="utf-8"))) - {"notebooks/profiles/mine.yaml"}
            lost += [f"{path.relative_to(ROOT)}: {name}" for name in names if not (ROOT / name).exists()]
    assert lost == []


def test_every_page_is_found_from_the_first_one():
    found, waiting = set(), [DOCS / "index.md"]
    while waiting:
        page = waiting.pop()
        found.add(page)
        waiting += [path for path, _ in links(page) if path.suffix == ".md" and path not in found]
    assert set(DOCS.rglob("*.md")) - found == set()


def test_the_map_of_the_site_has_every_page_but_the_records():
    listed = re.findall(r"[\w/-]+\.md", str(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    there = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md") if path.parent.name != "log"}
    assert set(listed) == there


def test_every_notebook_has_an_executed_page_of_the_present_code():
    declared = declared_beside(NOTEBOOKS / "03_inference.ipynb", profile=True)
    readme = (ROOT / "README.md").read_text()
    for stem in sorted(set(declared) - {"00_start"}):
        page = DOCS / "gallery/pages" / f"{stem}.html"
        assert f"({page.relative_to(ROOT)})" in readme, "the README's table leads to it"
        table = page.read_text().partition("<summary>Parameters")[2].partition("</table>")[0]
        names = re.findall(r"<tr[^>]*><td>([\w.]+)</td>", table)
        assert names
        assert [name for name in names if not declared[stem].knows(name)] == [], "make gallery"


def test_pages_of_the_gallery_lead_to_each_other_alone():
    for page in (DOCS / "gallery/pages").glob("*.html"):
        addresses = re.findall(r'<a [^>]*href="(?!#|https?:)([^"]+)"', page.read_text())
        assert [one for one in addresses if not (page.parent / one).is_file()] == []


def test_reference_pages_are_fresh():
    assert tooling("reference").stale() == [], "run `make docs` and commit what it writes"


def test_environment_variables_are_all_described():
    text = "".join(
        path.read_text() for kind in ("py", "jinja") for path in (ROOT / "arcnb").rglob(f"*.{kind}")
    )
    assert set(re.findall(r"ARCNB_[A-Z_]+", text)) == set(tooling("reference").VARIABLES)


def test_no_page_has_more_heavy_sentences_than_it_may(capsys):
    assert tooling("prose").main([]) == 0, capsys.readouterr().out


def test_heavy_sentences_and_words_without_a_meaning_are_seen(tmp_path, monkeypatch):
    prose = tooling("prose")
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(
        "# 1 2 3 4\n\nIt takes 1, 2, 3 or 4.\n\n| 1 | 2 | 3 | 4 |\n\n"
        + "word " * 31
        + "\n\nThe study says XYZ.\n"
    )
    assert [line.split(":")[1] for line in prose.heavy(page)] == ["3", "7"]
    assert [line.split(":")[1] for line in prose.undefined(page, known="")] == ["9", "9"]
    assert len(prose.undefined(page, known="XYZ")) == 1


def test_words_of_the_notebooks_are_in_the_glossary():
    page = (DOCS / "reference/glossary.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]+) \|", page, flags=re.MULTILINE)
    known = {word for row in rows for word in row.split(", ")}
    texts = " ".join(path.read_text(encoding="utf-8") for path in NOTEBOOKS.glob("*.ipynb"))
    words = ["certainty", "episode", "headline", "outcome", "prediction", "rollout", "verdict"]
    assert [word for word in words if word in texts.lower() and word not in known] == []


def test_badges_say_what_pyproject_says():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pictures = {path.stem: path.read_text() for path in (DOCS / "pictures").glob("badge_*.svg")}
    assert project["license"] in pictures["badge_license"]
    assert project["requires-python"] == ">=3.11,<3.13"
    assert "3.11 | 3.12" in pictures["badge_python"]


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


@pytest.mark.skipif(not (ROOT / ".venv/site/mkdocs").is_dir(), reason="mkdocs is not installed: `make site`")
@pytest.mark.long("builds the whole site")
def test_the_site_is_whole_and_asks_no_network(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path / "site")]
    environment = {"PYTHONPATH": str(ROOT / ".venv/site"), "PATH": "/usr/bin"}
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert built.returncode == 0, built.stderr
    page = (tmp_path / "site/index.html").read_text()
    loaded = re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=\"(https?://[^\"]+)", page)
    assert loaded == []
