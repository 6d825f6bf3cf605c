"""Write all that is generated in docs/: `python docs/site/make.py`. A test holds that it was run.

`--words` prints instead how many words of the documentation are written by hand, by page.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from estimate_table import estimate_table
from pictures import PICTURES
from reference_code import exit_codes, protocol_messages, python_api
from reference_files import commands, examples, policy_toml, study_toml
from results_page import results_page
from rooms_page import rooms_page, rooms_picture

PAGES = {
    "commands.md": commands,
    "study-toml.md": study_toml,
    "policy-toml.md": policy_toml,
    "python-api.md": python_api,
    "examples.md": examples,
    "exit-codes.md": exit_codes,
    "messages.md": protocol_messages,
}
PARTS = {"estimate": ("plan.md", estimate_table)}
"""Lines that are made inside of a page, by the name of the marks around them."""
DOCS = Path(__file__).resolve().parents[1]
ROOT = DOCS.parent


def generated() -> Iterator[tuple[Path, str]]:
    """Every generated file with its text."""
    for name, picture in {**PICTURES, "rooms": rooms_picture}.items():
        yield DOCS / "assets" / f"{name}.svg", picture().svg()
    for name, page in PAGES.items():
        yield DOCS / "reference" / name, page()
    yield DOCS / "results.md", results_page()
    yield DOCS / "rooms.md", rooms_page()
    for name, (page, lines) in PARTS.items():
        begin, end = f"<!-- made: {name} -->\n", f"\n<!-- end of {name} -->"
        made = begin + "\n".join(lines()) + end
        text = (DOCS / page).read_text(encoding="utf-8")
        written, places = re.subn(f"(?s){begin}.*{end}", lambda _, made=made: made, text)
        if places != 1:
            raise ValueError(f"{page} has {places} places for {name}; one is meant")
        yield DOCS / page, written


def by_hand() -> Iterator[tuple[Path, str]]:
    """Every page that is written by hand, with the text that is: no comments, no lines that are made."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]
    pages += [*sorted((ROOT / "deploy").rglob("*.md")), *sorted(DOCS.rglob("*.md"))]
    made = {DOCS / "results.md", DOCS / "rooms.md", *(DOCS / "reference").glob("*.md")}
    for page in pages:
        if page not in made:
            text = re.sub(
                r"(?s)<!-- made: (\w+) -->.*<!-- end of \1 -->", "", page.read_text(encoding="utf-8")
            )
            yield page, re.sub(r"(?s)<!--.*?-->", "", text)


def words() -> dict[str, int]:
    """How many words each page has, code included: what stands between spaces."""
    return {str(page.relative_to(ROOT)): len(text.split()) for page, text in by_hand()}


def main() -> None:
    """Write them, and name those that change; or print the words."""
    if sys.argv[1:] == ["--words"]:
        counts = words()
        for page, count in sorted(counts.items(), key=lambda each: each[1]):
            print(f"{count:7,}  {page}")
        print(f"{sum(counts.values()):7,}  by hand, in {len(counts)} pages")
        return
    for path, text in generated():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
