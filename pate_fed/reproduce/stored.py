"""A reproduction's figures as one JSON file, to be kept: how many seeds, mean and spread, and what made them.

`docs/results/` holds such files as they were written; the page of results is made of them.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from pate_fed.disk import write_result
from pate_fed.format import VERSION

_SEED = "seed"
_DIGITS = 6


def store_result(
    path: Path, *, command: str, device: str, rows: Iterable[Iterable[Any]], lines: Iterable[str]
) -> None:
    """Write the figures of tables' rows and the text's `lines`, with command, commit, machine and day."""
    found = [list(each) for each in rows]
    seeds = sorted({row.seed for each in found for row in each if _SEED in row.__match_args__})
    result = {
        "command": command,
        "commit": _commit(),
        "date": datetime.now(UTC).date().isoformat(),
        "machine": _machine(device),
        "version": VERSION,
        "seeds": seeds,
        "figures": [figure for each in found for figure in figures_of(each)],
        "text": list(lines),
    }
    write_result(path, (json.dumps(result, indent=1, ensure_ascii=False) + "\n").encode())


def figures_of(rows: Iterable[Any]) -> Iterator[dict[str, Any]]:
    """For each task but for its seed: what it is (`of`), its `n` rows, `mean` and `spread` of each measure.

    `spread` is the sample standard deviation, null of one row. What no row knows is left out.
    """
    cells: dict[str, list[Any]] = {}
    for row in rows:
        cells.setdefault(json.dumps(_task(row)), []).append(row)
    for same in cells.values():
        measured = {
            name: _numbers(same, name) for name in asdict(same[0]) if name not in same[0].__match_args__
        }
        known = {name: values for name, values in measured.items() if values}
        yield {
            "of": _task(same[0]),
            "n": len(same),
            "mean": {name: _rounded(np.mean(values)) for name, values in known.items()},
            "spread": {
                name: _rounded(np.std(values, ddof=1)) if len(values) > 1 else None
                for name, values in known.items()
            },
        }


def _task(row: Any) -> Mapping[str, Any]:
    """What tells a row apart, by name, without what it does not have."""
    named = {name: getattr(row, name) for name in row.__match_args__ if name != _SEED}
    return {name: value for name, value in named.items() if value is not None}


def _numbers(rows: list[Any], name: str) -> list[float]:
    values = [getattr(row, name) for row in rows]
    return [value for value in values if isinstance(value, int | float) and np.isfinite(value)]


def _rounded(value: Any) -> float:
    return float(f"{float(value):.{_DIGITS}g}")


def _machine(device: str) -> str:
    if device != "cpu":
        import torch

        if torch.cuda.is_available():
            return torch.cuda.get_device_name()
    return f"{os.cpu_count()} cores, {platform.machine()}, no GPU"


def _commit() -> str | None:
    """The commit of the source that runs, where it is a checkout of its own; "+" where files are changed."""
    here = Path(__file__).resolve()

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(here.parent), *words], capture_output=True, text=True, timeout=20, check=True
        )
        return done.stdout.strip()

    try:
        git("ls-files", "--error-unmatch", here.name)  # not a repository around an installation
        changed = git("status", "--porcelain", "--untracked-files=no")
        return git("rev-parse", "--short=12", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None
