"""What a hospital holds to in every kind of study: agreement, policy, masks, noise, and one answer."""

from __future__ import annotations

import json
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dying import Writes
from kinds import (
    HOSPITAL_KINDS,
    HOSPITALS,
    ClassSums,
    ExactClassSums,
    ExactOwn,
    ExactRoundSums,
    HospitalKind,
    NoisyVotes,
    Own,
    RoundSums,
    Votes,
)

from clients.account import Account
from clients.base import SummingHospital
from clients.site import Site
from pate_fed.errors import IntegrityError
from pate_fed.secure_sum import CoordinatorSum, Identity, RefusedError, SumRange
from pate_fed.secure_sum.keys import pack
from pate_fed.secure_sum.messages import Enrolment, MaskedVector


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Accounts of these hospitals alone."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))


@pytest.fixture(scope="module")
def agreed() -> dict[Any, Any]:
    """What came of the first hospitals that agreed to the same with the same files."""
    return {}


# Kinds that are near to each other: by default a test has one of each pair, and the next test the other. All
# other kinds are in every test.
PAIRS = (Votes, NoisyVotes), (ClassSums, ExactClassSums), (RoundSums, ExactRoundSums), (Own, ExactOwn)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every kind, of which half of those in pairs are slow: in the next test the other half."""
    if "kind" in metafunc.fixturenames:
        tests = [name for name in vars(metafunc.module) if name.startswith("test_")]
        turn = tests.index(metafunc.function.__name__)
        left_out = [pair[(turn + place) % 2] for place, pair in enumerate(PAIRS)]
        kinds = [
            pytest.param(kind, id=kind.__name__, marks=[pytest.mark.slow] * (kind in left_out))
            for kind in HOSPITAL_KINDS
        ]
        metafunc.parametrize("kind", kinds, indirect=True)


@pytest.fixture
def kind(
    request: pytest.FixtureRequest, tmp_path: Path, agreed: dict[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> HospitalKind:
    made: HospitalKind = request.param(tmp_path)
    first, whole = made.sum, made.close

    def close(threshold: int | None = None) -> None:
        """All agree and enrol; those that nobody asked anything yet get the disks of others that did."""
        if made.sum is not first or (tmp_path / "home").exists() or [*tmp_path.glob("state-*/*")]:
            whole(threshold)
            return
        given = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
        key = (request.param, made.terms.digest, threshold, *sorted(given.items()))
        if key not in agreed:
            whole(threshold)
            agreed[key] = made.sum._identity, made.sum.to_bytes(), made.roster, _disks(tmp_path)
            return
        identity, saved, made.roster, disks = agreed[key]
        made.sum = CoordinatorSum.resume(identity, saved)
        for path, mode, content in disks:
            if content is None:
                (tmp_path / path).mkdir(exist_ok=True)
            else:
                (tmp_path / path).write_bytes(content)
            (tmp_path / path).chmod(mode)

    monkeypatch.setattr(made, "close", close)
    return made


def _disks(folder: Path) -> list[tuple[Path, int, bytes | None]]:
    """Hospitals' states and accounts: each path with its mode and, of a file, its content; folders first."""
    roots = [*folder.glob("state-*"), folder / "home"]
    paths = sorted(path for root in roots for path in (root, *root.rglob("*")))
    contents = [path.read_bytes() if path.is_file() else None for path in paths]
    modes = [stat.S_IMODE(path.stat().st_mode) for path in paths]
    return list(zip((path.relative_to(folder) for path in paths), modes, contents, strict=True))


def _code(reply: Any) -> str:
    return str(getattr(reply, "code", f"no refusal: {type(reply).__name__}"))


def _turned(kind: HospitalKind) -> np.ndarray:
    """The same places, in another order where the kind has one."""
    return kind.places()[::-1] if kind.in_parts else kind.places()


def _opened(kind: HospitalKind, batch: int = 0, index: np.ndarray | None = None) -> tuple[Any, Any, Any]:
    """A question whose batch all have opened, its batch, and the first one's request for its vector."""
    question = kind.question(batch, index)
    made = kind.open(question)
    for number in range(HOSPITALS):
        made.take(kind.send(number, question, made.opening))
    return question, made, made.mask_requests()["hospital-0"]


# Agreement.


def test_it_agrees_enrols_and_holds_on_to_its_first_terms(kind: HospitalKind) -> None:
    first = kind.agree()
    assert Enrolment.from_bytes(first.enrolment).party == "hospital-0"
    assert _code(kind.agree(terms=kind.other_terms())) in ("TERMS", "ANSWERED")
    assert repr(kind.agree().to_record()) == repr(first.to_record())
    assert kind.answers() == 0
    [booked] = Account("hospital-0").bookings()
    assert booked.study == kind.terms.study and not booked.asked  # what agreement costs


def test_terms_that_are_malformed_leave_no_trace(kind: HospitalKind) -> None:
    good = json.loads(kind.terms.to_json())
    texts = [{name: value for name, value in good.items() if name != lacks} for lacks in good]
    texts += [{**good, name: [[None]]} for name in good] + [{**good, "extra": 1}]
    for text in map(json.dumps, texts):
        assert _code(kind.agree(text=text)) == "MALFORMED", text
    assert not [*kind.settings[0].state_dir.rglob("terms.json")]


def test_who_was_admitted_to_another_study_agrees_to_none(kind: HospitalKind) -> None:
    kind.settings[0] = replace(kind.settings[0], terms_digest="0" * 64)
    assert _code(kind.agree()) == "TERMS"


@pytest.mark.parametrize(
    ("changes", "at_hospitals_alone"),
    [
        ({"least_clients": 3}, False),
        ({"sigma_party": 0.5}, True),
        ({"sigma_party": None}, True),
        ({"sigma_party": float("nan")}, True),
    ],
)
def test_terms_that_hide_less_than_they_say_are_refused(
    changes: dict[str, Any], at_hospitals_alone: bool, kind: HospitalKind
) -> None:
    text = json.dumps({**json.loads(kind.terms.to_json()), **changes})
    if kind.at_hospitals or not at_hospitals_alone:
        assert _code(kind.agree(text=text)) in ("TERMS", "MALFORMED", "DATA")
        assert not [*kind.settings[0].state_dir.rglob("terms.json")]


def test_records_that_cannot_be_used_are_told_to_its_own_people_alone(kind: HospitalKind) -> None:
    kind.data(0).write_text("x,sex,y,who\nAnn Smith,?,?,?\n", encoding="utf-8")
    reply = kind.agree()
    assert _code(reply) == "DATA" and "Ann" not in repr(reply.to_record())
    assert any(event["event"] == "data" for event in kind.log(0))


def test_only_its_own_coordinator_is_followed(kind: HospitalKind) -> None:
    kind.close()
    other = CoordinatorSum(Identity.generate(), study=kind.terms.digest)
    assert _code(kind.agree(enrol=other.enrol_request().to_bytes())) == "COORDINATOR"
    for enrol in (b"", b"junk", kind.roster):
        assert _code(kind.agree(enrol=enrol)) in ("MALFORMED", "FAULT")
    newer = pack({**kind.sum.enrol_request().to_record(), "version": 4})
    assert _code(kind.agree(enrol=newer)) == "VERSION"


# Policy.


POLICIES = {
    'studies = ["other"]': "POLICY_STUDY",
    'pools = ["other"]': "POLICY_POOL",
    'classes = ["cat"]': "POLICY_CLASSES",
    "least_hospitals = 5": "POLICY_HOSPITALS",
    "epsilon_public = 0.01": "POLICY_PUBLIC",
    "epsilon_coordinator = 0.01": "POLICY_COORDINATOR",
    "epsilon_public_total = 0.01": "POLICY_TOTAL",
    "epsilon_public = 100\ndelta = 1e-9": "POLICY_DELTA",
    'units = ["record"]': "POLICY_UNIT",
    'adjacencies = ["add-or-remove-one"]': "POLICY_ADJACENCY",
}


def test_a_policy_holds_at_the_agreement_and_in_the_middle_of_a_sum(kind: HospitalKind) -> None:
    for line, code in POLICIES.items():
        kind.set_policy(0, line)
        assert _code(kind.agree()) == code
    assert not [*kind.settings[0].state_dir.rglob("terms.json")]
    kind.set_policy(0, "")
    kind.close()
    question, _, request = _opened(kind)
    for line, code in POLICIES.items():
        kind.set_policy(0, line)
        assert _code(kind.send(0, question, request)) == code
        assert _code(kind.agree()) == code
    assert kind.answers() == 0
    kind.set_policy(0, "")
    assert isinstance(kind.send(0, question, request), MaskedVector)


def test_a_policy_that_reckons_with_more_colluders_refuses_shares_of_noise(kind: HospitalKind) -> None:
    kind.set_policy(0, "least_colluders = 3")
    assert (_code(kind.agree()) == "POLICY_COLLUDERS") == kind.at_hospitals


def test_seeded_noise_needs_a_line_in_the_policy_and_a_real_hospital_draws_its_own(
    kind: HospitalKind,
) -> None:
    kind.terms = kind.make_terms(seed=3)
    kind.sum = CoordinatorSum(Identity.generate(), study=kind.terms.digest)
    assert _code(kind.agree()) == "POLICY_SEED"
    kind.set_policy(0, "seeded_noise = true")
    assert kind.agree().enrolment
    assert kind.hospital(0)._site.noise(0).private


# Masks and noise.


def test_the_sum_of_all_is_what_their_records_say_and_the_noise_that_was_agreed(kind: HospitalKind) -> None:
    kind.close()
    exact = sum(kind.exact(number) for number in range(HOSPITALS))
    total = kind.total(kind.question())
    assert total.shape == (len(kind.places()), kind.columns)
    noise, share = (total - exact).astype(float), kind.terms.sigma_party
    if not kind.at_hospitals:
        assert share is None and not noise.any()
    else:
        sigma = share * HOSPITALS**0.5
        assert 0.05 * sigma < noise.std() < 3 * sigma  # of eight draws at least
    assert [kind.answers(number) for number in range(HOSPITALS)] == [1] * HOSPITALS


def test_every_vector_has_the_noise_that_was_agreed_and_its_own(kind: HospitalKind) -> None:
    kind.close()
    hospital, exact = kind.hospital(0), kind.exact(0)
    draws = len(kind.places()) * kind.columns
    asked = -(-800 // draws) if kind.at_hospitals else 2
    vectors = [hospital._vector(kind.terms, kind.question()) for _ in range(max(asked, 2))]
    noise = (np.array(vectors) - exact).astype(float)
    if kind.at_hospitals:  # 800 draws at least: their mean square is within a third of what is charged
        assert (noise**2).mean() == pytest.approx(kind.terms.sigma_party**2, rel=0.33)
        assert len(np.unique(noise, axis=0)) >= len(noise) - 1  # two small vectors may be alike
    else:
        assert not noise.any()
    assert hospital.journal.claim(kind.question())
    with pytest.raises(RefusedError, match="was opened before"):
        hospital._vector(kind.terms, kind.question(batch=1))


def test_an_identical_step_gets_the_identical_reply_and_another_batch_none(
    kind: HospitalKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind.close()
    question = kind.question()
    batch = kind.open(question)
    for requests in batch.rounds():
        for party, step in requests.items():
            number = int(party[-1])
            first = kind.send(number, question, step)
            with monkeypatch.context() as patch:
                for owner in (type(kind.hospital(0)), SummingHospital):
                    patch.setattr(owner, "_count", None)  # nobody counts again, or draws noise
                patch.setattr(Site, "noise", None)
                again = kind.send(number, question, step)
            assert again.to_bytes() == first.to_bytes()
            batch.take(again)
    batch.total()
    second = kind.question(1, _turned(kind))
    assert "REPEATED" in _code(kind.send(0, second, kind.open(second).opening))
    assert kind.answers() == 1


def test_of_two_batches_about_one_question_one_gets_a_vector(kind: HospitalKind) -> None:
    kind.close()
    first, second = _opened(kind), _opened(kind, 1, _turned(kind))
    assert not any(booked.asked for booked in Account("hospital-0").bookings())
    assert isinstance(kind.send(0, first[0], first[2]), MaskedVector)
    assert all(booked.asked for booked in Account("hospital-0").bookings())
    assert "REPEATED" in _code(kind.send(0, second[0], second[2]))


def test_a_batch_is_tied_to_its_question(kind: HospitalKind) -> None:
    kind.close()
    question, _, request = _opened(kind)
    opening = kind.open(kind.question(batch=3)).opening
    assert _code(kind.send(0, question, opening)) == "BATCH_CHANGED"
    assert _code(kind.send(0, question, request, batch=1)) == "BATCH_CHANGED"
    assert _code(kind.send(0, kind.question(batch=3), request)) == "BATCH_CHANGED"
    if kind.in_parts:
        for other in (kind.question(index=[0, 1]), kind.question(index=_turned(kind))):
            assert _code(kind.send(0, other, request)) == "BATCH_CHANGED"
    empty = np.empty(0, dtype=np.int64)
    assert _code(kind.send(0, question, request, index=empty)) == "BATCH_CHANGED"
    assert kind.answers() == 0
    assert isinstance(kind.send(0, question, request), MaskedVector)


def test_a_batch_of_another_shape_is_refused(kind: HospitalKind) -> None:
    kind.close()
    length = len(kind.places()) * kind.columns
    wrong = SumRange.votes(9) if kind.at_hospitals or not kind.in_parts else SumRange.noisy()
    for batch, change in enumerate(({"length": length - 1}, {"length": length + 1}, {"sum_range": wrong})):
        question = kind.question(batch)
        assert _code(kind.send(0, question, kind.open(question, **change).opening)) == "MALFORMED"


def test_a_question_of_another_study_or_of_what_is_not_there_is_refused(kind: HospitalKind) -> None:
    kind.close()
    places, opening = kind.places(), kind.open(kind.question()).opening
    for digest in ("0" * 64, ""):
        assert _code(kind.send(0, kind.question(), opening, terms_digest=digest)) in ("TERMS", "MALFORMED")
    for wrong in (
        [*places, places[-1]],
        [*places, 10**6],
        [-1, *places],
        np.stack([places, places]),
    ):
        assert _code(kind.send(0, kind.question(), opening, index=np.array(wrong))) == "MALFORMED"
    assert _code(kind.send(0, kind.question(), opening, measured=1)) in ("MALFORMED", "POLICY")
    assert _code(kind.send(0, kind.question(), opening, given=b"weights")) == "MALFORMED"
    with pytest.raises(IntegrityError):
        kind.send(1, kind.question(), b"nonsense")
    for batch, part in enumerate((places[1:], places[::-1]), 1):
        asked = kind.question(batch, part)
        assert (_code(kind.send(0, asked, kind.open(asked).opening)) == "MALFORMED") != kind.in_parts
    empty = np.empty(0, dtype=np.int64)
    assert _code(kind.send(0, kind.question(), opening, index=empty, terms_digest="0" * 64)) == "TERMS"
    assert kind.answers() == 0


def test_a_roster_that_lets_fewer_survive_than_the_terms_is_refused(kind: HospitalKind) -> None:
    kind.terms = kind.other_terms()  # all five
    kind.sum = CoordinatorSum(Identity.generate(), study=kind.terms.digest)
    kind.close(threshold=HOSPITALS - 1)
    question = kind.question()
    assert _code(kind.send(0, question, kind.open(question).opening)) == "THRESHOLD"


def test_a_step_of_a_newer_version_is_refused(kind: HospitalKind) -> None:
    kind.close()
    question = kind.question()
    newer = pack({**kind.open(question).opening.to_record(), "version": 4})
    assert _code(kind.send(0, question, newer)) == "VERSION"


def test_nothing_exact_lies_on_its_disk_and_all_that_does_is_its_own(kind: HospitalKind) -> None:
    kind.close()
    kind.total(kind.question())
    exact, state = kind.exact(0), kind.settings[0].state_dir
    kept = b"|".join(path.read_bytes() for path in state.rglob("*") if path.is_file())
    for form in ("<i8", "<i4", "<u4", "<u2"):
        assert exact.astype(form).tobytes() not in kept
    for path in (state, *state.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


# Death at every write.


@pytest.mark.parametrize("stride", [99, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("made", HOSPITAL_KINDS, ids=lambda kind: kind.__name__)
def test_one_vector_leaves_whenever_the_hospital_dies(
    stride: int, made: type[HospitalKind], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It dies while it agrees, enrols, shares, counts, signs or unmasks, and is asked the same again.

    Each kind begins nine writes later than the one before, so that together they die at every ninth.
    """
    writes, deaths, lived = Writes(monkeypatch), 0, False
    at = 9 * HOSPITAL_KINDS.index(made) % stride + 1 - stride
    while not lived:
        at += stride
        (folder := tmp_path / str(at)).mkdir()
        monkeypatch.setenv("XDG_STATE_HOME", str(folder / "home"))
        kind, vectors = made(folder), list[bytes]()
        writes.die(at)
        for number in range(HOSPITALS):
            reply = writes.twice(number, lambda: kind.agree(number))  # noqa: B023
            kind.sum.admit(Enrolment.from_bytes(reply.enrolment))
        kind.sum.close_roster(threshold=kind.terms.least_clients)
        question = kind.question()
        batch = kind.open(question)
        for requests in batch.rounds():
            for party, step in requests.items():
                number = int(party[-1])
                said = writes.twice(number, lambda: kind.send(number, question, step))  # noqa: B023
                if isinstance(said, MaskedVector) and number == 0:
                    vectors.append(said.vector.tobytes())
                batch.take(said)
        assert batch.total().size
        lived = writes.done < at
        deaths += not lived
        again = kind.question(batch=1)
        assert "REPEATED" in _code(kind.send(0, again, kind.open(again).opening))
        assert len(vectors) == 1
    assert deaths
