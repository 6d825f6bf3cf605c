"""A hospital with private labels that dies at every single write: still no second answer ever leaves it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from dying import Writes

from pate_fed.flower import prepare_environment

prepare_environment()

from clients.label_hospital import LabelHospital
from clients.label_site import read_label_site
from pate_fed.kinds.labels import LabelTerms, PublicPool, label_terms
from pate_fed.protocol.messages import LabelReply, LabelRequest

RECORDS, CLASSES, HOSPITALS = 60, 3, 4
LABEL = np.arange(RECORDS) % CLASSES
NOTHING = np.empty(0, dtype=np.int64)


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> Writes:
    return Writes(monkeypatch)


class World:
    """Four hospitals' disks; what the first one has sent about its labels."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        folder.mkdir()
        patch.setenv("PATE_FED_SITE", str(folder))
        self.folder = folder
        self.sent: list[bytes] = []
        for number in range(HOSPITALS):
            (folder / f"hospital-{number}").mkdir()
            self.write_labels(number, LABEL)

    def write_labels(self, number: int, label: np.ndarray) -> None:
        rows = "".join(f"{index},{label[index]}\n" for index in range(number, RECORDS, HOSPITALS))
        (self.folder / f"hospital-{number}" / "labels.csv").write_text(f"index,label\n{rows}")

    def terms(self, epsilon: float) -> LabelTerms:
        pool = PublicPool(size=RECORDS, digest="ab" * 32, num_classes=CLASSES)
        return label_terms(
            pool, num_clients=HOSPITALS, quorum=0.75, epsilon=epsilon, seed=None, clusters=None
        )

    def hospital(self, number: int) -> LabelHospital:
        """A new process; as careful as a real one."""
        return LabelHospital(replace(read_label_site({"partition-id": number}), simulated=False))

    def ask(self, epsilon: float) -> str:
        """The first hospital's response, or why there is none."""
        request = LabelRequest(terms=self.terms(epsilon).to_json(), clusters=NOTHING)
        reply = self.hospital(0).answer(request)
        if not isinstance(reply, LabelReply):
            return reply.code
        self.sent.append(reply.index.tobytes() + reply.label.tobytes())
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
