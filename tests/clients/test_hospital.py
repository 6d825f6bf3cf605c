"""The hospital's side: what it agrees to, what it refuses, and what leaves the house."""

from __future__ import annotations

import errno
import json
import stat
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from builders import vary

from pate_fed.flower import prepare_environment

prepare_environment()

from flwr.app import Context, Message, RecordDict

from clients.app import app
from clients.hospital import Hospital
from clients.local import read_site
from clients.log import Answered, read_events
from clients.policy import Policy
from clients.site import SITE_VARIABLE, LocalSettings, Site
from pate_fed.config.sections import Aggregation
from pate_fed.config.study import Study
from pate_fed.flower.compat import set_identity, stamp
from pate_fed.flower.records import from_flower, to_flower
from pate_fed.kinds.make import make_terms, public_file
from pate_fed.kinds.terms import Terms
from pate_fed.learning import TeacherSettings
from pate_fed.learning.networks.encoder import Encoder, fit_encoder
from pate_fed.protocol.messages import (
    AnswerReply,
    EndReply,
    EndRequest,
    JoinReply,
    JoinRequest,
    Question,
    Refusal,
    RefusalReply,
)
from pate_fed.secure_sum import Identity
from pate_fed.structure import entries


def _terms(site: Site) -> Terms:
    return make_terms(site.study, site.dataset)


def _request(terms: Terms, index: list[int], **changes: object) -> Question:
    values = {"terms_digest": terms.digest, "batch": 0, "index": np.array(index)}
    return Question(**{**values, **changes})  # type: ignore[arg-type]


def _code(reply: object) -> Refusal:
    assert isinstance(reply, RefusalReply)
    return reply.refusal


def test_votes_sum_to_the_hospitals_teachers(taught: Hospital, site: Site) -> None:
    reply = taught.answer(_request(_terms(site), list(range(54))))
    assert isinstance(reply, AnswerReply)
    assert reply.answer.shape == (54, 3)
    assert reply.answer.dtype == np.uint8
    np.testing.assert_array_equal(reply.answer.sum(axis=1), 3)
    assert len(np.unique(reply.answer.argmax(axis=1))) > 1


def test_a_second_process_gives_the_same_votes_from_the_same_teachers(taught: Hospital, site: Site) -> None:
    first = taught.answer(_request(_terms(site), [0, 1, 2, 3, 4]))
    other = Hospital(replace(site, state_dir=site.state_dir.parent / "again"))
    other.join(JoinRequest(terms=_terms(site).to_json()))
    second = other.answer(_request(_terms(site), [0, 1, 2, 3, 4]))
    assert isinstance(first, AnswerReply)
    assert isinstance(second, AnswerReply)
    np.testing.assert_array_equal(first.answer, second.answer)


def test_a_batch_is_answered_once_even_by_a_new_process_and_under_another_number(
    taught: Hospital, site: Site
) -> None:
    terms = _terms(site)
    assert isinstance(taught.answer(_request(terms, [1, 2, 3])), AnswerReply)
    again = Hospital(site)
    assert _code(again.answer(_request(terms, [1, 2, 3]))) is Refusal.REPEATED
    assert _code(again.answer(_request(terms, [3, 2, 1], batch=7))) is Refusal.REPEATED
    assert isinstance(again.answer(_request(terms, [4, 5])), AnswerReply)


def _signed(request: Question, run: Identity) -> Question:
    signature = run.sign(bytes.fromhex(request.digest))
    return replace(request, coordinator=run.public, signature=signature)


def test_an_identical_question_gets_the_identical_reply_and_no_other_does(
    taught: Hospital, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    terms, run, real = _terms(site), Identity.generate(), replace(site, simulated=False)
    question = _signed(_request(terms, [1, 2, 3]), run)
    first = Hospital(real).answer(question)
    assert isinstance(first, AnswerReply)
    for path in site.state_dir.glob("teacher-*"):  # others would vote otherwise: nobody votes again
        path.write_bytes(b"trained anew")
    again = Hospital(real).answer(question)
    assert isinstance(again, AnswerReply)
    assert repr(again.to_record()) == repr(first.to_record())
    for other in (
        _request(terms, [1, 2, 3]),
        _signed(_request(terms, [1, 2, 3]), Identity.generate()),
        _signed(_request(terms, [1, 2, 3], batch=1), run),
        _signed(_request(terms, [3, 2, 1]), run),
        _signed(_request(terms, [1, 2]), run),
    ):
        assert _code(Hospital(real).answer(other)) is Refusal.REPEATED
    settings = LocalSettings(hospital="party-1", data="", state_dir=site.state_dir, authority="another")
    assert _code(Hospital(replace(real, settings=settings)).answer(question)) is Refusal.REPEATED
    forged = replace(question, coordinator=Identity.generate().public)
    assert _code(Hospital(real).answer(forged)) is Refusal.MALFORMED
    assert _code(Hospital(real).answer(replace(question, terms_digest="0" * 64))) is Refusal.TERMS
    policy = site.state_dir / "policy.toml"
    policy.write_text("least_hospitals = 5\n", encoding="utf-8")
    stricter = replace(settings, authority=None, policy=policy)
    assert _code(Hospital(replace(real, settings=stricter)).answer(question)) is Refusal.POLICY_HOSPITALS


def test_queries_are_counted_study_by_study_and_the_policy_s_words_say_so(
    taught: Hospital, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = site.state_dir / "policy.toml"
    policy.write_text("plain_votes = true\nmost_queries = 500\nmost_queries_a_day = 2\n", encoding="utf-8")
    monkeypatch.setattr("clients.kinds.votes.count_votes", lambda _, images: np.full((len(images), 3), 1))
    second = replace(
        site, study=vary(site.study, name="another"), state_dir=site.state_dir.with_name("another")
    )
    Hospital(second).join(JoinRequest(terms=_terms(second).to_json()))
    for each in (site, second):  # each study has the whole number
        settings = LocalSettings(hospital="party-1", data="part:1", state_dir=each.state_dir, policy=policy)
        hospital = Hospital(replace(each, settings=settings))
        assert isinstance(hospital.answer(_request(_terms(each), [1, 2])), AnswerReply)
        assert _code(hospital.answer(_request(_terms(each), [3], batch=1))) is Refusal.POLICY_DAY
    told = {entry.name: entry.setting.help for entry in entries(Policy)}
    assert told["most_queries"] == "public inputs answered in one study"
    assert "another study on that day has as many again" in told["most_queries_a_day"]
    assert all("one study" in each.value for each in (Refusal.POLICY_QUERIES, Refusal.POLICY_DAY))


def test_a_kept_reply_that_is_damaged_is_not_made_anew(taught: Hospital, site: Site) -> None:
    hospital = Hospital(replace(site, simulated=False))
    question = _signed(_request(_terms(site), [1, 2, 3]), Identity.generate())
    assert isinstance(hospital.answer(question), AnswerReply)
    (site.state_dir / "answer.npz").write_bytes(b"PK")
    assert _code(hospital.answer(question)) is Refusal.REPEATED
    assert "is damaged" in (site.state_dir / "log.jsonl").read_text(encoding="utf-8")


@pytest.mark.parametrize("ended", [0, 4])
def test_a_kept_reply_lasts_until_the_study_has_succeeded(ended: int, taught: Hospital, site: Site) -> None:
    hospital = Hospital(replace(site, simulated=False))
    question = _signed(_request(_terms(site), [1, 2, 3]), Identity.generate())
    assert isinstance(hospital.answer(question), AnswerReply)
    hospital.end(EndRequest(status="over", exit_code=ended, summary=""))
    assert (site.state_dir / "answer.npz").exists() == bool(ended)
    again = hospital.answer(question)
    assert isinstance(again, AnswerReply) if ended else _code(again) is Refusal.REPEATED


def test_a_hospital_that_died_while_it_voted_votes(
    taught: Hospital, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    question = _signed(_request(_terms(site), [1, 2, 3]), Identity.generate())
    hospital = Hospital(replace(site, simulated=False))
    for name in ("kinds.votes.count_votes", "journal.write_arrays", "journal.write_private"):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(f"clients.{name}", _die)
            hospital.answer(question)
    first, again = hospital.answer(question), hospital.answer(question)
    assert isinstance(first, AnswerReply) and isinstance(again, AnswerReply)
    np.testing.assert_array_equal(first.answer, again.answer)


def _die(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_no_query_is_answered_twice_in_batches_that_overlap(taught: Hospital, site: Site) -> None:
    terms = _terms(site)
    assert isinstance(taught.answer(_request(terms, [1, 2, 3])), AnswerReply)
    for index in ([1], [1, 2], [3, 4], [0, 1, 2, 3, 4]):
        assert _code(Hospital(site).answer(_request(terms, index))) is Refusal.REPEATED
    assert isinstance(taught.answer(_request(terms, [0, 4])), AnswerReply)


def test_no_more_is_answered_than_the_terms_allow(site: Site) -> None:
    terms = vary(_terms(site), max_queries=5, labels=5)
    hospital = Hospital(site)
    assert isinstance(hospital.join(JoinRequest(terms=terms.to_json())), JoinReply)
    assert _code(hospital.answer(_request(terms, [0, 1, 2, 3, 4, 5]))) is Refusal.CAPS
    assert isinstance(hospital.answer(_request(terms, [0, 1, 2])), AnswerReply)
    assert _code(hospital.answer(_request(terms, [3, 4, 5]))) is Refusal.CAPS
    assert isinstance(hospital.answer(_request(terms, [3, 4])), AnswerReply)


def test_what_is_only_measured_does_not_count(site: Site) -> None:
    terms = vary(_terms(site), max_queries=3, labels=3)
    hospital = Hospital(site)
    assert isinstance(hospital.join(JoinRequest(terms=terms.to_json())), JoinReply)
    reply = hospital.answer(_request(terms, [0, 1, 50, 51, 52], measured=3))
    assert isinstance(reply, AnswerReply) and len(reply.answer) == 5
    assert _code(hospital.answer(_request(terms, [2, 3]))) is Refusal.CAPS
    assert isinstance(hospital.answer(_request(terms, [2])), AnswerReply)


def test_refusals(taught: Hospital, site: Site) -> None:
    terms = _terms(site)
    assert _code(taught.answer(_request(vary(terms, sigma1=1.0), [0]))) is Refusal.TERMS
    for index in ([], [60], [-1], [2, 2], [[0, 1]]):
        assert _code(taught.answer(_request(terms, index))) is Refusal.MALFORMED  # type: ignore[arg-type]
    for index, measured in (([0], 1), ([0, 1, 2], 3), ([0, 1, 2], 5)):  # nothing is left to be released
        assert _code(taught.answer(_request(terms, index, measured=measured))) is Refusal.MALFORMED
    assert _code(taught.join(JoinRequest(terms="{}"))) is Refusal.MALFORMED
    other = vary(terms, sigma2=1.0)
    assert _code(taught.join(JoinRequest(terms=other.to_json()))) is Refusal.TERMS
    other = replace(terms, pool_digest="0" * 64)
    assert _code(taught.join(JoinRequest(terms=other.to_json()))) is Refusal.POOL
    real = Hospital(replace(site, simulated=False))
    assert _code(real.answer(_request(terms, [0, 1], measured=1))) is Refusal.POLICY


def test_nothing_is_voted_before_training(site: Site) -> None:
    assert _code(Hospital(site).answer(_request(_terms(site), [0]))) is Refusal.NOT_READY


def test_what_lies_on_disk_is_private(taught: Hospital, site: Site) -> None:
    taught.answer(_request(_terms(site), [0]))
    assert stat.S_IMODE(site.state_dir.stat().st_mode) == 0o700
    for path in site.state_dir.rglob("*"):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode & 0o077 == 0, path


def _send(message_type: str, content: RecordDict) -> Message:
    set_identity(run_id=1, node_id=1)
    message = Message(content, 2, message_type)
    stamp(message)
    context = Context(
        run_id=1,
        node_id=2,
        node_config={"partition-id": 1, "num-partitions": 4},
        state=RecordDict(),
        run_config={},
    )
    reply = app(message, context)
    assert len(context.state) == 0  # nothing of a hospital goes into Flower's context
    return reply


@pytest.fixture
def site_file(small_study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "study.toml").write_text(small_study.to_toml(), encoding="utf-8")
    path = tmp_path / "site.json"
    path.write_text(json.dumps({"study": str(tmp_path / "study.toml"), "state_dir": str(tmp_path)}))
    monkeypatch.setenv(SITE_VARIABLE, str(path))
    return path


def test_the_app_answers_and_a_fault_is_only_a_code(site_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = read_site({"partition-id": 1})
    record = from_flower(
        _send("train.join", to_flower(JoinRequest(terms=_terms(site).to_json()).to_record())).content
    )
    assert record["kind"] == "joined"

    def fails(*_: object) -> None:
        raise RuntimeError("Ann Smith, born 1931")

    monkeypatch.setattr(Hospital, "answer", fails)
    reply = _send("query.answer", to_flower(_request(_terms(site), [0]).to_record()))
    assert from_flower(reply.content) == {"kind": "refused", "party": "party-1", "code": "FAULT"}
    assert "Ann Smith" not in str(reply.content)
    assert "Ann Smith" in (site.state_dir / "log.jsonl").read_text(encoding="utf-8")


def test_a_state_directory_that_cannot_be_used_lets_no_text_out(
    site_file: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (site_file.parent / "party-1").write_text("Ann Smith", encoding="utf-8")
    reply = _send(
        "query.answer", to_flower(_request(_terms(read_site({"partition-id": 1})), [0]).to_record())
    )
    assert not reply.has_error()
    assert from_flower(reply.content) == {"kind": "refused", "party": "unknown", "code": "LATER"}
    assert capfd.readouterr().err == "a request was not handled: FileExistsError\n"


def test_a_full_disk_holds_the_answer_back_until_it_is_in_the_log(taught: Hospital, site: Site) -> None:
    log, request = site.state_dir / "log.jsonl", _request(_terms(site), [0, 1])
    log.rename(kept := site.state_dir / "kept")
    log.symlink_to("/dev/full")
    for _ in range(2):
        with pytest.raises(OSError, match="No space left"):
            taught.answer(request)
    kept.rename(log)
    assert isinstance(taught.answer(request), AnswerReply)
    found = Answered()
    for _, event in read_events(site.state_dir):
        for _ in range(2):  # also where the line was written, and then no space was left for the answer
            found.take(event or {})
    assert (found.total, found.text) == (2, "2 rows answered (votes)")


def test_with_a_full_disk_a_hospital_hears_of_the_end_all_the_same(
    taught: Hospital, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr("clients.hospital.forget_replies", full)
    request = EndRequest(status="success", exit_code=0, summary="")
    assert isinstance(taught.end(request), EndReply)


def test_a_malformed_message_is_refused(site_file: Path) -> None:
    reply = _send("query.answer", to_flower({"kind": "question", "code": "import os"}))
    assert from_flower(reply.content)["code"] == "MALFORMED"


def test_teachers_learn_on_the_encoder_that_came_with_the_order(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed_form = replace(site.study, teacher=TeacherSettings(name="encoder-head"))
    light = replace(site, study=closed_form)
    terms, file = make_terms(closed_form, light.dataset), public_file(closed_form, light.dataset)
    public = light.dataset.public_images[: light.dataset.num_queries]
    assert terms.asks.encoder == Encoder.from_bytes(file).digest == fit_encoder(public).digest
    assert Terms.from_json(terms.to_json()).asks == terms.asks

    def none(*_: object, **__: object) -> Encoder:
        raise AssertionError("a hospital fits no encoder")

    monkeypatch.setattr("pate_fed.learning.networks.encoder.fit_encoder", none)
    hospital = Hospital(light)
    reply = hospital.join(JoinRequest(terms=terms.to_json(), file=file))
    assert isinstance(reply, JoinReply)
    assert isinstance(hospital.answer(_request(terms, [0, 1, 2])), AnswerReply)


def test_another_encoder_none_and_an_unexpected_one_are_refused(site: Site) -> None:
    closed_form = replace(site.study, teacher=TeacherSettings(name="encoder-head"))
    light = replace(site, study=closed_form)
    terms, file = make_terms(closed_form, light.dataset), public_file(closed_form, light.dataset)
    other = fit_encoder(light.dataset.public_images[:20]).to_bytes()
    for content in (b"", b"nothing", other, file[:-100]):
        reply = Hospital(light).join(JoinRequest(terms=terms.to_json(), file=content))
        assert _code(reply) is Refusal.FILE
    assert not (light.state_dir / "terms.json").exists()
    reply = Hospital(site).join(JoinRequest(terms=_terms(site).to_json(), file=file))
    assert _code(reply) is Refusal.FILE


def test_a_teacher_s_code_must_be_the_one_in_the_terms(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "hospital_test_part.py"
    module.write_text("from sklearn.tree import DecisionTreeClassifier as Tree\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    theirs = replace(site, study=replace(site.study, teacher=TeacherSettings(name="hospital_test_part:Tree")))
    terms = make_terms(theirs.study, theirs.dataset)
    module.write_text("from sklearn.tree import DecisionTreeClassifier as Tree  # another\n")
    reply = Hospital(theirs).join(JoinRequest(terms=terms.to_json()))
    assert _code(reply) is Refusal.PART
    assert not list(theirs.state_dir.glob("teacher-*"))
    log = (theirs.state_dir / "log.jsonl").read_text(encoding="utf-8")
    assert terms.asks.teacher_part is not None and terms.asks.teacher_part.digest in log
    again = make_terms(theirs.study, theirs.dataset)
    hospital = Hospital(theirs)
    assert isinstance(hospital.join(JoinRequest(terms=again.to_json())), JoinReply)
    assert isinstance(hospital.answer(_request(again, [0, 1, 2])), AnswerReply)
    module.write_text(
        "from sklearn.tree import ExtraTreeClassifier as Tree\n"
    )  # and the hospital starts anew
    assert _code(Hospital(theirs).answer(_request(again, [3, 4, 5]))) is Refusal.PART


def test_a_mechanism_s_word_is_taken_only_from_the_very_code(site: Site) -> None:
    aggregation = Aggregation(aggregator="own_parts:GeometricMax", parameters=(("scale", 2.0),))
    theirs = replace(site, study=replace(site.study, aggregation=aggregation))
    terms = make_terms(theirs.study, theirs.dataset)
    claim = terms.asks.claim
    assert claim is not None and claim.parameters == (("scale", 2.0),)
    other = replace(claim, part=replace(claim.part, digest="0" * 64))
    cheap = replace(claim, rdp=tuple(0.99 * value for value in claim.rdp))
    gone = replace(claim, part=replace(claim.part, name="no_such_module:make"))
    for wrong in (other, cheap):
        reply = Hospital(theirs).join(JoinRequest(terms=vary(terms, claim=wrong).to_json()))
        assert _code(reply) is Refusal.PART
    named = vary(terms, claim=gone, aggregation=replace(aggregation, aggregator="no_such_module:make"))
    assert _code(Hospital(theirs).join(JoinRequest(terms=named.to_json()))) is Refusal.PART
    log = (theirs.state_dir / "log.jsonl").read_text(encoding="utf-8")
    assert "0" * 64 in log and claim.part.digest in log and "claims a larger curve" in log
    hospital = Hospital(theirs)
    assert isinstance(hospital.join(JoinRequest(terms=terms.to_json())), JoinReply)
    assert isinstance(hospital.answer(_request(terms, [0, 1, 2])), AnswerReply)


def test_a_hospital_agrees_to_no_terms_that_spend_votes_for_nothing(site: Site) -> None:
    for changes in ({"threshold": 999.0}, {"threshold": 0.0}, {"labels": 60, "max_queries": 30}):
        terms = vary(_terms(site), **changes)
        assert _code(Hospital(site).join(JoinRequest(terms=terms.to_json()))) is Refusal.FUTILE
    assert not (site.state_dir / "terms.json").exists()
