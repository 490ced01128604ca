"""The site of the docs, built by the command of `make docs`; hooks that look for foreign hosts."""

from pathlib import Path
from types import ModuleType

import pytest

from tests.docs.conftest import built
from tests.support.processes import ROOT

PROGRAM = "site_hooks"


def test_every_page_is_in_it_and_nothing_else(site: Path) -> None:
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")}
    assert {path.stem for path in site.glob("*.html")} == pages | {"404", "changelog"}
    kept = {path.name for path in site.iterdir() if path.suffix != ".html"}
    assert kept - {"sitemap.xml", "sitemap.xml.gz"} == {
        *("admin.png", "states.svg"),
        *("assets", "examples", "search"),
    }


def test_example_files_are_pages_with_their_text(site: Path) -> None:
    shown = (site / "examples/deploy/nginx.conf.html").read_text()
    assert "proxy_next_upstream" in shown
    assert 'href="examples/deploy/nginx.conf.html"' in (site / "deploy.html").read_text()


def test_no_page_may_load_from_elsewhere(site: Path, module: ModuleType) -> None:
    assert list(module.foreign(site)) == []
    for page in site.rglob("*.html"):
        assert "default-src 'self'" in page.read_text(), page


@pytest.mark.parametrize(
    "html",
    [
        '<script src="https://cdn.example/x.js"></script>',
        '<img src="//cdn.example/x.png">',
        '<img srcset="a.png 1x, https://cdn.example/b.png 2x">',
        '<link rel="stylesheet" href="https://cdn.example/x.css">',
        '<link rel="preconnect" href="https://cdn.example">',
        '<p style="background: url(https://cdn.example/x.png)">',
        '<style>@import "https://cdn.example/x.css";</style>',
    ],
)
def test_what_comes_from_elsewhere_is_told(tmp_path: Path, module: ModuleType, html: str) -> None:
    (tmp_path / "page.html").write_text(html)
    (problem,) = module.foreign(tmp_path)
    assert problem.startswith("page.html loads ")
    assert "//cdn.example" in problem


def test_a_style_sheet_too(tmp_path: Path, module: ModuleType) -> None:
    (tmp_path / "a.css").write_text("b { src: url('https://cdn.example/f.woff2') }")
    assert list(module.foreign(tmp_path)) == ["a.css loads https://cdn.example/f.woff2"]


def test_links_to_click_on_are_no_loads(tmp_path: Path, module: ModuleType) -> None:
    html = '<a href="https://pypi.org">x</a><link rel="canonical" href="https://a.example/">'
    (tmp_path / "page.html").write_text(html + "<img src='a.png'><style>b { color: red }</style>")
    assert list(module.foreign(tmp_path)) == []


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[a](gone.md)", "gone.md"),
        ("[a](other.md#gone)", "does not contain an anchor '#gone'"),
        ("![a](https://cdn.example/x.png)", "loads https://cdn.example/x.png"),
        ("[a](../examples/gone.py)", "gone.py"),
    ],
)
def test_a_build_fails_for(tmp_path: Path, text: str, told: str) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "index.md").write_text(f"# Page\n\n{text}\n")
    (docs / "other.md").write_text("# Other\n\n## There\n")
    done = built(docs, tmp_path / "site")
    assert done.returncode != 0
    assert told in done.stderr


def test_a_build_of_such_pages_works_otherwise(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "index.md").write_text("# Page\n\n[a](other.md#there) [b](../examples/sample.py)\n")
    (docs / "other.md").write_text("# Other\n\n## There\n")
    done = built(docs, tmp_path / "site")
    assert done.returncode == 0, done.stderr
