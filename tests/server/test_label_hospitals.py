"""Labels at hospitals over real messages: answered once, noisy and masked, or refused."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from pate_fed.flower import prepare_environment
from pate_fed.format import epsilon_text

prepare_environment()

from flwr.app import Message
from label_requests import CLASSES, CLUSTER, CLUSTERS, HOSPITALS, LABEL, PARTS, POOL, RECORDS

import clients.app
from clients.base import SummingHospital
from clients.hospital import Hospital
from pate_fed.config.study import Study
from pate_fed.errors import InputError, QuorumError
from pate_fed.flower.inline import InlineGrid
from pate_fed.flower.records import from_flower
from pate_fed.kinds.label_dp.clusters import noise_clusters
from pate_fed.kinds.label_dp.federation import summed_labels
from pate_fed.kinds.label_dp.learners import LearnSettings
from pate_fed.kinds.label_dp.methods import MethodSettings, clusters_to_name, run_method
from pate_fed.kinds.label_dp.noise_cluster import label_counts
from pate_fed.kinds.label_dp.public import PublicInputs
from pate_fed.kinds.label_dp.randres import RandRes
from pate_fed.kinds.label_dp.release import label_accuracy
from pate_fed.kinds.labels import LABEL_OF, THERE, LabelTerms
from pate_fed.kinds.make import PublicClusters, PublicPool, label_terms
from pate_fed.kinds.terms import Terms
from pate_fed.privacy import NoiseSource, SeededNoise, noise_from_seed
from pate_fed.protocol.messages import AnswerReply, JoinRequest, Question, Record, SumRequest
from pate_fed.report.terminal import make_progress
from pate_fed.secure_sum import add_noise_share, read_request
from pate_fed.secure_sum.messages import MaskRequest
from pate_fed.structure.faults import Fault
from server.label_hospitals import HospitalLabels, Place, SimulatedHospitals
from server.labels import LabelCoordinator
from server.state import CoordinatorState

Watched = list[Record]


def _place(parts: tuple[np.ndarray, ...] = PARTS) -> Place:
    return SimulatedHospitals(parts=parts, labels=LABEL, client_app=lambda: clients.app.app)


def _hospitals(place: Place | None = None, **changes: Any) -> HospitalLabels:
    pool = PublicPool(size=RECORDS, digest=POOL, num_classes=CLASSES, shape=(8, 8, 1))
    return HospitalLabels(place=place or _place(), pool=pool, **changes)


def _terms(clusters: np.ndarray | None = None, *, epsilon: float = 1.0, seed: int | None = None) -> Terms:
    counted = None if clusters is None else PublicClusters(place=clusters, count=CLUSTERS, delta=1e-5)
    return _hospitals(seed=seed).make_terms(epsilon=epsilon, clusters=counted)


def _noise(seed: int, number: int) -> NoiseSource:
    """That of a simulated hospital."""
    return noise_from_seed(Study(seed=seed).seed_for("noise", number, 0))


def _spent(terms: Terms) -> float:
    return LabelTerms.of(terms).spent(terms)


@pytest.fixture
def disks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The hospitals' own folders, which outlive a study here."""

    @contextmanager
    def kept() -> Iterator[Path]:
        yield tmp_path

    monkeypatch.setattr("server.label_hospitals.simulated_disks", kept)
    return tmp_path


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Watched:
    """Every record that crosses between coordinator and hospitals, in order."""
    crossed: Watched = []
    deliver = InlineGrid._deliver

    def watch(grid: InlineGrid, message: Message) -> Message:
        crossed.append(from_flower(message.content))
        reply = deliver(grid, message)
        crossed.append(from_flower(reply.content))
        return reply

    monkeypatch.setattr(InlineGrid, "_deliver", watch)
    return crossed


@pytest.mark.parametrize("backend", ["inline", pytest.param("ray", marks=pytest.mark.slow)])
def test_what_is_wrong_at_simulated_hospitals_is_told_once_in_words(backend: str, tmp_path: Path) -> None:
    twice = tuple(np.concatenate([part, part[:1]]) for part in PARTS)
    place, heard = replace(_place(twice), backend=backend), list[Fault]()

    def hear(fault: Fault) -> Path:
        heard.append(fault)
        return tmp_path / "log.jsonl"

    with pytest.raises(QuorumError, match="every index must be there once") as refused:
        _hospitals(place, fault=hear).respond(2.0)
    said = str(refused.value)
    assert said.count("every index") == 1 and f"at {HOSPITALS} of {HOSPITALS} parties (traceback in" in said
    [fault] = heard
    assert fault.parties == HOSPITALS and "read_own_labels" in fault.traceback
    assert isinstance(refused.value.__cause__, InputError) == (backend == "inline")


# The same labels as without messages.


def test_responses_are_those_of_the_hospitals_own_noise() -> None:
    found = _hospitals(seed=7).respond(2.0)
    response = RandRes(num_classes=CLASSES, epsilon=2.0)
    for number, part in enumerate(PARTS):
        direct = response.release(LABEL[part], _noise(7, number)).label
        np.testing.assert_array_equal(found.label[part], direct)
    assert (found.epsilon, found.delta, found.private) == (2.0, 0.0, False)
    assert found.noise == "not private: seeded noise"
    assert len({tuple(_noise(7, n).tie_keys(3)) for n in range(5)}) == 5


def _shares(terms: Terms, numbers: range | list[int]) -> np.ndarray:
    total = np.zeros((CLUSTERS, CLASSES), dtype=np.int64)
    for number in numbers:
        part = PARTS[number]
        counts = label_counts(CLUSTER[part], LABEL[part], CLUSTERS, CLASSES)
        draw = _noise(7, number).discrete_gaussian
        total += add_noise_share(counts, draw, sigma_party=terms.sigma_party or 0.0)
    return total


def test_counts_are_those_of_the_hospitals_own_noise(disks: Path) -> None:
    hospitals = _hospitals(seed=7)
    found = hospitals.count(CLUSTER, CLUSTERS, epsilon=1.0, delta=1e-5)
    terms = _terms(CLUSTER, seed=7)
    assert hospitals.terms == terms and found.epsilon == _spent(terms) <= 1.0
    shared, total = LabelTerms.of(terms).shared(terms), _shares(terms, range(HOSPITALS))
    direct = summed_labels(shared, total, CLUSTER, SeededNoise(7), survivors=HOSPITALS)
    np.testing.assert_array_equal(found.label, direct)
    assert (found.label == LABEL).mean() == pytest.approx(0.8, abs=0.02)


def test_noise_is_the_systems_without_a_seed() -> None:
    one, two = (_hospitals().respond(1.0) for _ in range(2))
    assert one.private and "CSPRNG" in one.noise
    assert (one.label != two.label).any()
    kept = (one.label == LABEL).mean()
    assert kept == pytest.approx(RandRes(num_classes=CLASSES, epsilon=1.0).probability, abs=0.13)


# Hospitals that fail.


@pytest.fixture
def spoilt(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes some hospitals' own files unusable."""

    def spoil(*numbers: int) -> None:
        dealt = SimulatedHospitals._dealt

        @contextmanager
        def bad(hospitals: SimulatedHospitals, folder: Path) -> Iterator[None]:
            with dealt(hospitals, folder):
                for number in numbers:
                    (folder / f"hospital-{number}" / "labels.csv").write_text("index,label\n0,99\n")
                yield

        monkeypatch.setattr(SimulatedHospitals, "_dealt", bad)

    return spoil


def test_one_that_cannot_answer_is_left_out_of_the_labels(spoilt: Callable[..., None]) -> None:
    spoilt(2)
    hospitals = _hospitals()
    found = hospitals.respond(8.0)
    assert (found.label[PARTS[2]] == -1).all() and (np.delete(found.label, PARTS[2]) >= 0).all()
    assert hospitals.answered == 4 and "at 4 hospitals" in found.how
    assert hospitals.left_out == (("hospital-2", "refused: the hospital's own data cannot be used"),)
    assert hospitals.to_dict()["left_out"][0]["hospital"] == "hospital-2"


@pytest.mark.parametrize(("count", "told"), [(250, True), (4, False)])
def test_many_hospitals_least_noise_is_told_where_it_costs_accuracy(count: int, told: bool) -> None:
    """250 shares of at least √2 labels are more than ε 1 needs: what is not spent is said."""
    hospitals = _hospitals()
    hospitals.terms = label_terms(
        PublicPool(size=600, digest="ab" * 32, num_classes=3, shape=(8, 8, 1)),
        num_clients=count,
        quorum=0.8,
        epsilon=1.0,
        seed=None,
        clusters=PublicClusters(place=np.arange(600) % 6, count=6, delta=1e-5),
    )
    lines = hospitals.lines()
    assert len(lines) == 1 + told
    if told:
        spent = _spent(hospitals.terms)
        assert spent < 0.5 and f"of ε 1 only {epsilon_text(spent)} is spent" in lines[1]
        assert "fewer hospitals" in lines[1]


def test_below_the_quorum_no_label_is_released(spoilt: Callable[..., None]) -> None:
    spoilt(2, 4)
    with pytest.raises(QuorumError, match="3 of 5 parties are ready to answer; the quorum is 4"):
        _hospitals().respond(8.0)
    with pytest.raises(QuorumError, match="3 of 5"):
        _hospitals().count(CLUSTER, CLUSTERS, epsilon=1.0, delta=1e-5)


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Names of hospitals that fall silent when they are asked for their masked counts."""
    names: set[str] = set()
    step = SummingHospital.sum_step

    def fail(hospital: SummingHospital, request: SumRequest) -> Any:
        if hospital._site.party in names and isinstance(read_request(request.step), MaskRequest):
            raise ConnectionError
        return step(hospital, request)

    monkeypatch.setattr(SummingHospital, "sum_step", fail)
    return names


def test_one_that_falls_silent_is_out_of_the_sum_and_enough_noise_is_left(silent: set[str]) -> None:
    silent.add("hospital-3")
    hospitals = _hospitals(seed=7)
    found = hospitals.count(CLUSTER, CLUSTERS, epsilon=1.0, delta=1e-5)
    terms, there = _terms(CLUSTER, seed=7), [0, 1, 2, 4]
    shared = LabelTerms.of(terms).shared(terms)
    direct = summed_labels(shared, _shares(terms, there), CLUSTER, SeededNoise(7), survivors=4)
    np.testing.assert_array_equal(found.label, direct)
    assert hospitals.answered == 4 and found.epsilon == _spent(terms)
    assert hospitals.sigma == pytest.approx(2 * (terms.sigma_party or 0))


def test_no_sum_below_the_threshold(silent: set[str]) -> None:
    silent.update({"hospital-3", "hospital-0"})
    with pytest.raises(QuorumError, match="3 of 5 hospitals sent their masked vectors"):
        _hospitals().count(CLUSTER, CLUSTERS, epsilon=1.0, delta=1e-5)


# Once, and replies that are wrong.


def test_counts_are_answered_once(disks: Path) -> None:
    hospitals = _hospitals()
    hospitals.count(CLUSTER, CLUSTERS, epsilon=1.0, delta=1e-5)
    # The same study again, with a coordinator that forgot the first time.
    with pytest.raises(QuorumError, match="began the study's secure summation with another coordinator"):
        hospitals.count(CLUSTER, CLUSTERS, epsilon=1.0, delta=1e-5)
    with pytest.raises(QuorumError, match="asked about its labels before"):
        hospitals.count(CLUSTER, CLUSTERS, epsilon=0.9, delta=1e-5)


def _told(part: np.ndarray, label: int = 1) -> np.ndarray:
    """A response about these places."""
    answer = np.zeros((RECORDS, 2), dtype=np.int64)
    answer[part, THERE], answer[part, LABEL_OF] = 1, label
    return answer


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Callable[[np.ndarray], None]:
    """Has the last hospital tell this instead of its response."""

    def tell(answer: np.ndarray) -> None:
        whole = Hospital.answer

        def tampered(hospital: Hospital, request: Question) -> Any:
            reply = whole(hospital, request)
            return replace(reply, answer=answer) if hospital._site.party == "hospital-4" else reply

        monkeypatch.setattr(Hospital, "answer", tampered)

    return tell


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (_told(PARTS[4])[:-1], "the shape"),
        (_told(PARTS[4][:0]), "own inputs"),
        (2 * _told(PARTS[4]), "own inputs"),
        (_told(PARTS[4], 4), "no classes"),
        (_told(PARTS[4], -1), "no classes"),
        (_told(PARTS[4]) + np.array([0, 1]), "others' inputs"),
    ],
)
def test_replies_that_no_honest_hospital_sends_are_left_out(
    told: Callable[[np.ndarray], None], answer: np.ndarray, message: str
) -> None:
    told(answer)
    hospitals = _hospitals()
    found = hospitals.respond(3.0)
    assert (found.label[PARTS[4]] == -1).all() and message in hospitals.left_out[0][1]
    assert hospitals.answered == HOSPITALS - 1


def test_inputs_that_two_hospitals_have_get_no_label_and_that_is_told(
    told: Callable[[np.ndarray], None],
) -> None:
    told(_told(np.concatenate([PARTS[4], PARTS[0][:7]])))
    hospitals = _hospitals()
    found = hospitals.respond(3.0)
    assert (found.label < 0).sum() == (found.label[PARTS[0][:7]] < 0).sum() == 7
    assert hospitals.contested == 7 and "more than one hospital has them: 7 inputs" in hospitals.lines()[1]


def test_two_hospitals_of_one_name_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    join = Hospital.join

    def renamed(hospital: Hospital, request: JoinRequest) -> Any:
        return replace(join(hospital, request), party="hospital-0")

    monkeypatch.setattr(Hospital, "join", renamed)
    with pytest.raises(QuorumError, match="another party is already called hospital-0"):
        _hospitals().respond(3.0)


# What leaves.


def _bytes_of(record: Record) -> bytes:
    return b"".join(
        value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode()
        for value in record.values()
    )


def _traces(part: np.ndarray) -> list[bytes]:
    """Ways in which one hospital's true labels could be spelt."""
    true = LABEL[part]
    counts = label_counts(CLUSTER[part], true, CLUSTERS, CLASSES)
    dense = np.zeros((RECORDS, 2), dtype=np.int64)
    dense[part, THERE], dense[part, LABEL_OF] = 1, true
    arrays = [
        dense,
        true,
        true.astype("<i4"),
        true.astype("<i2"),
        true.astype("u1"),
        counts,
        counts.astype("<u4"),
    ]
    texts = [str(true.tolist()), ",".join(map(str, true)), str(true), str(counts.tolist())]
    return [*(array.tobytes() for array in arrays), *(text.encode() for text in texts)]


@pytest.mark.parametrize("summed", [False, True])
def test_true_labels_are_in_no_message_file_or_repr(
    summed: bool, disks: Path, seen: Watched, capfd: pytest.CaptureFixture[str]
) -> None:
    hospitals = _hospitals()
    if summed:
        hospitals.count(CLUSTER, CLUSTERS, epsilon=1.0, delta=1e-5)
    else:
        hospitals.respond(1.0)
    crossed = b"|".join(map(_bytes_of, seen))
    files = [path for path in disks.rglob("*") if path.is_file() and path.name != "labels.csv"]
    kept = b"|".join(path.read_bytes() for path in files)
    said = "".join((*capfd.readouterr(), repr(hospitals), repr(_terms()))).encode()
    assert len(seen) == 2 * HOSPITALS * (5 if summed else 2) and any("log" in p.name for p in files)
    for part in PARTS:
        for trace in _traces(part):
            assert trace not in crossed and trace not in kept and trace not in said
    if not summed:
        reply = AnswerReply(party="a", batch_digest="d", answer=_told(PARTS[0]))
        assert "hidden" in repr(reply) and "[" not in repr(reply)
    kinds = {record["kind"] for record in seen}
    assert kinds == {"join", "joined", *(("sum", "summed") if summed else ("question", "answer"))}


# The launcher.


@pytest.mark.parametrize(("changes", "message"), [({"quorum": 0.0}, "--quorum 0"), ({"quorum": 1.5}, "1.5")])
def test_what_hospitals_cannot_be(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        _hospitals(**changes)


def test_too_few_to_hide_among() -> None:
    few = _hospitals(_place(PARTS[:3]))
    for attempt in (
        lambda: few.spendable(1.0, 1e-5),
        lambda: few.count(CLUSTER, CLUSTERS, epsilon=1.0, delta=1e-5),
    ):
        with pytest.raises(InputError, match="hospitals=3: a sum over fewer than 4"):
            attempt()
    assert few.make_terms(epsilon=1.0).num_clients == 3


def test_more_noise_than_needed_is_never_less_private() -> None:
    terms = _terms(CLUSTER)
    more = replace(terms, sigma_party=2 * (terms.sigma_party or 0))
    assert _spent(more) < _spent(terms) <= 1.0 == _spent(_terms())


def test_the_coordinator_knows_whose_key_a_node_has_and_how_it_ended() -> None:
    given = {"clusters": None, "backend": "inline", "progress": make_progress(True)}
    made = LabelCoordinator(_terms(), stop=threading.Event(), **given)
    made.set_admitted({2: "hospital-0", 3: "somebody"}, {}, key=Ed25519PrivateKey.generate())
    assert made.terms_digest == _terms().digest
    with pytest.raises(QuorumError, match="1 of 5"):
        made.run(lambda app: _hospitals().place.run(app, made, threading.Event()))
    notice = made.outcome_notice()
    assert (notice.status, notice.exit_code) == ("failed", 4) and "ε=0 δ=0" in notice.summary


def test_labels_of_who_is_revoked_while_others_are_asked_count_nowhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = {2 + number: f"hospital-{number}" for number in range(HOSPITALS)}
    keep = CoordinatorState.keep_answer

    def revoke(state: CoordinatorState, party: str, answer: np.ndarray) -> None:
        keep(state, party, answer)
        if party == f"hospital-{HOSPITALS - 2}":
            for number in (0, HOSPITALS - 1):  # one whose labels are taken, and one whose are on their way
                del names[2 + number]

    monkeypatch.setattr(CoordinatorState, "keep_answer", revoke)
    given = {"clusters": None, "backend": "inline", "progress": make_progress(True)}
    made = LabelCoordinator(replace(_terms(), least_clients=3), stop=threading.Event(), **given)
    made.set_admitted(names, {}, key=Ed25519PrivateKey.generate())
    found = made.run(lambda app: _hospitals().place.run(app, made, threading.Event()))
    assert found.hospitals == HOSPITALS - 2 and found.totals is not None
    for number, part in enumerate(PARTS):
        assert found.totals[part, THERE].any() == (number not in (0, HOSPITALS - 1))


def test_ctrl_c_is_heard_and_the_site_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATE_FED_SITE", "before")
    answer = Hospital.answer

    def interrupt(hospital: Hospital, request: Question) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return answer(hospital, request)

    monkeypatch.setattr(Hospital, "answer", interrupt)
    with pytest.raises(KeyboardInterrupt):
        _hospitals().respond(1.0)
    assert os.environ["PATE_FED_SITE"] == "before"


# Whole methods.


QUICK = MethodSettings(learn=LearnSettings(epochs=1, batch_size=32), num_clusters=12)


@pytest.fixture(scope="module")
def public() -> PublicInputs:
    """Images whose bright rows tell the class."""
    images = np.random.default_rng(0).integers(0, 60, (RECORDS, 16, 16, 1))
    for row in range(4):
        images[np.arange(RECORDS), 4 * LABEL + row] += 150
    return PublicInputs(images.astype(np.uint8), num_classes=CLASSES)


def test_methods_learn_from_labels_at_hospitals(public: PublicInputs) -> None:
    local = run_method("lp-1st", public, _hospitals(), epsilon=3.0, settings=QUICK, seed=0)
    assert local.labels.private and "5 hospitals" in local.labels.how
    right = label_accuracy(local.labels.label, LABEL)
    assert right == pytest.approx(RandRes(num_classes=4, epsilon=3.0).probability, abs=0.09)
    seeded = _hospitals(seed=0)
    summed = run_method("noise-cluster", public, seeded, epsilon=3.0, settings=QUICK, seed=0)
    assert label_accuracy(summed.labels.label, LABEL) > 0.9  # type: ignore[operator]
    assert summed.labels.epsilon <= 3.0 and "summed under masks" in summed.labels.how
    assert not summed.labels.private and summed.facts["sigma"] == seeded.sigma
    with pytest.raises(InputError, match="only randres"):
        run_method("pate-fm", public, _hospitals(), epsilon=1, settings=QUICK, seed=0)


def test_many_hospitals_get_clusters_that_suit_their_noise(public: PublicInputs) -> None:
    """80 least shares of noise are more than ε 2 needs: fewer clusters, as for the ε that is spent."""

    def clusters(count: int, epsilon: float) -> int:
        there = _hospitals(_place(tuple(np.array_split(np.arange(600), count))))
        return clusters_to_name(public, MethodSettings(), there, epsilon)[1]

    alone = noise_clusters(600, 4, epsilon=2.0, delta=1e-5)
    assert clusters(4, 2.0) == alone > clusters(80, 2.0)
    assert clusters(80, 2.0) == clusters(80, 0.52) >= 4
