"""What a hospital is in every study: bound once, and every refusal is one of a fixed list."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders import make_terms, vary

from clients.hospital import Hospital
from clients.site import Site
from pate_fed.config.study import Study
from pate_fed.errors import InputError, IntegrityError
from pate_fed.protocol.messages import EndReply, Refusal, RefusalReply
from pate_fed.secure_sum import RefusedError, SumRefusal


@pytest.fixture
def hospital(tmp_path: Path) -> Hospital:
    return Hospital(Site(party="north", number=0, state_dir=tmp_path, simulated=False, study=Study()))


def test_the_first_terms_bind_also_a_new_process(hospital: Hospital, tmp_path: Path) -> None:
    assert hospital._agreed() is None
    assert hospital._agree(make_terms()) is None
    assert hospital._agree(vary(make_terms(), sigma2=9.0)) is Refusal.TERMS
    again = Hospital(Site(party="north", number=0, state_dir=tmp_path, simulated=False, study=Study()))
    assert again._agreed() == hospital._agreed() == make_terms()


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (InputError("Ann Smith, line 3"), Refusal.DATA),
        (IntegrityError("Ann Smith, line 3"), Refusal.FAULT),
        (RefusedError(SumRefusal.VERSION, "Ann Smith, line 3"), Refusal.VERSION),
        (RefusedError(SumRefusal.COORDINATOR, "Ann Smith, line 3"), Refusal.COORDINATOR),
        (RefusedError(SumRefusal.MALFORMED, "Ann Smith, line 3"), Refusal.MALFORMED),
    ],
)
def test_why_it_refuses_is_a_code_outside_and_a_sentence_in_its_own_log(
    hospital: Hospital, tmp_path: Path, error: Exception, reason: Refusal
) -> None:
    def fails() -> EndReply:
        raise error

    assert hospital._answered(fails) == RefusalReply(party="north", code=reason.name)
    log = (tmp_path / "log.jsonl").read_text(encoding="utf-8")
    assert "Ann Smith, line 3" in log
    assert f'"reason": "{reason.name}"' in log


def test_an_objection_is_its_reason_and_its_sentence_stays(hospital: Hospital, tmp_path: Path) -> None:
    assert hospital._objects(None) is None
    assert hospital._objects((Refusal.POLICY_STUDY, "lungs are not ours")) is Refusal.POLICY_STUDY
    assert "lungs are not ours" in (tmp_path / "log.jsonl").read_text(encoding="utf-8")
