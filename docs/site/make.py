"""Write all that is generated in docs/: `python docs/site/make.py`. A test holds that it was run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from estimate_table import estimate_table
from pictures import PICTURES
from reference_code import exit_codes, protocol_messages, python_api
from reference_files import commands, policy_toml, study_toml
from results_page import results_page

PAGES = {
    "commands.md": commands,
    "study-toml.md": study_toml,
    "policy-toml.md": policy_toml,
    "python-api.md": python_api,
    "exit-codes.md": exit_codes,
    "messages.md": protocol_messages,
}
PARTS = {"estimate": ("plan.md", estimate_table)}
"""Lines that are made inside of a page, by the name of the marks around them."""
DOCS = Path(__file__).resolve().parents[1]


def generated() -> Iterator[tuple[Path, str]]:
    """Every generated file with its text."""
    for name, picture in PICTURES.items():
        yield DOCS / "assets" / f"{name}.svg", picture().svg()
    for name, page in PAGES.items():
        yield DOCS / "reference" / name, page()
    yield DOCS / "results.md", results_page()
    for name, (page, lines) in PARTS.items():
        begin, end = f"<!-- made: {name} -->\n", f"\n<!-- end of {name} -->"
        made = begin + "\n".join(lines()) + end
        text = (DOCS / page).read_text(encoding="utf-8")
        yield DOCS / page, re.sub(f"(?s){begin}.*{end}", lambda _, made=made: made, text)


def main() -> None:
    """Write them; those that change are told."""
    for path, text in generated():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path.relative_to(DOCS.parent)}")


if __name__ == "__main__":
    main()
