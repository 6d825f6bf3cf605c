"""Simulated parties on a node of a cluster: played with what was sent, and never without their journal."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pate_fed.flower import prepare_environment

prepare_environment()

from clients.app import SentStudy, play_parties
from clients.hospital import Hospital
from clients.site import Site, neighbours, simulated_site
from clients.state_dir import SITE_VARIABLE
from pate_fed.config.data import data_digest, records_digest
from pate_fed.config.study import Study
from pate_fed.data import Dataset
from pate_fed.disk import write_private
from pate_fed.errors import InputError
from pate_fed.kinds.make import make_terms
from pate_fed.protocol.messages import AnswerReply, JoinReply, JoinRequest, Question, Refusal, RefusalReply
from pate_fed.secure_sum import Identity


@pytest.fixture
def data(site: Site) -> Dataset:
    return site.dataset


@pytest.fixture
def sent(small_study: Study, data: Dataset) -> SentStudy:
    return SentStudy(
        study=small_study.to_toml(),
        data=data_digest(data),
        records=records_digest(small_study, data),
        files={"mine/__init__.py": b"A = 1\n", "mine/more.py": b"B = 2\n"},
        together=2,
    )


@pytest.fixture
def node(tmp_path: Path, sent: SentStudy, data: Dataset, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The site file of a node with an empty cache of its own, once it plays parties."""
    monkeypatch.setenv(SITE_VARIABLE, "")
    monkeypatch.setattr("clients.site._SENT", {})
    monkeypatch.setenv("PATE_FED_CACHE", str(tmp_path / "empty"))
    play_parties(tmp_path, sent, data)
    yield tmp_path / "site.json"


def _taught(site: Site) -> Hospital:
    hospital = Hospital(site)
    assert isinstance(
        hospital.join(JoinRequest(terms=make_terms(site.study, site.dataset).to_json())), JoinReply
    )
    return hospital


def _question(site: Site, key: Identity, index: list[int]) -> Question:
    terms = make_terms(site.study, site.dataset)
    asked = Question(terms_digest=terms.digest, batch=0, index=np.array(index))
    return replace(asked, coordinator=key.public, signature=key.sign(bytes.fromhex(asked.digest)))


def test_a_node_plays_with_what_was_sent_and_reads_no_data_of_its_own(
    node: Path, tmp_path: Path, data: Dataset
) -> None:
    site = simulated_site(node, 1)
    assert site.dataset is data and site.together == 2 and site.durable
    assert site.state_dir == tmp_path / "party-1"
    assert (tmp_path / "own-code" / "mine" / "more.py").read_bytes() == b"B = 2\n"
    assert [[each.party for each in group] for group in neighbours(site, 2)] == [
        ["party-0", "party-1"],
        ["party-2", "party-3"],
    ]
    assert all(each.durable for group in neighbours(site, 2) for each in group)
    assert not (tmp_path / "empty").exists()


def test_other_data_than_were_sent_are_refused(tmp_path: Path, sent: SentStudy, data: Dataset) -> None:
    changed = data.private_images.copy()
    changed[7, 3, 3] ^= 1
    with pytest.raises(InputError, match="not those that were sent"):
        play_parties(tmp_path, sent, replace(data, private_images=changed))
    assert not (tmp_path / "site.json").exists()


def test_records_that_would_be_dealt_otherwise_are_refused(
    tmp_path: Path, sent: SentStudy, data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SITE_VARIABLE, "")
    monkeypatch.setattr("clients.site._SENT", {})
    with pytest.raises(InputError, match="other records here than to the coordinator"):
        play_parties(tmp_path, replace(sent, records="0" * 64), data)


def test_a_process_that_takes_over_sends_the_very_same_answer(node: Path) -> None:
    site, key = simulated_site(node, 1), Identity.generate()
    question = _question(site, key, [1, 2, 3])
    first = _taught(site).answer(question)
    assert isinstance(first, AnswerReply)
    # Another teacher could vote otherwise: what was answered is sent, nothing is counted again.
    for path in site.state_dir.glob("teacher-*"):
        shutil.copy(sorted(site.state_dir.glob("teacher-*"))[0], path) if path.stem != "teacher-0" else None
    again = Hospital(site).answer(question)
    assert isinstance(again, AnswerReply)
    np.testing.assert_array_equal(again.answer, first.answer)
    # Another question about the same input gets nothing, and so does another run's coordinator.
    for other in (_question(site, key, [3, 4]), _question(site, Identity.generate(), [1, 2, 3])):
        refused = Hospital(site).answer(other)
        assert isinstance(refused, RefusalReply) and refused.refusal is Refusal.REPEATED


def test_a_party_on_one_machine_keeps_no_answer(site: Site) -> None:
    key = Identity.generate()
    question = _question(site, key, [1, 2, 3])
    assert isinstance(_taught(site).answer(question), AnswerReply)
    again = Hospital(site).answer(question)
    assert isinstance(again, RefusalReply) and again.refusal is Refusal.REPEATED


def test_a_party_whose_disk_is_lost_votes_no_more(node: Path) -> None:
    site, key = simulated_site(node, 1), Identity.generate()
    assert isinstance(_taught(site).answer(_question(site, key, [1, 2, 3])), AnswerReply)
    left = {path.name: path.read_bytes() for path in site.state_dir.glob("teacher-*")}
    shutil.rmtree(site.state_dir)
    # On another node neighbours may have trained teachers for it, but it has agreed to nothing there.
    for name, content in left.items():
        site.state_dir.mkdir(mode=0o700, exist_ok=True)
        write_private(site.state_dir / name, content)
    for index in ([1, 2, 3], [7, 8]):
        refused = Hospital(simulated_site(node, 1)).answer(_question(site, key, index))
        assert isinstance(refused, RefusalReply) and refused.refusal is Refusal.NOT_READY
