"""Where a hospital's own things are: its part of the records, the pool as it lies here, what names them."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import clients.site
from clients.hospital import Hospital
from clients.local import read_site
from clients.policy import Policy
from clients.site import SITE_VARIABLE, Site
from clients.state_dir import LocalSettings, SimulatedSites
from pate_fed.config.data import records_digest
from pate_fed.config.study import Study
from pate_fed.errors import InputError
from pate_fed.kinds.make import make_terms
from pate_fed.protocol.messages import JoinRequest, Refusal, RefusalReply


def test_a_pool_that_was_changed_on_disk_is_noticed(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    terms = make_terms(site.study, site.dataset)
    images = np.array(site.dataset.public_images)
    images[3, 5, 5] ^= 1
    changed = replace(site.dataset, public_images=images)
    monkeypatch.setattr("clients.site._dataset", lambda _: changed)
    clients.site._pool_digest.cache_clear()
    try:
        reply = Hospital(site).join(JoinRequest(terms=terms.to_json()))
        assert isinstance(reply, RefusalReply)
        assert reply.refusal is Refusal.POOL
    finally:
        clients.site._pool_digest.cache_clear()


def test_parts_of_all_teachers_are_disjoint_and_complete(small_study: Study, tmp_path: Path) -> None:
    parts = [
        part
        for number in range(4)
        for part in Site(
            party=f"party-{number}", number=number, study=small_study, state_dir=tmp_path, simulated=True
        ).teacher_parts()
    ]
    assert len(parts) == 12
    assert sorted(np.concatenate(parts).tolist()) == list(range(400))


def test_every_process_finds_the_same_records(small_study: Study, site: Site, tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(small_study.to_toml(), encoding="utf-8")
    same = records_digest(small_study, site.dataset)
    for name, records in (("same.json", same), ("other.json", "00" * 32)):
        file = SimulatedSites(study=tmp_path / "study.toml", state_dir=tmp_path, records=records)
        file.write(tmp_path / name)
    assert clients.site.simulated_site(tmp_path / "same.json", 0).number == 0
    with pytest.raises(InputError, match="gives other records here than to the coordinator"):
        clients.site.simulated_site(tmp_path / "other.json", 0)


def test_a_site_must_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SITE_VARIABLE, raising=False)
    with pytest.raises(InputError, match=SITE_VARIABLE):
        read_site({"partition-id": 0})
    assert os.environ.get(SITE_VARIABLE) is None


def test_a_simulated_hospital_has_a_folder_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SITE_VARIABLE, str(tmp_path))
    own = tmp_path / "hospital-2"
    own.mkdir()
    settings = LocalSettings(hospital="hospital-2", data="labels.csv", state_dir=own, plays=2)
    settings.write(own / "hospital.json")
    site = read_site({"partition-id": 2})
    assert (site.party, site.number, site.simulated) == ("hospital-2", 2, True)
    assert site.policy is None and site.account is None and not site.durable
    (own / "policy.toml").write_text("most_queries = 5\n", encoding="utf-8")
    replace(settings, policy=own / "policy.toml").write(own / "hospital.json")
    assert read_site({"partition-id": 2}).policy == Policy(most_queries=5).rehearsed()
    with pytest.raises(InputError, match="partition-id"):
        read_site({})
