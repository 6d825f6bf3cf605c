"""What MkDocs does beside its own: pages from outside docs/, and links that hold in both places."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
# Files of the repository that are pages of the site, by their place there.
BROUGHT = {
    "deploy/README.md": "deploy.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
}
# What the search shows first: answers before details.
_BOOST = {"questions": 2.0, "privacy": 1.5, "how-to": 2.0, "cluster": 2.0, "tutorials": 1.5, "install": 0.7}
_BOOST |= dict.fromkeys(("reference", "proofs", "decisions", "upstream", "results", "changelog"), 0.5)
_PLACES = {page: source for source, page in BROUGHT.items()}
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def on_config(config: Any) -> Any:
    """Put a folder's pages in the place of its name in the list of pages."""
    config.nav = [_listed(entry, Path(config.docs_dir)) for entry in config.nav]
    return config


def _listed(entry: Any, docs: Path) -> Any:
    if not isinstance(entry, dict):
        return entry
    [(title, what)] = entry.items()
    if isinstance(what, list):
        return {title: [_listed(each, docs) for each in what]}
    if not what.endswith("/"):
        return entry
    pages = sorted((docs / what).glob("*.md"), key=lambda page: (page.stem != "README", page.stem))
    return {title: [str(page.relative_to(docs)) for page in pages]}


def on_files(files: Files, config: Any) -> Files:
    """Add the pages from outside docs/."""
    for source, page in BROUGHT.items():
        content = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: Any, files: Files) -> str:
    """Turn links that hold in the repository into ones that hold on the site."""
    own = page.file.src_uri
    boost = _BOOST.get(own.partition("/")[0].removesuffix(".md"))
    if boost is not None:
        page.meta["search"] = {"boost": boost}
    source = _PLACES.get(own, f"docs/{own}")
    parts = re.split(r"(?ms)(^```.*?^```$)", markdown)  # code stays as it is
    return "".join(
        part if part.startswith("```") else _LINK.sub(lambda found: _linked(found, source, own), part)
        for part in parts
    )


def _linked(found: re.Match[str], source: str, own: str) -> str:
    picture, text, link = found.groups()
    target, hash_, anchor = link.partition("#")
    if not target or "://" in target:
        return found[0]
    there = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    page = BROUGHT.get(there) or (there.removeprefix("docs/") if there.startswith("docs/") else None)
    if page is None and (ROOT / there).exists():  # a file that is no page: its name is what is told
        return f"`{there}`" if text == posixpath.basename(there) else text
    if page is None:
        return found[0]  # MkDocs says that it leads nowhere
    return f"{picture}[{text}]({posixpath.relpath(page, posixpath.dirname(own) or '.')}{hash_}{anchor})"
