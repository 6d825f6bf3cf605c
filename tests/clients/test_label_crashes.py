"""A hospital with private labels that dies at every single write: still no second answer ever leaves it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from dying import Writes

from pate_fed.flower import prepare_environment

prepare_environment()

from clients.hospital import Hospital
from clients.local import local_site
from clients.site_files import LocalSettings
from pate_fed.kinds.make import PublicPool, label_terms
from pate_fed.kinds.terms import Terms
from pate_fed.protocol.messages import AnswerReply, JoinReply, JoinRequest, Question

RECORDS, CLASSES, HOSPITALS = 60, 3, 4
LABEL = np.arange(RECORDS) % CLASSES


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> Writes:
    return Writes(monkeypatch)


class World:
    """Four hospitals' disks; what the first one has sent about its labels."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        folder.mkdir()
        patch.setenv("XDG_STATE_HOME", str(folder / "home"))
        self.folder = folder
        self.sent: list[bytes] = []
        for number in range(HOSPITALS):
            (folder / f"hospital-{number}").mkdir()
            self.write_labels(number, LABEL)

    def write_labels(self, number: int, label: np.ndarray) -> None:
        rows = "".join(f"{index},{label[index]}\n" for index in range(number, RECORDS, HOSPITALS))
        (self.folder / f"hospital-{number}" / "labels.csv").write_text(f"index,label\n{rows}")

    def terms(self, epsilon: float) -> Terms:
        pool = PublicPool(size=RECORDS, digest="ab" * 32, num_classes=CLASSES, shape=(8, 8, 1))
        return label_terms(
            pool, num_clients=HOSPITALS, quorum=0.75, epsilon=epsilon, seed=None, clusters=None
        )

    def hospital(self, number: int) -> Hospital:
        """A new process; as careful as a real one."""
        own = self.folder / f"hospital-{number}"
        return Hospital(
            local_site(LocalSettings(hospital=own.name, data=str(own / "labels.csv"), state_dir=own))
        )

    def ask(self, epsilon: float) -> str:
        """The first hospital's response, or why there is none."""
        terms = self.terms(epsilon)
        ready = self.hospital(0).join(JoinRequest(terms=terms.to_json()))
        if not isinstance(ready, JoinReply):
            return ready.code
        every = np.arange(RECORDS, dtype=np.int64)
        reply = self.hospital(0).answer(Question(terms_digest=terms.digest, batch=0, index=every))
        if not isinstance(reply, AnswerReply):
            return reply.code
        self.sent.append(reply.answer.tobytes())
        return "answered"


def test_a_response_leaves_once_whenever_the_hospital_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: Writes
) -> None:
    at, lived = 0, False
    while not lived:
        at += 1
        world = World(tmp_path / str(at), monkeypatch)
        writes.die(at)
        lived = writes.once(0, lambda: world.ask(0.1)) == "answered"  # noqa: B023
        world.write_labels(0, (LABEL + 1) % CLASSES)  # corrected meanwhile: a second draw would tell more
        assert world.ask(0.1) == world.ask(0.1) == "answered"
        assert world.ask(0.2) == "ANSWERED"
        assert len(set(world.sent)) == 1
    assert at > 10  # it died at that many moments before
