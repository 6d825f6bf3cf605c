"""Site files are read back as they were written, for their owner alone."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from clients.site_files import LocalSettings, SimulatedSites
from pate_fed.errors import InputError


@pytest.mark.parametrize(
    "site",
    [
        LocalSettings(hospital="north", data="part:0", state_dir=Path("/s")),
        LocalSettings(
            hospital="north",
            data="/d.csv",
            state_dir=Path("/s"),
            config=Path("/c"),
            pool=Path("/p"),
            teachers=3,
            terms_digest="ab",
            policy=Path("/policy"),
            sum_key=Path("/k"),
        ),
        SimulatedSites(study=Path("/study.toml"), state_dir=Path("/s")),
    ],
)
def test_a_site_file_is_read_back(site: LocalSettings | SimulatedSites, tmp_path: Path) -> None:
    path = tmp_path / "site.json"
    site.write(path)
    assert type(site).read(path) == site
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_damaged_site_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "hospital.json"
    path.write_text(json.dumps({"hospital": "north", "data": "x"}))
    with pytest.raises(
        InputError, match=r"hospital\.json: not a hospital's site file \(state_dir: is missing\)"
    ):
        LocalSettings.read(path)
