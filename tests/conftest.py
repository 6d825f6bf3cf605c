"""Fixtures that several rooms share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# Before torch is loaded, here and in the processes that tests start: their networks are too small for two
# threads, which would only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of reference cases and real data beside a developer's checkout; absent elsewhere."""
    folder = Path(os.environ.get("PATE_FED_SHARED", ROOT.parent / "shared"))
    if not (folder / "oracle").is_dir():
        pytest.skip(f"no reference data at {folder} (set PATE_FED_SHARED)")
    return folder
