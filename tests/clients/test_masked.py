"""A hospital under masks: votes leave it masked only, once a batch, for the question that it agreed to."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import vary

from pate_fed.flower import prepare_environment
from pate_fed.kinds.make import make_terms
from pate_fed.kinds.terms import Terms

prepare_environment()

import clients.base
import clients.site
from clients.account import Account
from clients.base import SUM_FOLDER, forget_replies, is_sound
from clients.hospital import Hospital
from clients.policy import Policy
from clients.site import Site
from clients.state_dir import LocalSettings
from pate_fed.config.backend import Engine
from pate_fed.config.sections import Aggregation, Data, Parties
from pate_fed.config.study import Study
from pate_fed.config.trust import TrustModel
from pate_fed.data import GlyphSettings, pool_digest
from pate_fed.identity import Authority, HospitalIdentity, make_request, read_request
from pate_fed.learning import TeacherSettings
from pate_fed.protocol.heads import Statement, heads_text
from pate_fed.protocol.messages import (
    JoinReply,
    JoinRequest,
    Question,
    Refusal,
    RefusalReply,
    SumReply,
    SumRequest,
)
from pate_fed.secure_sum import (
    CoordinatorSum,
    Identity,
    PlayedSeats,
    SumBatch,
    SumRange,
    fingerprint,
    read_reply,
)
from pate_fed.secure_sum.messages import SEALED_BYTES, Enrolment, SumRefused

PARTIES, CLASSES = 4, 3
PLAIN = Study(
    parties=Parties(num_clients=PARTIES, teachers_per_client=2),
    data=Data(glyph=GlyphSettings(classes=CLASSES, private=120, public=40)),
    teacher=TeacherSettings(name="small-cnn", epochs=1),
    engine=Engine(device="cpu"),
).resolve()
MASKED = replace(PLAIN, secrecy=TrustModel(secure_sum=True))
THREE_OF_FOUR = replace(MASKED, seed=5, parties=replace(MASKED.parties, quorum=0.75))
NOISY = replace(
    PLAIN,
    aggregation=Aggregation(),
    secrecy=TrustModel(secure_sum=True, noise_at="hospitals"),
).resolve()


def _site(study: Study, folder: Path, number: int) -> Site:
    name = f"p{number}"
    return Site(party=name, number=number, study=study, state_dir=folder / name, simulated=True)


class Federation:
    """Four real hospitals on one disk, and a coordinator that a test may make do anything."""

    def __init__(self, study: Study, folder: Path) -> None:
        sites = [_site(study, folder, number) for number in range(PARTIES)]
        self.sites, self.hospitals = sites, [Hospital(site) for site in sites]
        self.terms = make_terms(study, sites[0].dataset)
        self.sum = CoordinatorSum(
            Identity.generate(), study=self.terms.digest, colluders=self.terms.colluders
        )
        self.stated: dict[str, Statement] = {}
        self.taught = [self.join(number) for number in range(PARTIES)]

    def join(self, number: int, **changes: Any) -> JoinReply | RefusalReply:
        enrol = self.sum.enrol_request().to_bytes() if self.terms.secure_sum else b""
        request = JoinRequest(**{"terms": self.terms.to_json(), "enrol": enrol, **changes})
        return self.hospitals[number].join(request)

    def close(self, threshold: int | None = None) -> None:
        for reply in self.taught:
            assert isinstance(reply, JoinReply)
            self.sum.admit(Enrolment.from_bytes(reply.enrolment))
        self.sum.close_roster(threshold=threshold or self.terms.least_clients)

    def question(self, index: list[int], batch: int = 0, measured: int = 0) -> Question:
        places = np.array(index, dtype=np.int64)
        heads = heads_text({name: stated.head for name, stated in self.stated.items()})
        digest = self.terms.digest
        return Question(terms_digest=digest, batch=batch, index=places, measured=measured, heads=heads)

    def open(self, question: Question, **changes: Any) -> SumBatch:
        totals = SumRange.noisy() if self.terms.adds_noise else SumRange.votes(self.terms.num_teachers)
        values = {
            "batch": question.batch,
            "batch_digest": question.digest,
            "length": len(question.index) * CLASSES,
            "sum_range": totals,
        }
        return self.sum.open_batch(**{**values, **changes}, roster_rides=True)

    def send(self, number: int, question: Question, message: Any, **changes: Any) -> Any:
        values = {
            "terms_digest": question.terms_digest,
            "batch": question.batch,
            "index": question.index,
            "measured": question.measured,
            "heads": question.heads,
            "roster": self.sum.pin_request(f"p{number}").to_bytes() if self.terms.secure_sum else b"",
            "step": message.to_bytes(),
        }
        reply = self.hospitals[number].sum_step(SumRequest(**{**values, **changes}))
        if isinstance(reply, SumReply) and reply.statement:
            self.stated[reply.party] = Statement.read(reply.statement)
        return read_reply(reply.step) if isinstance(reply, SumReply) else reply

    def total(self, question: Question) -> np.ndarray:
        batch = self.open(question)
        for requests in batch.rounds():
            for party, step in requests.items():
                batch.take(self.send(int(party[1:]), question, step))
        return batch.total().reshape(-1, CLASSES)


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    made = Federation(MASKED, tmp_path)
    made.close()
    return made


def _with_policy(
    federation: Federation, number: int, text: str, folder: Path, *, sum_key: Path | None = None
) -> None:
    """Give one hospital a policy; from its next message on it is enforced."""
    policy = folder / f"policy-{number}.toml"
    policy.write_text(text, encoding="utf-8")
    site = federation.sites[number]
    settings = LocalSettings(
        hospital=site.party,
        data=f"part:{number}",
        state_dir=site.state_dir,
        policy=policy,
        sum_key=sum_key,
    )
    own = Site(
        party=site.party,
        number=number,
        study=site.study,
        state_dir=site.state_dir,
        simulated=False,
        settings=settings,
    )
    federation.hospitals[number] = Hospital(own)


def _listed(federation: Federation, *names: str) -> str:
    """A policy that has confirmed these hospitals, as they read their fingerprints out."""
    prints = {reply.party: Enrolment.from_bytes(reply.enrolment).identity for reply in federation.taught}  # type: ignore[union-attr]
    return "[trusted]\n" + "".join(f'{name} = "{fingerprint(prints[name])}"\n' for name in names)


def test_a_roster_of_invented_hospitals_gets_no_vector(federation: Federation, tmp_path: Path) -> None:
    """p0 is real, the other three are the coordinator's: total less what it made up would be p0's votes."""
    question = federation.question([0, 1])
    opening = federation.open(question).opening
    real = Federation(MASKED, tmp_path / "real")  # whom p0 has telephoned
    for text in (
        _listed(real, "p1", "p2", "p3"),  # under their names, with keys of the coordinator's own
        _listed(federation, "p1"),
        _listed(federation, "p0", "p1"),  # itself does not count
        "least_confirmed = 3\n" + _listed(federation, "p1", "p2"),
    ):
        _with_policy(federation, 0, text, tmp_path)
        assert _code(federation.send(0, question, opening)) == "POLICY_CONFIRMED"
    assert federation.hospitals[0].journal.answered() == 0
    log = (federation.sites[0].state_dir / "log.jsonl").read_text(encoding="utf-8")
    words = {name: _listed(federation, name).split('"')[1] for name in ("p1", "p2", "p3")}
    said = ", ".join(f"{name}={each}" for name, each in words.items())
    assert (
        "another key than was confirmed has p1, p2, p3: telephone it, with a new admission; the coor" in log
    )
    assert f"the coordinator says {said}" in log
    said = f"the coordinator says p2={words['p2']}, p3={words['p3']}"
    assert f"2 of the other 3 are wanted, not confirmed are p2, p3; {said}" in log
    _with_policy(federation, 0, _listed(federation, "p1", "p2"), tmp_path)
    assert federation.total(federation.question([0, 1], batch=1)).sum() == 2 * PARTIES * 2
    log = (federation.sites[0].state_dir / "log.jsonl").read_text(encoding="utf-8")
    assert log.count('"event": "not confirmed"') == 1 and f'"hospitals": "p3={words["p3"]}"' in log


@pytest.fixture
def admitted(federation: Federation, tmp_path: Path) -> dict[str, str]:
    """p0 was admitted with p1 and p2, p3 later; everybody's fingerprint by name."""
    made = Authority.init(tmp_path / "authority", address="a:1", terms=federation.terms.to_json(), days=9)
    requests = [make_request(tmp_path / name, name) for name in ("p0", "p1", "p2", "p3")]
    own, *_ = made.admit_all(requests[:3], days=9)
    made.admit(requests[3], days=9)
    own.write(tmp_path / "p0.admission")
    HospitalIdentity.offered(tmp_path / "p0", tmp_path / "p0.admission").take()
    shutil.rmtree(federation.sites[0].state_dir / SUM_FOLDER)  # it enrolled with another key
    return {path.stem: read_request(path).fingerprint for path in requests}


def _told(federation: Federation, hospitals: dict[str, str]) -> Any:
    return federation.join(0, hospitals="\n".join(f"{name}={words}" for name, words in hospitals.items()))


def test_a_late_change_of_who_takes_part_is_shown_before_anything_is_made_and_confirmed_again(
    federation: Federation, admitted: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Admitted, renewed, revoked: until enough of those who are there now are confirmed p0 does not join."""
    key, renewed = tmp_path / "p0" / "sum.key", {**admitted, "p1": admitted["p0"]}
    without = {name: words for name, words in admitted.items() if name != "p1"}
    named = [f'{name} = "{admitted[name]}"\n' for name in ("p1", "p2", "p3")]
    two, all_three = "".join(["[trusted]\n", *named[:2]]), "".join(["[trusted]\n", *named])

    def joins(text: str, hospitals: dict[str, str]) -> tuple[Any, str]:
        _with_policy(federation, 0, text, tmp_path, sum_key=key)
        reply = _told(federation, hospitals)
        return reply, capsys.readouterr().err

    reply, shown = joins(two, admitted)
    assert (
        isinstance(reply, JoinReply)
        and f"p0: the coordinator says, since the admission: new p3={admitted['p3']}\n" in shown
    )
    reply, shown = joins(all_three, renewed)
    assert _code(reply) == "POLICY_CONFIRMED" and f"new key p1={admitted['p0']}\n" in shown
    reply, shown = joins(two, without)
    assert _code(reply) == "POLICY_CONFIRMED" and shown.endswith(f"new p3={admitted['p3']}, gone p1\n")
    reply, _ = joins(all_three, without)
    assert isinstance(reply, JoinReply)
    log = (federation.sites[0].state_dir / "log.jsonl").read_text(encoding="utf-8")
    assert log.count('"event": "hospitals changed"') == 4 and "says: new p3=" in log
    for wrong in ({**admitted, "p1": "none"}, {"p=1": admitted["p1"]}, {"p\x1b1": admitted["p1"]}):
        assert _code(joins(two, wrong)[0]) == "MALFORMED"


def test_who_was_not_confirmed_is_not_summed_with_in_a_batch_under_way(
    federation: Federation, tmp_path: Path
) -> None:
    question = federation.question([0, 1])
    batch = federation.open(question)
    for number in range(PARTIES):
        batch.take(federation.send(number, question, batch.opening))
    request = batch.mask_requests()["p0"]
    _with_policy(federation, 0, "", tmp_path)  # a rehearsal has confirmed nobody
    assert isinstance(federation.hospitals[0]._site.policy, Policy)
    assert federation.hospitals[0]._site.policy.least_confirmed == 0
    _with_policy(federation, 0, _listed(federation, "p1"), tmp_path)
    assert _code(federation.send(0, question, request)) == "POLICY_CONFIRMED"


@pytest.mark.parametrize(
    ("colluders", "confirmed", "reason"), [(1, 1, True), (1, 2, False), (0, 2, True), (0, 3, False)]
)
def test_ε_counts_on_the_noise_of_confirmed_hospitals_alone(
    colluders: int, confirmed: int, reason: bool, tmp_path: Path
) -> None:
    secrecy = replace(NOISY.secrecy, colluders=colluders)
    study = replace(NOISY, aggregation=Aggregation(), secrecy=secrecy).resolve()
    federation = Federation(study, tmp_path)
    names = [f"p{number}" for number in range(1, 1 + confirmed)]
    _with_policy(federation, 0, _listed(federation, *names), tmp_path)
    reply = federation.join(0)
    assert (_code(reply) == "POLICY_CONFIRMED") if reason else isinstance(reply, JoinReply)


def test_a_policy_for_more_hospitals_refuses_the_study(federation: Federation, tmp_path: Path) -> None:
    _with_policy(federation, 0, "least_hospitals = 5\n", tmp_path)  # four are enough for the terms
    assert _code(federation.join(0)) == "POLICY_HOSPITALS"
    question = federation.question([0, 1])
    assert _code(federation.send(0, question, federation.open(question).opening)) == "POLICY_HOSPITALS"


@pytest.mark.parametrize("study", [PLAIN, MASKED], ids=["plain", "masked"])
def test_a_policy_that_changed_holds_for_the_next_batch(study: Study, tmp_path: Path) -> None:
    federation = Federation(study, tmp_path)
    question = federation.question([0, 1])
    if study is MASKED:
        federation.close()
        opening = federation.open(question).opening
    for text, code in (
        ("epsilon_public = 0.01\n", "POLICY_PUBLIC"),
        ("most_queries_a_day = 1\n", "POLICY_DAY"),
    ):
        _with_policy(federation, 0, f"plain_votes = true\n{text}", tmp_path)
        if study is MASKED:
            assert _code(federation.send(0, question, opening)) == code
        else:
            assert _code(federation.hospitals[0].answer(question)) == code
    assert federation.hospitals[0].journal.answered() == 0


def _code(reply: Any) -> str:
    assert isinstance(reply, RefusalReply | SumRefused)
    return reply.code


def test_plain_votes_are_refused_where_the_terms_ask_for_masks(federation: Federation) -> None:
    reply = federation.hospitals[0].answer(federation.question([0, 1]))
    assert _code(reply) == Refusal.PLAIN.name


def test_masks_are_refused_where_the_terms_know_none(tmp_path: Path, federation: Federation) -> None:
    plain = Federation(PLAIN, tmp_path / "plain")
    assert all(reply.enrolment == b"" for reply in plain.taught)  # type: ignore[union-attr]
    question = plain.question([0])
    assert _code(plain.send(0, question, federation.open(federation.question([0])).opening)) == "TERMS"
    assert _code(plain.join(0, enrol=federation.sum.enrol_request().to_bytes())) == "MALFORMED"


def test_a_vector_that_another_question_was_first_to_claim_never_leaves(federation: Federation) -> None:
    question, other = federation.question([1, 2]), federation.question([2, 3], batch=1)
    requests = []
    for each in (question, other):
        batch = federation.open(each)
        for number in range(PARTIES):
            batch.take(federation.send(number, each, batch.opening))
        requests.append(batch.mask_requests()["p0"])
    hospital = federation.hospitals[0]
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(hospital.journal, "claim", _die)
        federation.send(0, question, requests[0])  # its vector is on the disk, and was not sent
    assert federation.send(0, other, requests[1]).kind == "sum.masked"
    assert _code(federation.send(0, question, requests[0])) == "REPEATED"


def _die(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_study_counts_on_the_account_from_its_first_vector_on(
    federation: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that ends in agreement or in the exchange of keys has cost nobody anything."""
    account = Account("p0", folder=tmp_path / "account")
    monkeypatch.setattr(Site, "account", property(lambda site: account if site.party == "p0" else None))
    for _ in range(2):
        assert isinstance(federation.join(0), JoinReply)
    question = federation.question([1, 2])
    batch = federation.open(question)
    for number in range(PARTIES):
        batch.take(federation.send(number, question, batch.opening))
    [booked] = account.bookings()
    assert not booked.asked
    request = batch.mask_requests()["p0"]
    assert federation.send(0, question, request).kind == "sum.masked"
    for _ in range(2):
        [booked] = account.bookings()
        assert booked.asked
        assert isinstance(federation.join(0), JoinReply)  # as after a coordinator's death
    assert federation.send(0, question, request).kind == "sum.masked"


def test_a_vector_beyond_the_limit_over_all_studies_is_not_made(
    federation: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another study may have been asked since this one's keys were exchanged."""
    account = Account("p0", folder=tmp_path / "account")
    monkeypatch.setattr(Site, "account", property(lambda site: account if site.party == "p0" else None))
    question = federation.question([1, 2])
    batch = federation.open(question)
    for number in range(PARTIES):
        batch.take(federation.send(number, question, batch.opening))
    request = batch.mask_requests()["p0"]
    book, counts = account.book, list[bool]()

    def beyond(*given: Any, asked: bool, **named: Any) -> Any:
        counts.append(asked)
        return (Refusal.POLICY_TOTAL, "too much") if asked else book(*given, asked=asked, **named)

    monkeypatch.setattr(account, "book", beyond)
    assert _code(federation.send(0, question, request)) == "POLICY_TOTAL"
    assert counts == [False, True] and federation.hospitals[0].journal.answered() == 0
    monkeypatch.setattr(account, "book", book)
    assert federation.send(0, question, request).kind == "sum.masked"  # its secrets were not spent


def test_an_input_that_is_in_the_pool_twice_is_answered_about_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Summed again without hospital 0, its difference to the first sum would be that hospital's own votes."""
    dataset = _site(MASKED, tmp_path, 0).dataset
    images = np.array(dataset.public_images)
    images[7] = images[3]
    twice = replace(dataset, public_images=images, pool_digest=pool_digest(images))
    monkeypatch.setattr(clients.site, "_dataset", lambda study: twice)
    monkeypatch.setattr(clients.site, "_pool_digest", lambda study: twice.pool_digest)
    federation = Federation(MASKED, tmp_path)
    federation.close()
    federation.total(federation.question([3, 1]))
    again = federation.question([7, 2], batch=1)
    batch = federation.open(again)
    for number in range(1, PARTIES):
        assert _code(federation.send(number, again, batch.opening)) == "REPEATED"
    assert federation.total(federation.question([2], batch=2)).sum() == PARTIES * 2


def test_nothing_is_masked_without_all_teachers(federation: Federation) -> None:
    question = federation.question([0, 1])
    (federation.sites[0].state_dir / "teacher-1.pt").unlink()
    assert _code(federation.send(0, question, federation.open(question).opening)) == "NOT_READY"


@pytest.mark.parametrize("simulated", [True, False])
def test_only_simulated_hospitals_share_what_they_agreed_on(
    simulated: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = PlayedSeats()
    monkeypatch.setattr(clients.base, "_PLAYED", played)
    made = Federation(MASKED, tmp_path)
    made.hospitals = [Hospital(replace(site, simulated=simulated)) for site in made.sites]
    made.close()
    question = made.question([0, 1])
    opening = made.open(question).opening
    for number in range(PARTIES):
        assert made.send(number, question, opening).kind == "sum.shares"
        assert repr(played).startswith(f"PlayedSeats({number + 1 if simulated else 0} ")


@pytest.mark.parametrize(("simulated", "alone"), [(True, True), (True, False), (False, True)])
def test_only_a_simulation_of_one_process_keeps_its_machines_in_memory(
    simulated: bool, alone: bool, tmp_path: Path
) -> None:
    study = replace(MASKED, seed=5)  # real hospitals without one deal records by a key of their own
    made, disk = Federation(study, tmp_path / "memory"), Federation(study, tmp_path / "disk")
    sites = [replace(site, simulated=simulated, alone=alone) for site in made.sites]
    made.hospitals = [Hospital(replace(site, state_dir=tmp_path / "n" / site.party)) for site in sites]
    made.taught = [made.join(number) for number in range(PARTIES)]
    for federation in (made, disk):
        federation.close()
    question = made.question([0, 1, 7])
    np.testing.assert_array_equal(made.total(question), disk.total(disk.question([0, 1, 7])))
    again = made.question([0, 1, 7], batch=1)
    assert isinstance(made.send(0, again, made.open(again).opening), SumRefused)  # claimed by now
    in_memory = simulated and alone
    assert [(tmp_path / "n" / f"p{number}" / "secure_sum").exists() for number in range(PARTIES)] == [
        not in_memory
    ] * PARTIES
    kept = [folder for folder in clients.base._MACHINES if folder.is_relative_to(tmp_path)]
    assert len(kept) == (PARTIES if in_memory else 0)
    for number in range(PARTIES if in_memory else 0):
        forget_replies(sites[number], tmp_path / "n" / f"p{number}")
    assert not [folder for folder in clients.base._MACHINES if folder.is_relative_to(tmp_path)]


def test_only_a_simulation_repeats_its_noise(tmp_path: Path) -> None:
    study = replace(NOISY, seed=5)
    first, second = Federation(study, tmp_path / "a"), Federation(study, tmp_path / "b")
    for made in (first, second):
        made.close()
    index = list(range(30))
    one = first.total(first.question(index))
    np.testing.assert_array_equal(one, second.total(second.question(index)))
    real = Federation(study, tmp_path / "c")
    real.hospitals = [Hospital(replace(site, simulated=False)) for site in real.sites]
    real.close()
    assert (real.total(real.question(index)) != one).any()


def test_nothing_is_measured_under_hospitals_noise(tmp_path: Path) -> None:
    noisy = Federation(NOISY, tmp_path)
    noisy.close()
    question = noisy.question([0, 1], measured=1)
    assert _code(noisy.send(0, question, noisy.open(question).opening)) == "POLICY"


def _terms(study: Study, tmp_path: Path) -> Terms:
    return make_terms(study, _site(study, tmp_path, 0).dataset)


@pytest.mark.parametrize(
    "changes",
    [
        {"least_clients": 2},
        {"sigma_party": 1.0},
        {"sigma2": 50.0},
        {"colluders": 3},
    ],
)
def test_terms_that_hide_less_than_they_say_are_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    terms = _terms(NOISY, tmp_path)
    assert is_sound(terms)
    worse = vary(terms, **changes)
    assert not is_sound(worse)
    assert _code(Hospital(_site(NOISY, tmp_path, 0)).join(JoinRequest(terms=worse.to_json()))) == "TERMS"


@pytest.mark.parametrize("changes", [{"sigma_party": None}, {"secrecy": {"secure_sum": False}}])
def test_terms_that_contradict_themselves_are_malformed(changes: dict[str, Any], tmp_path: Path) -> None:
    plain = json.loads(_terms(NOISY, tmp_path).to_json())
    for name, change in changes.items():
        plain[name] = {**plain[name], **change} if isinstance(change, dict) else change
    answer = Hospital(_site(NOISY, tmp_path, 0)).join(JoinRequest(terms=json.dumps(plain)))
    assert _code(answer) == "MALFORMED"


def test_masks_over_too_few_are_refused_without_noise_too(tmp_path: Path) -> None:
    assert not is_sound(replace(_terms(MASKED, tmp_path), least_clients=2))


def test_plain_terms_are_sound(tmp_path: Path) -> None:
    assert is_sound(_terms(PLAIN, tmp_path))
    assert is_sound(_terms(MASKED, tmp_path))


def _wrong_shares(federation: Federation, question: Question, victim: int) -> SumBatch:
    """A batch in which p3 seals wrongly for one hospital, with the complaint about it."""
    batch = federation.open(question)
    for number in range(PARTIES):
        reply = federation.send(number, question, batch.opening)
        if number == 3:
            sealed = bytearray(reply.sealed)
            sealed[SEALED_BYTES * victim] ^= 1
            with federation.hospitals[3]._store(federation.terms).machine() as machine:
                reply = replace(reply, sealed=bytes(sealed)).signed(machine._identity)
                machine._batches[question.batch].own = reply.digest
        batch.take(reply)
    for party, request in batch.mask_requests().items():
        batch.take(federation.send(int(party[1:]), question, request))
    for party, request in batch.evidence().items():
        batch.take(federation.send(int(party[1:]), question, request))
    return batch


@pytest.mark.parametrize("simulated", [True, False])
def test_a_batch_that_a_liar_broke_is_answered_again_and_by_nobody_who_revealed(
    simulated: bool, tmp_path: Path
) -> None:
    federation = Federation(THREE_OF_FOUR, tmp_path)
    federation.hospitals = [Hospital(replace(site, simulated=simulated)) for site in federation.sites]
    federation.close()
    question = federation.question([0, 1])
    first = _wrong_shares(federation, question, 0)
    assert set(first.verdicts) == {"p3"}
    assert federation.hospitals[1].journal.claimed(question.content_digest)  # its vector was on its way
    again = federation.open(question, attempt=1, proof=first.proof)
    for requests in again.rounds():
        for party, step in requests.items():
            again.take(federation.send(int(party[1:]), question, step))
    totals = again.total().reshape(-1, CLASSES)
    assert (totals.sum(axis=1) == 3 * 2).all()
    for number in range(3):
        hospital = federation.hospitals[number]
        assert hospital.journal.revealed(question.digest)
        text = (federation.sites[number].state_dir / "log.jsonl").read_text(encoding="utf-8")
        assert '"event": "shown wrong"' in text and '"hospitals": "p3"' in text
        # Also where its machine is put back to what it was before, it never masks that batch again.
        opening = replace(again.opening, attempt=2).signed(federation.sum._identity)
        assert _code(federation.send(number, question, opening)) == "UNMASKED"


def test_another_attempt_without_its_own_state_is_refused(tmp_path: Path) -> None:
    federation = Federation(THREE_OF_FOUR, tmp_path)
    federation.close()
    question = federation.question([0, 1])
    first = _wrong_shares(federation, question, 0)
    again = federation.open(question, attempt=1, proof=first.proof)
    with federation.hospitals[1]._store(federation.terms).machine() as machine:
        del machine._batches[question.batch]
    assert _code(federation.send(1, question, again.opening)) == "BATCH_REPEATED"
