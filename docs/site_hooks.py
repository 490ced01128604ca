"""What `make docs` does beside mkdocs: files elsewhere become pages, and nothing is foreign.

On a forge a link to `../examples/...` shows the file. The site has no such folder, so each file
that a page links becomes a page, and so does the changelog. When all is written, whatever a page or
a style sheet would load from another host is a warning, which `--strict` takes as an error.
"""

import logging
import posixpath
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
LOG = logging.getLogger("mkdocs.hooks.site")
EXAMPLE = re.compile(r"\]\(\.\./(examples/[^)#\s]+)\)")
LANGUAGES = {
    ".cfg": "text",
    ".conf": "nginx",
    ".dockerignore": "text",
    ".json": "json",
    ".py": "python",
    ".service": "ini",
    ".toml": "toml",
    ".yaml": "yaml",
    ".yml": "yaml",
}
# rel of a <link> that makes a browser fetch or connect; canonical, next and prev do not.
FETCHED = {"stylesheet", "icon", "preload", "modulepreload", "prefetch", "preconnect", "manifest"}
ELSEWHERE = re.compile(r"^\s*(?:[a-z][a-z0-9+.-]*:)?//", re.IGNORECASE)
STYLE = re.compile(r"url\(\s*[\"']?([^\"')]+)|@import\s+[\"']([^\"']+)", re.IGNORECASE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The changelog, and a page for each example file that a page links.

    Raises:
        OSError: there is no such file.
    """
    linked = {
        path
        for page in files.documentation_pages()
        for path in EXAMPLE.findall(page.content_string)
    }
    for path in sorted(linked):
        text = (ROOT / path).read_text()
        language = LANGUAGES.get(posixpath.splitext(path)[1], "text")
        content = f"# {posixpath.basename(path)}\n\n`{path}`\n\n`````{language}\n{text}`````\n"
        files.append(File.generated(config, f"{path}.md", content=content))
    changes = (ROOT / "CHANGELOG.md").read_text().replace("](docs/", "](")
    files.append(File.generated(config, "changelog.md", content=changes))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Links out of the folder lead to the pages made of what is there."""
    return EXAMPLE.sub(r"](\1.md)", markdown).replace("](../CHANGELOG.md)", "](changelog.md)")


def on_post_build(config: MkDocsConfig) -> None:
    """Warn of all that the site would load from another host."""
    for problem in foreign(Path(config.site_dir)):
        LOG.warning(problem)


def foreign(site: Path) -> Iterator[str]:
    """What pages and style sheets of a built site load from elsewhere, one line each."""
    for path in sorted(site.rglob("*.html")):
        loads = Loads()
        loads.feed(path.read_text())
        for url in loads.urls:
            if ELSEWHERE.match(url):
                yield f"{path.relative_to(site)} loads {url}"
    for path in sorted(site.rglob("*.css")):
        for url in styled(path.read_text()):
            if ELSEWHERE.match(url):
                yield f"{path.relative_to(site)} loads {url}"


def styled(text: str) -> Iterator[str]:
    for url, imported in STYLE.findall(text):
        yield url or imported


class Loads(HTMLParser):
    """urls: what a page makes a browser fetch, as written; links to click on are not among them."""

    def __init__(self) -> None:
        super().__init__()
        self.urls: list[str] = []
        self.in_style = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.in_style = tag == "style"
        self.urls += [given[name] for name in ("src", "poster", "data", "action") if name in given]
        self.urls += [
            part.split()[0] for part in given.get("srcset", "").split(",") if part.strip()
        ]
        self.urls += styled(given.get("style", ""))
        if tag == "link" and FETCHED & set(given.get("rel", "").lower().split()):
            self.urls.append(given.get("href", ""))

    def handle_endtag(self, tag: str) -> None:
        self.in_style = self.in_style and tag != "style"

    def handle_data(self, data: str) -> None:
        if self.in_style:
            self.urls += styled(data)
