"""One hospital with private labels: it answers about them once, by its policy, or refuses; over messages."""

from __future__ import annotations

import json
import os
import stat
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import vary
from label_requests import (
    CLASSES,
    CLUSTER,
    LABEL,
    NOTHING,
    PARTS,
    RECORDS,
    ask_labels,
    labels_terms,
    refusal_of,
    send_to,
)

from clients.kinds.labels import read_own_labels
from pate_fed.config.study import Study
from pate_fed.errors import InputError, IntegrityError
from pate_fed.kinds.label_dp.randres import RandRes
from pate_fed.kinds.labels import LABEL_OF, THERE, clusters_digest, clusters_file
from pate_fed.kinds.terms import Terms
from pate_fed.privacy import noise_from_seed
from pate_fed.protocol.messages import ANSWER, JOIN, AnswerReply, JoinReply, JoinRequest, Question
from pate_fed.secure_sum import CoordinatorSum, Identity


@pytest.fixture
def disks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The hospitals' own folders, with each one's labels.csv."""
    monkeypatch.setenv("PATE_FED_SITE", str(tmp_path))
    for number, part in enumerate(PARTS):
        own = tmp_path / f"hospital-{number}"
        own.mkdir()
        rows = "\n".join(f"{index},{LABEL[index]}" for index in part)
        (own / "labels.csv").write_text(f"index,label\n{rows}\n")
        _set_site(tmp_path, number)
    return tmp_path


def _set_site(folder: Path, number: int, policy: Path | None = None) -> None:
    own = folder / f"hospital-{number}"
    site: dict[str, Any] = {"hospital": own.name, "data": f"{own}/labels.csv", "state_dir": str(own)}
    site["plays"] = number
    (own / "hospital.json").write_text(
        json.dumps({**site, "policy": None if policy is None else str(policy)})
    )


def _labels_of(reply: Any) -> tuple[list[int], list[int]]:
    """Whose labels a response tells, and which."""
    there = np.flatnonzero(reply.answer[:, THERE])
    return there.tolist(), reply.answer[there, LABEL_OF].tolist()


@pytest.fixture
def real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The state directory of a hospital that is not simulated."""
    labels, state = tmp_path / "mine.csv", tmp_path / "north"
    labels.write_text("index,label\n" + "".join(f"{index},{LABEL[index]}\n" for index in PARTS[0]))
    policy = tmp_path / "policy.toml"  # nobody is there to be telephoned
    policy.write_text("least_confirmed = 0\nleast_colluders = 0\n")
    site = {"hospital": "north", "data": str(labels), "state_dir": str(state), "policy": str(policy)}
    (tmp_path / "hospital.json").write_text(json.dumps(site))
    monkeypatch.setenv("PATE_FED_SITE", str(tmp_path / "hospital.json"))
    return state


def _spoil(folder: Path, number: int) -> None:
    (folder / f"hospital-{number}" / "labels.csv").write_text("index,label\n0,99\n")


# Once.


def test_a_repeated_request_gets_the_same_response(disks: Path) -> None:
    first, again = (ask_labels(1, labels_terms(epsilon=0.5)) for _ in range(2))
    np.testing.assert_array_equal(first.answer, again.answer)
    assert _labels_of(first)[0] == PARTS[1].tolist()
    # Another study by the same name or not, by another coordinator or not: drawn alike, kept alike.
    other = ask_labels(1, labels_terms(epsilon=0.5, study="another", least_clients=3))
    np.testing.assert_array_equal(first.answer, other.answer)
    assert other.batch_digest != first.batch_digest
    own = disks / "hospital-1"
    modes = {
        stat.S_IMODE((own / name).stat().st_mode) for name in ("response.npy", "terms.json", "log.jsonl")
    }
    assert modes == {0o600} and not [*own.glob("response.npy.*")]
    said = [json.loads(line) for line in (own / "log.jsonl").read_text().splitlines()]
    given = [event["event"] for event in said if event["event"].startswith("answered")]
    assert given == ["answered", "answered again", "answered again"]
    # Not even where the file of true labels changes: the answer stands.
    _spoil(disks, 1)
    assert refusal_of(ask_labels(1, labels_terms(epsilon=0.5))) == "DATA"
    terms = labels_terms(epsilon=0.5)
    question = Question(terms_digest=terms.digest, batch=0, index=np.arange(RECORDS))
    np.testing.assert_array_equal(first.answer, send_to(1, ANSWER, question.to_record()).answer)


@pytest.mark.parametrize(
    "other",
    [
        {"epsilon": 0.6},
        {"epsilon": 0.4},
        {"num_classes": 5},
        {"pool_digest": "cd" * 32},
        {"seed": 1},
    ],
)
def test_after_a_response_nothing_is_answered_on_other_terms(disks: Path, other: dict[str, Any]) -> None:
    assert isinstance(ask_labels(0, labels_terms(epsilon=0.5)), AnswerReply)
    assert refusal_of(ask_labels(0, vary(labels_terms(epsilon=0.5), **other))) == "ANSWERED"


def test_counts_and_responses_do_not_add_up(disks: Path) -> None:
    counts = labels_terms(CLUSTER)
    enrol = CoordinatorSum(Identity.generate(), study=counts.digest).enrol_request().to_bytes()
    assert ask_labels(0, counts, CLUSTER, enrol).enrolment
    assert refusal_of(ask_labels(0, labels_terms())) == "ANSWERED"
    assert isinstance(ask_labels(1, labels_terms()), AnswerReply)
    assert refusal_of(ask_labels(1, counts, CLUSTER, enrol)) == "ANSWERED"


def test_the_order_of_the_file_stays_in_the_house(disks: Path) -> None:
    """A file that is sorted by class would tell every label by the order of its places alone."""
    part = PARTS[0]
    by_class = part[np.argsort(LABEL[part], kind="stable")]
    rows = "\n".join(f"{index},{LABEL[index]}" for index in by_class)
    (disks / "hospital-0" / "labels.csv").write_text(f"index,label\n{rows}\n")
    index, _ = read_own_labels(disks / "hospital-0" / "labels.csv", pool_size=RECORDS, num_classes=CLASSES)
    assert index.tolist() == part.tolist() != by_class.tolist()
    reply = ask_labels(0, labels_terms(epsilon=0.1))
    assert _labels_of(reply)[0] == part.tolist() and reply.answer.shape == (RECORDS, 2)


@pytest.mark.parametrize("summed", [False, True])
def test_labels_are_looked_at_under_the_first_terms_only(disks: Path, summed: bool) -> None:
    """Which numbers of classes a hospital's labels fit would tell the largest of them."""

    def ask(classes: int, size: int = RECORDS) -> str:
        clusters = CLUSTER[:size]
        changes = {"clusters": clusters_digest(clusters)} if summed else {}
        made = labels_terms(CLUSTER if summed else None)
        terms = vary(made, num_classes=classes, pool_size=size, **changes)
        if not summed:
            return refusal_of(ask_labels(0, terms))
        enrol = CoordinatorSum(Identity.generate(), study=terms.digest).enrol_request().to_bytes()
        return refusal_of(ask_labels(0, terms, clusters, enrol))

    assert ask(CLASSES - 1) == "DATA"
    assert ask(CLASSES) == ask(2) == ask(CLASSES - 1, size=10) == "ANSWERED"
    said = (disks / "hospital-0" / "log.jsonl").read_text()
    assert str(disks / "hospital-0") in said  # its own people are told what to do about it
    (disks / "hospital-0" / "labels.csv").write_text("index,label\n0,1\n")
    assert ask(CLASSES - 1).startswith("no refusal") or summed  # the very terms, and labels that fit


@pytest.mark.parametrize("summed", [False, True])
def test_terms_and_responses_outlive_a_power_cut(real: Path, summed: bool, synced: list[str]) -> None:
    """Until its folder is synced, a file that was renamed may be gone after one: drawn anew, ε doubles."""
    terms = labels_terms(CLUSTER if summed else None)
    enrol = CoordinatorSum(Identity.generate(), study=terms.digest).enrol_request().to_bytes()
    ask_labels(0, terms, CLUSTER if summed else NOTHING, enrol if summed else b"")
    written = [path.removesuffix(".part") for path in synced]
    last = "terms.json" if summed else f"response.npy.{os.getpid()}"
    assert str(real) in written[written.index(f"{real}/{last}") :]


# Refusals.


def _policy(folder: Path, number: int, text: str) -> None:
    path = folder / f"hospital-{number}" / "policy.toml"
    path.write_text(text)
    _set_site(folder, number, path)


@pytest.mark.parametrize(
    ("text", "changes", "code"),
    [
        ("epsilon_public = 0.9", {}, "POLICY_PUBLIC"),
        ("epsilon_coordinator = 0.9", {}, "POLICY_COORDINATOR"),
        ("epsilon_public = 1.0\nepsilon_coordinator = 1.0", {}, ""),
        ("secure_sum = true", {}, "DATA"),  # a key that is no more: nothing leaves until it is taken out
        ("least_hospitals = 5", {}, "POLICY_HOSPITALS"),
        ('pools = ["other"]', {}, "POLICY_POOL"),
        ('studies = ["other"]', {}, "POLICY_STUDY"),
        ('classes = ["cat"]', {}, "POLICY_CLASSES"),
        ("most_queries = 0", {}, "POLICY_QUERIES"),
        ("most_queries_a_day = 0", {}, "POLICY_DAY"),
        ("most_queries_a_day = 1", {}, ""),
        ("", {"seed": 3}, "POLICY_SEED"),
        ("seeded_noise = true", {"seed": 3}, ""),
    ],
)
def test_a_hospitals_policy_is_enforced(disks: Path, text: str, changes: dict[str, Any], code: str) -> None:
    _policy(disks, 0, text)
    reply = ask_labels(0, labels_terms(**changes))
    assert refusal_of(reply) == code if code else isinstance(reply, AnswerReply)
    log = (disks / "hospital-0" / "log.jsonl").read_text()
    assert (f'"{code}"' in log) if code else '"answered"' in log
    if code:
        assert not (disks / "hospital-0" / "response.npy").exists()


def test_a_limit_on_epsilon_holds_at_a_delta_that_is_one(disks: Path) -> None:
    """The coordinator names δ: at 0.9 hardly any noise is left, and ε is said to be small."""
    _policy(disks, 0, "epsilon_public = 0.9")
    for delta, code in ((0.9, "POLICY_DELTA"), (1e-3, "no refusal: JoinReply")):
        terms = labels_terms(CLUSTER, epsilon=0.8, delta=delta)
        enrol = CoordinatorSum(Identity.generate(), study=terms.digest).enrol_request().to_bytes()
        assert refusal_of(ask_labels(0, terms, CLUSTER, enrol)) == code


def _changed(terms: Terms, **changes: Any) -> str:
    values = json.loads(terms.to_json())
    for name, value in changes.items():
        section = next((each for each in ("asks", "secrecy", "privacy") if name in values[each]), None)
        (values if section is None else values[section])[name] = value
    return json.dumps(values)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"sigma_party": 1.5}, "MALFORMED"),  # too little noise for ε
        ({"sigma_party": None}, "MALFORMED"),
        ({"sigma_party": float("nan")}, "MALFORMED"),
        ({"colluders": 2}, "MALFORMED"),
        ({"colluders": 5}, "MALFORMED"),
        ({"num_clusters": 3}, "MALFORMED"),  # fewer than classes
        ({"delta": 0}, "MALFORMED"),
        ({"clusters": "00" * 32}, "FILE"),
        ({"least_clients": 3, "sigma_party": 30.0}, "TERMS"),  # below two thirds
    ],
)
def test_terms_that_hide_less_than_they_say_are_refused(
    disks: Path, changes: dict[str, Any], code: str
) -> None:
    text, digest = _changed(labels_terms(CLUSTER), **changes), labels_terms(CLUSTER).digest
    try:
        digest = Terms.from_json(text).digest
        assert code != "MALFORMED"
    except IntegrityError:
        assert code == "MALFORMED"
    enrol = CoordinatorSum(Identity.generate(), study=digest).enrol_request().to_bytes()
    request = JoinRequest(terms=text, file=clusters_file(CLUSTER), enrol=enrol)
    assert refusal_of(send_to(0, JOIN, request.to_record())) == code


def test_clusters_are_one_for_each_input_or_none_where_nothing_is_counted(disks: Path) -> None:
    counts = labels_terms(CLUSTER)
    for wrong in (CLUSTER[:-1], CLUSTER + 3, CLUSTER - 1, b"odd"):
        file = wrong if isinstance(wrong, bytes) else clusters_file(wrong)
        text = _changed(counts, clusters=sha256(file).hexdigest())
        request = JoinRequest(terms=text, file=file)
        assert refusal_of(send_to(0, JOIN, request.to_record())) == "FILE"
    request = JoinRequest(terms=labels_terms().to_json(), file=clusters_file(CLUSTER))
    assert refusal_of(send_to(0, JOIN, request.to_record())) == "FILE"
    assert refusal_of(ask_labels(0, counts, CLUSTER, b"junk")) in ("MALFORMED", "FAULT")
    (disks / "hospital-0" / "terms.json").unlink(missing_ok=True)
    assert isinstance(ask_labels(0, labels_terms()), AnswerReply)  # none of it was an answer


@pytest.mark.parametrize(
    "changes",
    [{"index": np.arange(RECORDS - 1)}, {"measured": 1}, {"index": np.arange(RECORDS)[::-1].copy()}],
)
def test_there_is_one_question(disks: Path, changes: dict[str, Any]) -> None:
    terms = labels_terms()
    assert isinstance(send_to(0, JOIN, JoinRequest(terms=terms.to_json()).to_record()), JoinReply)
    question = {"terms_digest": terms.digest, "batch": 0, "index": np.arange(RECORDS), **changes}
    assert refusal_of(send_to(0, ANSWER, Question(**question).to_record())) == "MALFORMED"


def test_an_answer_of_release_0_1_0_is_not_forgotten(disks: Path) -> None:
    (disks / "hospital-0" / "labels").mkdir()
    assert refusal_of(ask_labels(0, labels_terms())) == "ANSWERED"
    said = (disks / "hospital-0" / "log.jsonl").read_text()
    assert str(disks / "hospital-0" / "labels") in said


@pytest.mark.parametrize(
    "text",
    [
        "",
        "index,label\n",
        "label,index\n0,1\n",
        "index,label\n0\n",
        "index,label\n0,cat\n",
        "index,label\n0,1\n0,2\n",
        "index,label\n600,1\n",
        "index,label\n-1,1\n",
        "index,label\n0,4\n",
        "index,label\n0,-1\n",
        f"index,label\n0,{10**30}\n",
    ],
)
def test_labels_that_cannot_be_used_stay_and_so_does_why(disks: Path, text: str) -> None:
    (disks / "hospital-0" / "labels.csv").write_text(text)
    assert refusal_of(ask_labels(0, labels_terms())) == "DATA"
    log = (disks / "hospital-0" / "log.jsonl").read_text()
    assert "cat" not in log and str(10**30) not in log and '"data"' in log


# A real hospital's site answers with the same code.


def test_a_real_hospital_answers_by_its_policy_and_with_the_systems_noise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = tmp_path / "mine.csv"
    labels.write_text("index,label\n" + "".join(f"{index},{LABEL[index]}\n" for index in PARTS[0]))
    policy = tmp_path / "policy.toml"
    policy.write_text("epsilon_public = 1.0")
    site = {"hospital": "north", "data": str(labels), "state_dir": str(tmp_path / "north"), "policy": None}
    path = tmp_path / "hospital.json"
    monkeypatch.setenv("PATE_FED_SITE", str(path))
    path.write_text(json.dumps(site))
    assert refusal_of(ask_labels(0, labels_terms(seed=4))) == "POLICY_SEED"  # the default
    path.write_text(json.dumps({**site, "policy": str(policy)}))
    assert refusal_of(ask_labels(0, labels_terms(epsilon=1.1))) == "POLICY_PUBLIC"
    reply = ask_labels(0, labels_terms())
    assert reply.party == "north" and _labels_of(reply)[0] == PARTS[0].tolist()
    policy.write_text("seeded_noise = true")
    path.write_text(json.dumps({**site, "policy": str(policy), "state_dir": str(tmp_path / "south")}))
    seeded = labels_terms(seed=4)
    drawn = noise_from_seed(Study(seed=4).seed_for("noise", 0, 0))
    own = RandRes(num_classes=CLASSES, epsilon=1.0).release(LABEL[PARTS[0]], drawn).label
    assert _labels_of(ask_labels(0, seeded))[1] != own.tolist()  # who knows the seed does not know the noise
    path.write_text(json.dumps({**site, "terms_digest": "00" * 32, "state_dir": str(tmp_path / "east")}))
    assert refusal_of(ask_labels(0, labels_terms())) == "TERMS"


def test_a_fault_tells_nothing_of_the_labels(disks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(response: RandRes, labels: np.ndarray, noise: Any) -> Any:
        raise RuntimeError("at a fault")

    monkeypatch.setattr(RandRes, "release", broken)
    reply = ask_labels(0, labels_terms())
    assert refusal_of(reply) == "FAULT" and "at a fault" not in str(reply)


# Its table.


def test_labels_come_in_the_order_of_their_places(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_text("index,label\n7,0\n2,1\n5,2\n", encoding="utf-8")
    index, label = read_own_labels(path, pool_size=8, num_classes=3)
    assert (index.tolist(), label.tolist()) == ([2, 5, 7], [1, 2, 0])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "index,label\n",
        "a,b\n0,77\n",
        "index,label\n0\n",
        "index,label\n0,77 77\n",
        "index,label\n0,77\n0,77\n",
        "index,label\n8,77\n",
        "index,label\n-1,77\n",
        "index,label\n0,77\n",
    ],
)
def test_no_mistake_shows_a_label(text: str, tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        read_own_labels(path, pool_size=8, num_classes=3)
    assert "77" not in str(caught.value).replace(str(tmp_path), "")
