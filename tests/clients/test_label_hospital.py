"""One hospital with private labels: it answers about them once, by its policy, or refuses; over messages."""

from __future__ import annotations

import json
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
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

from pate_fed.cli.hospital_log import log_lines
from pate_fed.errors import IntegrityError
from pate_fed.kinds.label_dp.randres import RandRes
from pate_fed.kinds.labels import (
    LabelTerms,
    clusters_digest,
)
from pate_fed.protocol.messages import (
    LABELS,
    LabelReply,
    LabelRequest,
)
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

    return tmp_path


@pytest.fixture
def real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The state directory of a hospital that is not simulated."""
    labels, state = tmp_path / "mine.csv", tmp_path / "north"
    labels.write_text("index,label\n" + "".join(f"{index},{LABEL[index]}\n" for index in PARTS[0]))
    site = {"hospital": "north", "data": str(labels), "state_dir": str(state), "policy": None}
    (tmp_path / "hospital.json").write_text(json.dumps(site))
    monkeypatch.setenv("PATE_FED_SITE", str(tmp_path / "hospital.json"))
    return state


def _spoil(folder: Path, number: int) -> None:
    (folder / f"hospital-{number}" / "labels.csv").write_text("index,label\n0,99\n")


# Once.


def test_a_repeated_request_gets_the_same_response(disks: Path) -> None:
    first, again = (ask_labels(1, labels_terms(epsilon=0.5)) for _ in range(2))
    np.testing.assert_array_equal(first.label, again.label)
    assert first.index.tolist() == again.index.tolist() == PARTS[1].tolist()
    # Another study by the same name or not, by another coordinator or not: drawn alike, kept alike.
    other = ask_labels(1, labels_terms(epsilon=0.5, study="another", least_clients=3))
    np.testing.assert_array_equal(first.label, other.label)
    assert other.terms_digest != first.terms_digest
    own = disks / "hospital-1" / "labels"
    modes = {stat.S_IMODE(path.stat().st_mode) for path in own.iterdir() if path.is_file()}
    assert modes == {0o600} and (own / "response.npy").exists()
    assert stat.S_IMODE(own.stat().st_mode) == 0o700
    said = [json.loads(line) for line in (disks / "hospital-1" / "log.jsonl").read_text().splitlines()]
    costs = [(event["event"], event["terms"]) for event in said if "mechanism" in event]
    digest = first.terms_digest
    assert costs == [("labelled", digest), *(("labelled again", d) for d in (digest, other.terms_digest))]
    assert "at no further cost" in list(log_lines(disks / "hospital-1", as_json=False))[-3]
    # Not even where the file of true labels changes: the answer stands.
    _spoil(disks, 1)
    np.testing.assert_array_equal(first.label, ask_labels(1, labels_terms(epsilon=0.5)).label)


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
    assert isinstance(ask_labels(0, labels_terms(epsilon=0.5)), LabelReply)
    assert refusal_of(ask_labels(0, replace(labels_terms(epsilon=0.5), **other))) == "ANSWERED"


def test_counts_and_responses_do_not_add_up(disks: Path) -> None:
    counts = labels_terms(CLUSTER)
    enrol = CoordinatorSum(Identity.generate(), study=counts.digest).enrol_request().to_bytes()
    assert ask_labels(0, counts, CLUSTER, enrol).enrolment
    assert refusal_of(ask_labels(0, labels_terms())) == "ANSWERED"
    assert isinstance(ask_labels(1, labels_terms()), LabelReply)
    assert refusal_of(ask_labels(1, counts, CLUSTER, enrol)) == "ANSWERED"


def test_the_order_of_the_file_stays_in_the_house(disks: Path) -> None:
    """A file that is sorted by class would tell every label by the order of its places alone."""
    part = PARTS[0]
    by_class = part[np.argsort(LABEL[part], kind="stable")]
    rows = "\n".join(f"{index},{LABEL[index]}" for index in by_class)
    (disks / "hospital-0" / "labels.csv").write_text(f"index,label\n{rows}\n")
    reply = ask_labels(0, labels_terms(epsilon=0.1))
    assert reply.index.tolist() == part.tolist() != by_class.tolist()
    kept, _ = np.load(disks / "hospital-0" / "labels" / "response.npy")
    assert kept.tolist() == reply.index.tolist()


@pytest.mark.parametrize("summed", [False, True])
def test_labels_are_looked_at_under_the_first_terms_only(disks: Path, summed: bool) -> None:
    """Which numbers of classes a hospital's labels fit would tell the largest of them."""

    def ask(classes: int, size: int = RECORDS) -> str:
        terms = replace(labels_terms(CLUSTER if summed else None), num_classes=classes, pool_size=size)
        if not summed:
            return refusal_of(ask_labels(0, terms))
        clusters = CLUSTER[:size]
        terms = replace(terms, clusters_digest=clusters_digest(clusters))
        enrol = CoordinatorSum(Identity.generate(), study=terms.digest).enrol_request().to_bytes()
        return refusal_of(ask_labels(0, terms, clusters, enrol))

    assert ask(CLASSES - 1) == "DATA"
    assert ask(CLASSES) == ask(2) == ask(CLASSES - 1, size=10) == "ANSWERED"
    said = (disks / "hospital-0" / "log.jsonl").read_text()
    assert str(disks / "hospital-0" / "labels") in said  # its own people are told what to do about it
    (disks / "hospital-0" / "labels.csv").write_text("index,label\n0,1\n")
    assert ask(CLASSES - 1).startswith("no refusal") or summed  # the very terms, and labels that fit


@pytest.mark.parametrize("summed", [False, True])
def test_terms_and_responses_outlive_a_power_cut(real: Path, summed: bool, synced: list[str]) -> None:
    """Until its folder is synced, a file that was renamed may be gone after one: drawn anew, ε doubles."""
    terms = labels_terms(CLUSTER if summed else None)
    enrol = CoordinatorSum(Identity.generate(), study=terms.digest).enrol_request().to_bytes()
    ask_labels(0, terms, CLUSTER if summed else NOTHING, enrol if summed else b"")
    written = [path.removesuffix(".part") for path in synced]
    last = "terms.json" if summed else "response.npy"
    assert str(real / "labels") in written[written.index(f"{real}/labels/{last}") :]
    assert str(real) in written  # where the folder itself is named


# Refusals.


def _policy(folder: Path, number: int, text: str) -> None:
    (folder / f"hospital-{number}" / "policy.toml").write_text(text)


@pytest.mark.parametrize(
    ("text", "changes", "code"),
    [
        ("epsilon_public = 0.9", {}, "POLICY_PUBLIC"),
        ("epsilon_coordinator = 0.9", {}, "POLICY_COORDINATOR"),
        ("epsilon_public = 1.0\nepsilon_coordinator = 1.0", {}, ""),
        ("secure_sum = true", {}, "FAULT"),  # a key that is no more: nothing leaves until it is taken out
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
    assert refusal_of(reply) == code if code else isinstance(reply, LabelReply)
    log = (disks / "hospital-0" / "log.jsonl").read_text()
    assert (f'"{code}"' in log) if code else '"labelled"' in log
    if code:
        assert not (disks / "hospital-0" / "labels" / "response.npy").exists()


def test_a_limit_on_epsilon_holds_at_a_delta_that_is_one(disks: Path) -> None:
    """The coordinator names δ: at 0.9 hardly any noise is left, and ε is said to be small."""
    _policy(disks, 0, "epsilon_public = 0.9")
    for delta, code in ((0.9, "POLICY_DELTA"), (1e-3, "no refusal: LabelReply")):
        terms = labels_terms(CLUSTER, epsilon=0.8, delta=delta)
        enrol = CoordinatorSum(Identity.generate(), study=terms.digest).enrol_request().to_bytes()
        assert refusal_of(ask_labels(0, terms, CLUSTER, enrol)) == code


def _changed(terms: LabelTerms, **changes: Any) -> str:
    return json.dumps({**json.loads(terms.to_json()), **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"epsilon": 0},
        {"epsilon": "1"},
        {"epsilon": None},
        {"delta": 1e-5},
        {"num_classes": 1},
        {"num_classes": 3.0},
        {"pool_size": 0},
        {"least_clients": 6},
        {"mechanism": "labels"},
        {"sigma_party": 3.0},
        {"seed": -1},
        {"seed": True},
        {"classes": [1]},
        {"study": 3},
        {"extra": 1},
    ],
)
def test_malformed_terms_are_refused(disks: Path, changes: dict[str, Any]) -> None:
    text = _changed(labels_terms(), **changes)
    with pytest.raises(IntegrityError):
        LabelTerms.from_json(text)
    reply = send_to(0, LABELS, LabelRequest(terms=text, clusters=NOTHING).to_record())
    assert refusal_of(reply) == "MALFORMED"


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
        ({"clusters_digest": "00" * 32}, "MALFORMED"),
        ({"least_clients": 3, "sigma_party": 30.0}, "TERMS"),  # below two thirds
    ],
)
def test_terms_that_hide_less_than_they_say_are_refused(
    disks: Path, changes: dict[str, Any], code: str
) -> None:
    text = _changed(labels_terms(CLUSTER), **changes)
    digest = labels_terms(CLUSTER).digest
    try:
        digest = LabelTerms.from_json(text).digest
        assert code == "TERMS" or "clusters_digest" in changes
    except IntegrityError:
        assert code == "MALFORMED"
    enrol = CoordinatorSum(Identity.generate(), study=digest).enrol_request().to_bytes()
    reply = send_to(0, LABELS, LabelRequest(terms=text, clusters=CLUSTER, enrol=enrol).to_record())
    assert refusal_of(reply) == code


def test_malformed_requests_are_refused(disks: Path) -> None:
    good = LabelRequest(terms=labels_terms().to_json(), clusters=NOTHING).to_record()
    for bad in (
        {**good, "kind": "query"},
        {**good, "clusters": np.zeros(3)},
        {**good, "clusters": CLUSTER},
        {**good, "enrol": "text"},
        {**good, "more": 1},
        {name: value for name, value in good.items() if name != "clusters"},
    ):
        assert refusal_of(send_to(0, LABELS, bad)) == "MALFORMED"
    counts = labels_terms(CLUSTER)
    for wrong in (CLUSTER[:-1], CLUSTER[:, None], CLUSTER + 3, CLUSTER - 1):
        text = _changed(counts, clusters_digest=clusters_digest(wrong))
        request = LabelRequest(terms=text, clusters=wrong)
        assert refusal_of(send_to(0, LABELS, request.to_record())) == "MALFORMED"
    assert refusal_of(ask_labels(0, counts, CLUSTER, b"junk")) in ("MALFORMED", "FAULT")
    assert isinstance(ask_labels(0, labels_terms()), LabelReply)  # none of it was an answer


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
    assert reply.party == "north" and reply.index.tolist() == PARTS[0].tolist()
    policy.write_text("seeded_noise = true")
    path.write_text(json.dumps({**site, "policy": str(policy), "state_dir": str(tmp_path / "south")}))
    seeded = labels_terms(seed=4)
    own = RandRes(num_classes=CLASSES, epsilon=1.0).release(LABEL[PARTS[0]], seeded.hospital_noise(0)).label
    assert (ask_labels(0, seeded).label != own).any()  # who knows the seed does not know the noise
    path.write_text(json.dumps({**site, "terms_digest": "00" * 32, "state_dir": str(tmp_path / "east")}))
    assert refusal_of(ask_labels(0, labels_terms())) == "TERMS"


def test_a_fault_tells_nothing_of_the_labels(disks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(response: RandRes, labels: np.ndarray, noise: Any) -> Any:
        raise RuntimeError("at a fault")

    monkeypatch.setattr(RandRes, "release", broken)
    reply = ask_labels(0, labels_terms())
    assert refusal_of(reply) == "FAULT" and "at a fault" not in str(reply)
