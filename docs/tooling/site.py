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


# Browsers start no workers for files. The theme fetches a stand-in from another host; this one is ours: the worker's
# script runs in a hidden frame and talks to the page by messages.
_CDN = '<script src="https://unpkg.com/iframe-worker/shim"></script>'
_STAND_IN = """<script>
if (location.protocol === "file:") window.Worker = class extends EventTarget {
  constructor(url) {
    super();
    const frame = this.frame = document.body.appendChild(document.createElement("iframe"));
    frame.hidden = true;
    addEventListener("message", event => {
      if (event.source !== frame.contentWindow) return;
      const message = new MessageEvent("message", {data: event.data});
      this.dispatchEvent(message);
      if (this.onmessage) this.onmessage(message);
    });
    const script = `function postMessage(data) { parent.postMessage(data, "*") }
      function importScripts(...urls) { return Promise.all(urls.map(url => new Promise(done => {
        const one = document.createElement("script"); one.src = url; one.onload = done;
        document.body.appendChild(one) }))) }`;
    frame.contentDocument.write(`<body><script>${script}<\\/script><script src="${new URL(url, location)}"><\\/script></body>`);
    frame.contentDocument.close();
    this.ready = new Promise(done => frame.contentWindow.addEventListener("load", done));
  }
  postMessage(data) { this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", {data}))) }
  terminate() { this.frame.remove() }
}
</script>"""


def on_post_page(output, **_):
    """No page asks another host for anything."""
    return output.replace(_CDN, _STAND_IN)
