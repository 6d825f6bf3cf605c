"""Private labels at hospitals over real messages: answered once, noisy and masked, refused, gone on with."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from pate_fed.flower import prepare_environment
from pate_fed.format import epsilon_text

prepare_environment()

from flwr.app import Message
from flwr.clientapp import ClientApp
from label_requests import CLASSES, CLUSTER, CLUSTERS, HOSPITALS, LABEL, PARTS, POOL, RECORDS, labels_terms

from clients.base import SummingHospital
from clients.hospital import Hospital
from pate_fed.cli import label_run
from pate_fed.config.study import Study
from pate_fed.errors import BudgetError, InputError, IntegrityError, QuorumError
from pate_fed.flower.inline import InlineGrid, run_inline
from pate_fed.flower.records import from_flower
from pate_fed.kinds.label_dp.clusters import noise_clusters
from pate_fed.kinds.label_dp.learners import LearnSettings
from pate_fed.kinds.label_dp.methods import MethodSettings, clusters_to_name, run_method
from pate_fed.kinds.label_dp.noise_cluster import label_counts, summed_labels
from pate_fed.kinds.label_dp.options import LabelOptions
from pate_fed.kinds.label_dp.public import PublicInputs
from pate_fed.kinds.label_dp.randres import RandRes
from pate_fed.kinds.label_dp.release import PrivateLabels, label_accuracy
from pate_fed.kinds.labels import LABEL_OF, THERE, LabelTerms
from pate_fed.kinds.make import PublicClusters, PublicPool, label_terms, spendable_by_counts
from pate_fed.kinds.terms import Terms
from pate_fed.privacy import NoiseSource, SeededNoise, noise_from_seed
from pate_fed.protocol.messages import (
    ANSWER,
    AnswerReply,
    JoinRequest,
    Question,
    Record,
    RefusalReply,
    SumRequest,
)
from pate_fed.report.log import read_log
from pate_fed.report.terminal import make_progress
from pate_fed.secure_sum import add_noise_share, read_reply, read_request
from pate_fed.secure_sum.messages import MaskedVector, MaskRequest
from pate_fed.structure.faults import Fault
from server import federation
from server.app import BaseCoordinator
from server.exchange import Stopped
from server.kinds import Figures
from server.kinds.labels import HospitalLabels, LabelSetup, LabelWork
from server.masked import MaskedRounds
from server.state import CoordinatorState

Watched = list[Record]
TAKE = MaskedRounds._take


class Asking(LabelWork):
    """A method that takes what it gets, and learns nothing."""

    source: HospitalLabels

    def learn(self, source: Any, figures: Figures) -> Any:
        setup = source.setup
        if setup.clusters is None:
            labels = source.respond(setup.terms.privacy.epsilon)
        else:
            labels = source.count(setup.clusters, CLUSTERS, epsilon=1.0, delta=1e-5)
        self.source, self.outcome = source, SimpleNamespace(labels=labels, facts={})  # type: ignore[assignment]
        return self.outcome

    def finish(self, outcome: Any, run_dir: Path, figures: Figures) -> None:
        """Nothing is exported or tested."""


OPTIONS: Any = SimpleNamespace(
    name="label-dp-lp-1st",
    method="lp-1st",
    dataset="files",
    hospitals=HOSPITALS,
    num_classes=CLASSES,
    records=RECORDS,
    pool_digest=POOL,
    epsilon=1.0,
    seed=None,
    to_toml=lambda: "[label-dp]\n",
)


class Labels:
    """A study of labels at hospitals on this machine, in its run directory."""

    def __init__(
        self,
        folder: Path,
        *,
        counts: bool = False,
        parts: tuple[np.ndarray, ...] = PARTS,
        backend: str = "inline",
        policy: Path | None = None,
        work: LabelWork | None = None,
        **changes: Any,
    ) -> None:
        self.run_dir, self.parts, self.policy = folder / "run", parts, policy
        self.work = work or Asking(options=OPTIONS, method=run_method)  # type: ignore[arg-type]
        self.setup = LabelSetup.of(
            self.work,
            labels_terms(CLUSTER if counts else None, **changes),
            self.run_dir,
            backend=backend,
            clusters=CLUSTER if counts else None,
            truth=LABEL,
        )

    def coordinator(self) -> BaseCoordinator:
        """One that begins the study, or goes on with it."""
        return BaseCoordinator(
            self.setup,
            threading.Event(),
            started=time.perf_counter(),
            progress=make_progress(True),
            quiet=True,
            resume=(self.run_dir / "study.toml").exists(),
        )

    def simulate(self, coordinator: BaseCoordinator) -> None:
        """Run it with all hospitals."""
        label_run.simulate_hospitals(
            coordinator, LABEL, self.parts, backend=self.setup.engine.backend, policy=self.policy
        )

    def run(self) -> PrivateLabels:
        """The labels that a method gets; what ended the study before is raised."""
        coordinator = self.coordinator()
        self.simulate(coordinator)
        coordinator.conclude(as_json=False)
        self.figures = coordinator._figures
        if coordinator.error is not None:
            raise coordinator.error
        assert self.work.outcome is not None
        return self.work.outcome.labels

    @property
    def private(self) -> Path:
        return self.run_dir / "private"

    @property
    def source(self) -> HospitalLabels:
        assert isinstance(self.work, Asking)
        return self.work.source

    def lines(self) -> tuple[str, ...]:
        return self.setup.lines(self.figures)

    def told(self) -> Any:
        """What metrics.json says of the hospitals."""
        return json.loads((self.run_dir / "metrics.json").read_text(encoding="utf-8"))["hospitals"]


def _noise(seed: int, number: int) -> NoiseSource:
    """That of a simulated hospital."""
    return noise_from_seed(Study(seed=seed).seed_for("noise", number, 0))


def _spent(terms: Terms) -> float:
    return LabelTerms.of(terms).spent(terms)


@pytest.fixture
def disks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The hospitals' own folders, which outlive a study here."""
    (folder := tmp_path / "disks").mkdir()

    @contextmanager
    def kept() -> Iterator[Path]:
        yield folder

    monkeypatch.setattr("pate_fed.cli.label_run.simulated_disks", kept)
    return folder


@pytest.fixture
def apart(disks: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, and another coordinator goes on, as where hospitals are processes of their own."""
    monkeypatch.setattr("pate_fed.flower.inline._SLICE_S", 60.0)  # who is asked has answered, however busy
    monkeypatch.setattr(LabelSetup, "apart", property(lambda setup: True))
    return disks


def _counted(disks: Path) -> list[int]:
    """How often each hospital counted its labels for somebody, by its own log."""
    logs = [(disks / f"hospital-{n}" / "log.jsonl").read_text().splitlines() for n in range(HOSPITALS)]
    return [sum(json.loads(line)["event"] == "answered" for line in log) for log in logs]


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
    study = Labels(tmp_path, parts=twice, backend=backend)
    with pytest.raises(QuorumError, match="every index must be there once") as refused:
        study.run()
    said = str(refused.value)
    assert said.count("every index") == 1 and f"at {HOSPITALS} of {HOSPITALS} parties (traceback in" in said
    [fault] = [each for _, each in read_log(study.run_dir / "log.jsonl") if isinstance(each, Fault)]
    assert fault.parties == HOSPITALS and "read_own_labels" in fault.traceback
    assert isinstance(refused.value.__cause__, InputError) == (backend == "inline")


# The same labels as without messages.


def test_responses_are_those_of_the_hospitals_own_noise(tmp_path: Path) -> None:
    found = Labels(tmp_path, epsilon=2.0, seed=7).run()
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


def test_counts_are_those_of_the_hospitals_own_noise(tmp_path: Path) -> None:
    study = Labels(tmp_path, counts=True, seed=7)
    found, terms = study.run(), study.setup.terms
    assert found.epsilon == _spent(terms) <= 1.0
    shared, total = LabelTerms.of(terms).shared(terms), _shares(terms, range(HOSPITALS))
    direct = summed_labels(shared, total, CLUSTER, SeededNoise(7), survivors=HOSPITALS)
    np.testing.assert_array_equal(found.label, direct)
    assert (found.label == LABEL).mean() == pytest.approx(0.8, abs=0.02)


def test_noise_is_the_systems_without_a_seed(tmp_path: Path) -> None:
    one, two = (Labels(tmp_path / name).run() for name in ("one", "two"))
    assert one.private and "CSPRNG" in one.noise
    assert (one.label != two.label).any()
    kept = (one.label == LABEL).mean()
    assert kept == pytest.approx(RandRes(num_classes=CLASSES, epsilon=1.0).probability, abs=0.13)


# Hospitals that fail.


@pytest.fixture
def spoilt(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes some hospitals' own files unusable."""

    def spoil(*numbers: int) -> None:
        dealt = label_run._dealt

        @contextmanager
        def bad(folder: Path, *given: Any) -> Iterator[None]:
            with dealt(folder, *given):
                for number in numbers:
                    (folder / f"hospital-{number}" / "labels.csv").write_text("index,label\n0,99\n")
                yield

        monkeypatch.setattr(label_run, "_dealt", bad)

    return spoil


def test_one_that_cannot_answer_is_left_out_of_the_labels(
    spoilt: Callable[..., None], tmp_path: Path
) -> None:
    spoilt(2)
    study = Labels(tmp_path, epsilon=8.0)
    found = study.run()
    assert (found.label[PARTS[2]] == -1).all() and (np.delete(found.label, PARTS[2]) >= 0).all()
    assert study.told()["answered"] == 4 and "at 4 hospitals" in found.how
    reason = "refused: the hospital's own data cannot be used"
    assert study.told()["left_out"] == [{"hospital": "hospital-2", "reason": reason}]


@pytest.mark.parametrize(("count", "told"), [(250, True), (4, False)])
def test_many_hospitals_least_noise_is_told_where_it_costs_accuracy(
    count: int, told: bool, tmp_path: Path
) -> None:
    """250 shares of at least √2 labels are more than ε 1 needs: what is not spent is said."""
    terms = label_terms(
        PublicPool(size=600, digest="ab" * 32, num_classes=3, shape=(8, 8, 1)),
        num_clients=count,
        quorum=0.8,
        epsilon=1.0,
        seed=None,
        clusters=PublicClusters(place=np.arange(600) % 6, count=6, delta=1e-5),
    )
    study = Labels(tmp_path)
    study.run()
    lines = replace(study.setup, terms=terms).lines(study.figures)
    assert len(lines) == 2 + told
    if told:
        spent = _spent(terms)
        assert spent < 0.5 and f"of ε 1 only {epsilon_text(spent)} is spent" in lines[2]
        assert "fewer hospitals" in lines[2]


@pytest.mark.parametrize("counts", [False, True])
def test_below_the_quorum_no_label_is_released(
    counts: bool, spoilt: Callable[..., None], tmp_path: Path
) -> None:
    spoilt(2, 4)
    with pytest.raises(QuorumError, match="3 of 5 parties are ready to answer; the quorum is 4"):
        Labels(tmp_path, counts=counts).run()


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


def test_one_that_falls_silent_is_out_of_the_sum_and_enough_noise_is_left(
    silent: set[str], tmp_path: Path
) -> None:
    silent.add("hospital-3")
    study = Labels(tmp_path, counts=True, seed=7)
    found, terms = study.run(), study.setup.terms
    shared = LabelTerms.of(terms).shared(terms)
    direct = summed_labels(shared, _shares(terms, [0, 1, 2, 4]), CLUSTER, SeededNoise(7), survivors=4)
    np.testing.assert_array_equal(found.label, direct)
    assert study.figures.hospitals == 4 and found.epsilon == _spent(terms)
    assert study.source.sigma == pytest.approx(2 * (terms.sigma_party or 0))


def test_no_sum_below_the_threshold(silent: set[str], tmp_path: Path) -> None:
    silent.update({"hospital-3", "hospital-0"})
    with pytest.raises(QuorumError, match="3 of 5 hospitals sent their masked vectors"):
        Labels(tmp_path, counts=True).run()


# Once, and replies that are wrong.


def test_counts_are_answered_once(disks: Path, tmp_path: Path) -> None:
    Labels(tmp_path, counts=True).run()
    # The same study again, with a coordinator that knows nothing of the first time.
    with pytest.raises(QuorumError, match="began the study's secure summation with another coordinator"):
        Labels(tmp_path / "again", counts=True).run()
    with pytest.raises(QuorumError, match="asked about its labels before"):
        Labels(tmp_path / "other", counts=True, epsilon=0.9).run()
    assert _counted(disks) == [1] * HOSPITALS


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
    told: Callable[[np.ndarray], None], answer: np.ndarray, message: str, tmp_path: Path
) -> None:
    told(answer)
    study = Labels(tmp_path, epsilon=3.0)
    found = study.run()
    assert (found.label[PARTS[4]] == -1).all() and message in study.told()["left_out"][0]["reason"]
    assert study.figures.hospitals == HOSPITALS - 1


def test_inputs_that_two_hospitals_have_get_no_label_and_that_is_told(
    told: Callable[[np.ndarray], None], tmp_path: Path
) -> None:
    told(_told(np.concatenate([PARTS[4], PARTS[0][:7]])))
    study = Labels(tmp_path, epsilon=3.0)
    found = study.run()
    assert (found.label < 0).sum() == (found.label[PARTS[0][:7]] < 0).sum() == 7
    assert study.work.contested == 7 and "more than one hospital has them: 7 inputs" in study.lines()[2]


def test_two_hospitals_of_one_name_are_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    join = Hospital.join

    def renamed(hospital: Hospital, request: JoinRequest) -> Any:
        return replace(join(hospital, request), party="hospital-0")

    monkeypatch.setattr(Hospital, "join", renamed)
    with pytest.raises(QuorumError, match="another party is already called hospital-0"):
        Labels(tmp_path).run()


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
    summed: bool, disks: Path, seen: Watched, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    study = Labels(tmp_path, counts=summed)
    study.run()
    crossed = b"|".join(map(_bytes_of, seen))
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "labels.csv"]
    kept = b"|".join(path.read_bytes() for path in files)
    said = "".join((*capfd.readouterr(), repr(study.setup), repr(study.source))).encode()
    assert len(seen) == 2 * HOSPITALS * (5 if summed else 2) and any("log" in p.name for p in files)
    for part in PARTS:
        for trace in _traces(part):
            assert trace not in crossed and trace not in kept and trace not in said
    if not summed:
        reply = AnswerReply(party="a", batch_digest="d", answer=_told(PARTS[0]))
        assert "hidden" in repr(reply) and "[" not in repr(reply)
    kinds = {record["kind"] for record in seen}
    assert kinds == {"join", "joined", *(("sum", "summed") if summed else ("question", "answer"))}


# The terms.


@pytest.mark.parametrize("quorum", [0.0, 1.5])
def test_what_a_quorum_cannot_be(quorum: float) -> None:
    pool = PublicPool(size=RECORDS, digest=POOL, num_classes=CLASSES, shape=(8, 8, 1))
    with pytest.raises(InputError, match=f"--quorum {quorum}"):
        label_terms(pool, num_clients=HOSPITALS, quorum=quorum, epsilon=1.0, seed=None)


def test_too_few_to_hide_among() -> None:
    pool = PublicPool(size=RECORDS, digest=POOL, num_classes=CLASSES, shape=(8, 8, 1))
    few: dict[str, Any] = {"num_clients": 3, "quorum": 0.8, "epsilon": 1.0, "seed": None}
    clusters = PublicClusters(place=CLUSTER, count=CLUSTERS, delta=1e-5)
    for attempt in (
        lambda: spendable_by_counts(pool, delta=1e-5, **few),
        lambda: label_terms(pool, clusters=clusters, **few),
    ):
        with pytest.raises(InputError, match="hospitals=3: a sum over fewer than 4"):
            attempt()
    assert label_terms(pool, **few).num_clients == 3


def test_more_noise_than_needed_is_never_less_private() -> None:
    terms = labels_terms(CLUSTER)
    more = replace(terms, sigma_party=2 * (terms.sigma_party or 0))
    assert _spent(more) < _spent(terms) <= 1.0 == _spent(labels_terms())


def test_a_method_gets_labels_of_the_clusters_alone_that_hospitals_were_asked_about(tmp_path: Path) -> None:
    study = Labels(tmp_path, counts=True)
    study.run()
    others = (CLUSTER + 1) % CLUSTERS
    for attempt in (
        lambda: study.source.respond(1.0),
        lambda: study.source.count(others, CLUSTERS, epsilon=1.0, delta=1e-5),
    ):
        with pytest.raises(IntegrityError, match="in other clusters"):
            attempt()


# The coordinator.


def test_the_coordinator_knows_whose_key_a_node_has_and_how_it_ended(tmp_path: Path) -> None:
    study = Labels(tmp_path)
    made = study.coordinator()
    made.set_admitted({2: "hospital-0", 3: "somebody"}, {}, key=Ed25519PrivateKey.generate())
    study.simulate(made)
    assert isinstance(made.error, QuorumError) and "1 of 5" in str(made.error)
    notice = made.outcome_notice()
    assert (notice.status, notice.exit_code) == ("failed", 4) and "ε=0 δ=0" in notice.summary


def test_labels_of_who_is_revoked_while_others_are_asked_count_nowhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    names = {2 + number: f"hospital-{number}" for number in range(HOSPITALS)}
    keep = CoordinatorState.keep_answer

    def revoke(state: CoordinatorState, party: str, answer: np.ndarray) -> None:
        keep(state, party, answer)
        if party == f"hospital-{HOSPITALS - 2}":
            for number in (0, HOSPITALS - 1):  # one whose labels are taken, and one whose are on their way
                del names[2 + number]

    monkeypatch.setattr(CoordinatorState, "keep_answer", revoke)
    study = Labels(tmp_path, least_clients=3)
    made = study.coordinator()
    made.set_admitted(names, {}, key=Ed25519PrivateKey.generate())
    study.simulate(made)
    assert made.error is None and made._figures.hospitals == HOSPITALS - 2
    for number, part in enumerate(PARTS):
        assert (study.source.labels.label[part] >= 0).any() == (number not in (0, HOSPITALS - 1))


def test_ctrl_c_is_heard_and_the_site_put_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATE_FED_SITE", "before")
    answer = Hospital.answer

    def interrupt(hospital: Hospital, request: Question) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return answer(hospital, request)

    monkeypatch.setattr(Hospital, "answer", interrupt)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's `&` has it ignored
    try:
        with pytest.raises(Stopped):
            Labels(tmp_path).run()
    finally:
        signal.signal(signal.SIGINT, before)
    assert os.environ["PATE_FED_SITE"] == "before"


@pytest.mark.parametrize("counts", [True, False])
def test_hospitals_are_told_of_no_cost_where_nothing_can_have_left(counts: bool, tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text("epsilon_public = 0.1")
    study = Labels(tmp_path, counts=counts, policy=policy)
    made = study.coordinator()
    study.simulate(made)
    assert isinstance(made.error, QuorumError) and "0 of 5" in str(made.error)
    assert made.outcome_notice().summary == f"ε=0 δ={'1e-5' if counts else '0'} labels=0"
    made.conclude(as_json=False)
    assert study.told()["coordinator"] == {"epsilon": 0.0, "delta": 1e-5 * counts, "sees": "nothing"}


@pytest.mark.parametrize(
    ("backend", "words"), [("grpc", "--wait says how long they have"), ("inline", "within 0 s")]
)
def test_hospitals_with_processes_were_waited_for_before(
    backend: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """--wait is all the time that they have; only simulated ones, which come at once, are waited for here."""
    monkeypatch.setattr("server.federation._CONNECT_S", 0.2)
    made = Labels(tmp_path, backend=backend).coordinator()
    made.run(lambda app: run_inline(app, ClientApp(), num_nodes=0))
    assert isinstance(made.error, QuorumError) and words in str(made.error)


def test_what_was_sent_and_not_heard_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped while hospitals answer: their labels are on the way."""
    whole = federation.exchange

    def stopped(*arguments: Any, message_type: str, **named: Any) -> Iterator[Any]:
        heard = list(whole(*arguments, message_type=message_type, **named))
        if message_type == ANSWER:
            raise Stopped
        yield from heard

    monkeypatch.setattr(federation, "exchange", stopped)
    study = Labels(tmp_path)
    made = study.coordinator()
    study.simulate(made)
    notice = made.outcome_notice()
    assert (notice.status, notice.summary) == ("aborted", "ε=1 δ=0 labels=0")
    made.conclude(as_json=False)
    assert study.told()["coordinator"]["epsilon"] == 1.0


# Another coordinator goes on; no hospital answers twice.


def test_a_sum_that_is_there_is_taken_again_and_nobody_asked(dying: Any, apart: Path, tmp_path: Path) -> None:
    study = Labels(tmp_path, counts=True)
    with dying(CoordinatorState, "keep_totals"):
        study.run()
    assert {oct(path.stat().st_mode)[-3:] for path in study.private.iterdir()} == {"600"}
    assert oct(study.private.stat().st_mode)[-3:] == "700"
    [path] = study.private.glob("totals-*")
    with np.load(path) as held:
        exact = label_counts(CLUSTER, LABEL, CLUSTERS, CLASSES)
        assert held["value"].any() and (held["value"] != exact).any()  # noisy: that is why it may lie here
    content = path.read_bytes()
    path.write_bytes(b"")
    with pytest.raises(IntegrityError, match="kept totals are damaged"):
        study.run()
    np.savez(path, index=np.arange(2), value=np.zeros((2, 2), dtype=np.int64), voters=5)
    with pytest.raises(IntegrityError, match="of another study"):
        study.run()
    path.write_bytes(content)
    first = study.run()
    assert "nobody was asked again" in study.lines()[2] and study.told()["kept"]
    assert study.figures.hospitals == HOSPITALS and not study.private.exists()
    with pytest.raises(InputError, match="another process has finished this run"):
        study.run()
    (study.run_dir / "metrics.json").unlink()  # as where a process died just before it told
    again = study.run()
    np.testing.assert_array_equal(first.label, again.label)
    assert "on the ledger: nobody was asked again" in study.lines()[1] and study.told()["answered"] is None
    assert _counted(apart) == [1] * HOSPITALS


def test_counts_that_are_lost_are_told_and_not_asked_for_again(
    apart: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = Labels(tmp_path, counts=True)
    with monkeypatch.context() as patch:
        patch.setattr(MaskedRounds, "_take", _lost)
        with pytest.raises(
            QuorumError, match=r"3 of 5 hospitals sent .*; ε=1 δ=1e-5 counts as spent at every"
        ):
            study.run()
    before = _counted(apart)
    assert before == [1] * HOSPITALS
    for _ in range(2):
        with pytest.raises(BudgetError, match="there was no sum; ε=1 δ=1e-5 counts as spent"):
            study.run()
    # Not under a smaller ε either: hospitals hold on to the terms that they know.
    with pytest.raises(QuorumError, match="asked about its labels before"):
        Labels(tmp_path / "other", counts=True, epsilon=0.5).run()
    assert _counted(apart) == before


def test_counts_that_were_not_heard_stay_open_and_are_not_counted_again(
    apart: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = Labels(tmp_path, counts=True)
    with monkeypatch.context() as patch:
        patch.setattr(MaskedRounds, "_take", _deaf)
        for _ in range(2):
            with pytest.raises(
                QuorumError, match=r"3 of 5 hospitals sent .* the same command goes on with it"
            ):
                study.run()
    left_out = len(study.told()["left_out"])
    found = study.run()
    assert _counted(apart) == [1] * HOSPITALS and (found.label == LABEL).mean() > 0.7
    assert study.figures.hospitals == HOSPITALS and len(study.told()["left_out"]) == left_out


def _from_two(participants: Any, answer: Any) -> bool:
    """Whether this is a vector of one of two hospitals."""
    vector = isinstance(read_reply(answer.reply.step), MaskedVector)
    return vector and participants[answer.node] in ("hospital-1", "hospital-2")


def _deaf(self: MaskedRounds, batch: Any, step: int, participants: Any, answer: Any) -> None:
    """Two hospitals' vectors come, and are not heard."""
    if _from_two(participants, answer):
        raise IntegrityError("was not heard")
    TAKE(self, batch, step, participants, answer)


def _lost(self: MaskedRounds, batch: Any, step: int, participants: Any, answer: Any) -> None:
    """Two hospitals' vectors do not come, and they say that they gave them."""
    if _from_two(participants, answer):
        answer = replace(answer, reply=RefusalReply(party=participants[answer.node], code="REPEATED"))
    TAKE(self, batch, step, participants, answer)


def test_what_a_sum_that_fails_cost_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MaskedRounds, "_take", _lost)
    study = Labels(tmp_path, counts=True)
    made = study.coordinator()
    study.simulate(made)
    assert isinstance(made.error, QuorumError) and "counts as spent at every" in str(made.error)
    notice = made.outcome_notice()
    assert (notice.exit_code, notice.summary.startswith("ε=1 ")) == (4, True)


def test_hospitals_wait_for_whoever_goes_on_with_an_open_sum(
    apart: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MaskedRounds, "_take", _deaf)
    study = Labels(tmp_path, counts=True)
    made = study.coordinator()
    study.simulate(made)
    assert isinstance(made.error, QuorumError) and "stays open" in str(made.error)
    assert made.outcome_notice().exit_code == 130 and _counted(apart) == [1] * HOSPITALS
    made.conclude(as_json=False)
    assert study.told()["coordinator"]["epsilon"] == _spent(study.setup.terms)


# Whole methods.


QUICK = MethodSettings(learn=LearnSettings(epochs=1, batch_size=32), num_clusters=CLUSTERS)


@pytest.fixture(scope="module")
def public() -> PublicInputs:
    """Images whose bright rows tell the class."""
    images = np.random.default_rng(0).integers(0, 60, (RECORDS, 16, 16, 1))
    for row in range(4):
        images[np.arange(RECORDS), 4 * LABEL + row] += 150
    return PublicInputs(images.astype(np.uint8), num_classes=CLASSES)


def _work(name: str, public: PublicInputs) -> LabelWork:
    settings = replace(QUICK, clusterer=lambda *_, **__: CLUSTER)
    options: LabelOptions = OPTIONS
    return LabelWork(
        options=options,
        method=lambda source: run_method(name, public, source, epsilon=3.0, settings=settings, seed=0),
    )


def test_methods_learn_from_labels_at_hospitals(public: PublicInputs, tmp_path: Path) -> None:
    local = Labels(tmp_path / "local", epsilon=3.0, work=_work("lp-1st", public)).run()
    assert local.private and "5 hospitals" in local.how
    right = label_accuracy(local.label, LABEL)
    assert right == pytest.approx(RandRes(num_classes=4, epsilon=3.0).probability, abs=0.09)
    work = _work("noise-cluster", public)
    study = Labels(tmp_path / "summed", counts=True, epsilon=3.0, seed=0, work=work)
    summed, terms = study.run(), study.setup.terms
    assert label_accuracy(summed.label, LABEL) == pytest.approx(0.8, abs=0.01)  # as well as its clusters
    assert summed.epsilon <= 3.0 and "summed under masks" in summed.how and not summed.private
    assert work.outcome is not None
    assert work.outcome.facts["sigma"] == (terms.sigma_party or 0) * HOSPITALS**0.5
    with pytest.raises(InputError, match="only randres"):
        Labels(tmp_path / "none", work=_work("pate-fm", public)).run()


def test_many_hospitals_get_clusters_that_suit_their_noise(public: PublicInputs) -> None:
    """80 least shares of noise are more than ε 2 needs: fewer clusters, as for the ε that is spent."""
    pool = PublicPool(size=RECORDS, digest=POOL, num_classes=CLASSES, shape=(8, 8, 1))

    def clusters(count: int, epsilon: float) -> int:
        spends = spendable_by_counts(
            pool, num_clients=count, quorum=0.8, epsilon=epsilon, seed=None, delta=1e-5
        )
        return clusters_to_name(public, MethodSettings(), spends)[1]

    alone = noise_clusters(RECORDS, 4, epsilon=2.0, delta=1e-5)
    assert clusters(4, 2.0) == alone > clusters(80, 2.0)
    assert clusters(80, 2.0) == clusters(80, 0.52) >= 4
