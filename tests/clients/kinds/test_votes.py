"""A hospital's teachers on its disk: lost ones come back alike, and all learnt from the very same records."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from clients.hospital import Hospital
from clients.kinds.votes import _Taught, count_votes, teacher_paths, train_missing
from clients.site import Site, neighbours
from pate_fed.data.dataset import release_memory
from pate_fed.errors import InputError, PateFedError
from pate_fed.kinds.make import make_terms
from pate_fed.kinds.terms import Terms
from pate_fed.learning.teachers.network import Teacher
from pate_fed.protocol.messages import AnswerReply, JoinRequest, Question, Refusal, RefusalReply


def _terms(site: Site) -> Terms:
    return make_terms(site.study, site.dataset)


def _request(terms: Terms, index: list[int]) -> Question:
    return Question(terms_digest=terms.digest, batch=0, index=np.array(index))


def test_a_lost_teacher_is_noticed_and_trained_again_alike(taught: Hospital, site: Site) -> None:
    terms = _terms(site)
    before = taught.answer(_request(terms, list(range(30))))
    (site.state_dir / "teacher-1.pt").unlink()
    missing = taught.answer(_request(terms, [40]))
    assert isinstance(missing, RefusalReply)
    assert missing.refusal is Refusal.NOT_READY
    taught.join(JoinRequest(terms=terms.to_json()))
    (site.state_dir / "answered").rename(site.state_dir / "forgotten")
    after = Hospital(site).answer(_request(terms, list(range(30))))
    assert isinstance(before, AnswerReply)
    assert isinstance(after, AnswerReply)
    np.testing.assert_array_equal(before.answer, after.answer)


def test_teachers_of_other_records_do_not_vote_beside_new_ones(
    taught: Hospital, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hospital that corrects its records amid training would have one of them in two teachers' parts."""
    terms, parts = _terms(site), site.teacher_parts()
    before = [path.read_bytes() for path in teacher_paths(site)]
    (site.state_dir / "teacher-1.pt").unlink()
    monkeypatch.setattr(
        Site, "teacher_parts", lambda _: [np.roll(np.concatenate(parts), 7)[i::3] for i in range(3)]
    )
    taught.join(JoinRequest(terms=terms.to_json()))
    assert all(path.read_bytes() != old for path, old in zip(teacher_paths(site), before, strict=True))
    assert '"teachers_trained_again": 2' in (site.state_dir / "log.jsonl").read_text()
    # Records that a patient was taken from, or a label corrected in, are others too.
    (site.state_dir / "teacher-2.pt").unlink()
    changed = replace(site.dataset, private_labels=(site.dataset.private_labels + 1) % 3)
    monkeypatch.setattr("clients.site._dataset", lambda _: changed)
    Hospital(site).join(JoinRequest(terms=terms.to_json()))
    assert (site.state_dir / "log.jsonl").read_text().count('"teachers_trained_again": 2') == 2


def test_no_teacher_votes_beside_one_of_other_records_where_their_number_changes(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Teachers by size: records come and go between starts of the hospital, and a crash may be in between."""
    sized = replace(site.study, parties=replace(site.study.parties, records_per_teacher=25))
    site, mine = replace(site, study=sized), np.concatenate(site.teacher_parts())
    site.state_dir.mkdir()
    crashed = False

    class _Part:
        def __init__(self, part: NDArray[np.int64]) -> None:
            self.part = part

        def save(self, path: Path, *, durable: bool) -> None:
            path.write_bytes(self.part.tobytes())

    def train(site: Site, number: int, part: NDArray[np.int64], encoder: object) -> _Part:
        if crashed:
            raise InputError("the disk is full")
        return _Part(part)

    def start(parts: list[NDArray[np.int64]]) -> None:
        monkeypatch.setattr(Site, "teacher_parts", lambda _: parts)
        monkeypatch.setattr(Site, "num_teachers", property(lambda _: len(parts)))
        train_missing(site, encoder=None, taught=lambda _: None, anew=lambda _: None)
        learnt = np.concatenate([np.frombuffer(path.read_bytes(), int) for path in teacher_paths(site)])
        assert len(np.unique(learnt)) == len(learnt)  # nobody's record sways two votes

    monkeypatch.setattr("clients.kinds.votes._train", train)
    monkeypatch.setattr("clients.kinds.votes._train_neighbours", lambda *_: [])
    three = np.array_split(mine[:90], 3)
    crashed = True
    with pytest.raises(InputError):
        start(three)
    crashed = False
    start([mine[:49]])  # so few are left that one teacher learns from all of them
    start(three)  # and the first records again
    teacher_paths(site)[0].unlink()
    start(np.array_split(mine[20:90], 2))  # fewer
    start(three)


def test_whoever_of_a_group_is_asked_first_trains_its_neighbours_each_on_its_own_part(
    taught: Hospital, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it leaves with them is what each would have trained, and votes alike."""
    for neighbour in next(neighbours(site, 8)):
        asked = _request(_terms(neighbour), list(range(60))).index
        together = count_votes(neighbour, neighbour.dataset.public_images[asked])
        own = replace(neighbour, state_dir=site.state_dir / neighbour.party)
        own.state_dir.mkdir()
        with monkeypatch.context() as patch:
            patch.setattr("clients.kinds.votes._train_neighbours", lambda *_: [])
            train_missing(own, encoder=None, taught=lambda _: None, anew=lambda _: None)
        assert (together == count_votes(own, own.dataset.public_images[asked])).all()
        for path, alone in zip(teacher_paths(neighbour), teacher_paths(own), strict=True):
            pair = [Teacher.load(each)._model.state_dict() for each in (path, alone)]
            assert all(torch.allclose(pair[0][name], pair[1][name], atol=1e-5) for name in pair[0])


@pytest.mark.parametrize("alone", [False, True])
def test_what_another_node_goes_on_with_is_on_the_disk(
    site: Site, alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a disk that nodes share a teacher has to outlive the node that trained it; else nobody waits."""
    if alone:
        monkeypatch.setattr("clients.kinds.votes._train_neighbours", lambda *_: [])
    synced: list[int] = []
    monkeypatch.setattr("pate_fed.disk.os.fsync", lambda handle: synced.append(os.fstat(handle).st_ino))
    for each in (site, replace(site, goes_on=True, state_dir=site.state_dir.parent / "shared" / site.party)):
        each.state_dir.mkdir(parents=True)
        train_missing(each, encoder=None, taught=lambda _: None, anew=lambda _: None)
        written = {path.stat().st_ino for path in each.state_dir.iterdir()}
        assert written & {*synced} == (written if each.goes_on else set())


def test_a_real_hospital_trains_nobody_elses_teachers(site: Site) -> None:
    real = replace(site, simulated=False)
    real.state_dir.mkdir()
    train_missing(real, encoder=None, taught=lambda _: None, anew=lambda _: None)
    assert all(path.exists() for path in teacher_paths(real))
    assert [path.name for path in site.state_dir.parent.iterdir()] == ["party-1"]


def test_while_another_process_trains_a_group_the_next_is_trained(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then it waits for its own group: here until the test gives the group back."""
    monkeypatch.setattr("clients.kinds.votes._TOGETHER", 2)
    own, other = neighbours(site, 2)
    own[0].state_dir.mkdir()
    handle = os.open(own[0].state_dir, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    train = threading.Thread(
        target=train_missing, args=(site,), kwargs={"encoder": None, "taught": print, "anew": print}
    )
    train.start()
    end = time.monotonic() + 60
    while not teacher_paths(other[1])[-1].exists() and time.monotonic() < end:
        time.sleep(0.02)
    assert not teacher_paths(site)[0].exists()
    os.close(handle)
    train.join(60)
    assert all(path.exists() for each in (*own, *other) for path in teacher_paths(each))


def test_a_part_that_cannot_be_learnt_is_its_own_partys_fault_alone(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise PateFedError("the loss is not finite")

    monkeypatch.setattr("pate_fed.learning.teachers.batched._fit", fails)
    told: list[int] = []
    train_missing(site, encoder=None, taught=told.append, anew=told.append)
    assert told == [0, 1, 2]
    assert all(path.exists() for path in teacher_paths(site))


def test_what_is_trained_is_not_trained_again_and_votes_once_a_teacher(taught: Hospital, site: Site) -> None:
    told: list[int] = []
    before = [path.read_bytes() for path in teacher_paths(site)]
    train_missing(site, encoder=None, taught=told.append, anew=told.append)
    assert not told
    assert [path.read_bytes() for path in teacher_paths(site)] == before
    votes = count_votes(site, site.dataset.public_images[:10])
    assert votes.shape == (10, 3)
    assert votes.dtype == np.int64
    np.testing.assert_array_equal(votes.sum(axis=1), 3)


def test_what_a_process_taught_votes_without_its_file_being_read_as_long_as_it_is_the_same(
    tmp_path: Path,
) -> None:
    """Of the first of a simulation, as many as there is room for; another simulation begins anew."""
    teachers: dict[str, Any] = {name: SimpleNamespace(own_bytes=100) for name in "abcd"}

    def taught(name: str, folder: str = "one") -> Path:
        path = tmp_path / folder / name / "teacher-0.pt"
        path.parent.mkdir(parents=True)
        path.write_text(name)
        held.keep(path, teachers[name])
        return path

    held = _Taught(most=150)
    first, second, third = (taught(name) for name in "abc")
    assert held.find(first) is teachers["a"] and held.find(second) is teachers["b"]
    assert held.find(third) is None  # no room: it is read
    first.write_text("another")
    second.unlink()
    assert held.find(first) is None and held.find(second) is None
    other = taught("d", "two")
    assert held.find(other) is teachers["d"] and held.find(second) is None
    release_memory(forget=True)
    assert held.find(other) is None
