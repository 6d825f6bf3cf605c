"""Long lists of tries go on where they were stopped, by a file that PATE_FED_TRIED names."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any


class Tried:
    """The tries of one list that ended as they should: `rows` of an earlier run, and those of this one.

    Without a file they are forgotten. With each stands the commit that was tried.
    """

    def __init__(self, what: str) -> None:
        named, self._what = os.environ.get("PATE_FED_TRIED"), what
        self._path = None if named is None else Path(named)
        kept = self._path is not None and self._path.exists()
        lines = self._path.read_text(encoding="utf-8").splitlines() if self._path and kept else []
        self.rows: list[dict[str, Any]] = [row for row in map(json.loads, lines) if row["of"] == what]
        git = ["git", "rev-parse", "HEAD"]
        self._commit = subprocess.run(git, capture_output=True, text=True, cwd=Path(__file__).parent).stdout

    def add(self, **row: Any) -> None:
        """Note a try, before the next one begins."""
        self.rows.append(row)
        if self._path is not None:
            line = json.dumps({"of": self._what, "commit": self._commit.strip(), **row})
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(line + "\n")
