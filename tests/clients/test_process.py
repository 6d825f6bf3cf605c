"""A hospital with an admission: what is wrong with its records is said before it connects to anyone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from builders import make_label_terms
from vote_study import make_vote_study

from clients.process import _described
from pate_fed.client import main
from pate_fed.flower.supernode import Exchange
from pate_fed.identity import Authority, HospitalIdentity, make_request
from pate_fed.protocol.messages import TEACH, Record


def _semicolons(text: str) -> str:
    return text.replace(",", ";")


def _one_patient(text: str) -> str:
    head, *rows = text.splitlines()
    return "\n".join([head, *("P1" + row[row.index(",") :] for row in rows)])


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_vote_study(tmp_path_factory.mktemp("own") / "demo", teachers=20).folder


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_semicolons, "separated by ';'"),
        (_one_patient, "20 teachers for 1 patients"),
        (lambda text: text.replace("benign", "good", 1), "'good' is none of the classes"),
    ],
)
def test_records_that_cannot_be_used_connect_to_nobody(
    demo: Path,
    spoil: Callable[[str], str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PATE_FED_SITE", "")  # which the client sets
    records = tmp_path / "records.csv"
    records.write_text(spoil((demo / "north.csv").read_text(encoding="utf-8")), encoding="utf-8")
    options = ["--hospital", "north", "--data", str(records), "--tls-dir", str(demo / "identity-north")]
    assert main([*options, "--state-dir", str(tmp_path / "state")]) == 2
    shown = capsys.readouterr()
    assert f"error: {records}" in shown.err and words in shown.err
    assert "connecting" not in shown.err
    assert shown.out == "FAILED  hospital=north wrong input\n"


def test_labels_that_cannot_be_used_connect_to_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATE_FED_SITE", "")
    terms = make_label_terms()
    authority = Authority.init(tmp_path / "ca", address="127.0.0.1:9", terms=terms.to_json(), days=90)
    authority.admit(make_request(tmp_path / "own", "north"), days=90).write(tmp_path / "north.admission")
    HospitalIdentity.accept(tmp_path / "own", tmp_path / "north.admission")
    labels = tmp_path / "labels.csv"
    labels.write_text("index,label\n4,0\n99,2\n")
    options = ["--hospital", "north", "--data", str(labels), "--tls-dir", str(tmp_path / "own")]
    assert main([*options, "--state-dir", str(tmp_path / "state")]) == 2
    shown = capsys.readouterr()
    assert "be from 0 to 49" in shown.err and "connecting" not in shown.err


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        ({"kind": "refused", "party": "north", "code": "POLICY"}, "code that is not this hospital's"),
        ({"kind": "refused", "party": "north", "code": "MALFORMED"}, "cannot be read was sent"),
        ({}, "cannot be read was sent"),
    ],
)
def test_what_could_not_be_read_is_told_as_it_was(reply: Record, told: str) -> None:
    done = Exchange(message_type=TEACH, request=None, reply=reply, seconds=1.0, bytes_out=9)
    assert told in (_described(done) or "")
