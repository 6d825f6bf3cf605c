"""The kinds of question that hospitals answer, each behind the same few calls, for tests of all of them.

`HospitalKind` is one kind at four real hospitals, as processes find them on their disks, and a coordinator
that a test may make ask anything. `StudyKind` is a whole study of it in this process, whose run directory and
hospitals outlive every coordinator. What differs by kind stands in the classes that extend them; a new kind
is one more pair of these, and stands in every test with no skip.
"""

from __future__ import annotations

import json
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from own_kind import Median

from pate_fed.flower import prepare_environment

prepare_environment()


import clients.app
from clients.hospital import Hospital
from clients.leave import has_left
from clients.local import local_site, simulated_site
from clients.log import Answered, HospitalLog, over_since, read_events
from clients.log_check import check_log
from clients.state_dir import LocalSettings
from pate_fed.cli.main import main
from pate_fed.config.data import load_study_data
from pate_fed.config.study import Study, read_study, study_from_dict
from pate_fed.errors import InputError
from pate_fed.flower.inline import run_inline
from pate_fed.kinds.labels import clusters_file
from pate_fed.kinds.make import PublicClusters, PublicPool, label_terms, make_terms, public_file
from pate_fed.kinds.own import shares_of
from pate_fed.kinds.rounds import ScoredTerms
from pate_fed.kinds.terms import Terms
from pate_fed.privacy import Ledger
from pate_fed.privacy.ledger.report import verify_run
from pate_fed.protocol.heads import Statement, heads_text
from pate_fed.protocol.messages import JoinRequest, Question, SumRequest
from pate_fed.report.log import read_result
from pate_fed.runtime.run_dir import read_status
from pate_fed.secure_sum import CoordinatorSum, Identity, SumBatch, SumRange, read_reply
from pate_fed.secure_sum.messages import Enrolment
from server.app import Coordinator
from server.base import clear_finished
from server.kinds.labels import LabelSetup
from server.outcome import Audience
from server.process import finished_study

HOSPITALS, POOL, ASKED, RECORDS, CLUSTERS, CLASSES = 5, 60, 40, 20, 4, 2
ROUNDS = 2  # after the first
BINS = 128  # of the example of a kind of one's own: enough draws for a check of their mean square

Ints = np.ndarray


# The data: tables of hospitals' own, and labels of public inputs.


def write_tables(folder: Path) -> None:
    """The public pool, and each hospital's table of two columns, two rows a patient."""
    rng = np.random.default_rng(4)
    for name, rows in (("pool", POOL), *((f"h{place}", RECORDS) for place in range(HOSPITALS))):
        x, sex = rng.uniform(0, 1, rows), rng.choice(["m", "f"], rows)
        y = np.where(x > 0.5, "yes", "no")
        lines = [f"{a:.3f},{b},{c},p{n // 2}\n" for n, (a, b, c) in enumerate(zip(x, sex, y, strict=True))]
        (folder / f"{name}.csv").write_text("x,sex,y,who\n" + "".join(lines), encoding="utf-8")


def table_study(folder: Path, *, asks: str, at_hospitals: bool, seed: int | None = None) -> Study:
    """Of those tables votes of small forests on one batch, class sums, or a kind of somebody's own."""
    files = [str(folder / f"h{place}.csv") for place in range(HOSPITALS)]
    table = {"label": "y", "patient": "who", "classes": ["no", "yes"]}
    sections: dict[str, dict[str, Any]] = {
        "votes": {
            "teacher": {"name": "random-forest", "trees": 1},
            "aggregation": {"aggregator": "gnmax", "sigma2": 4.0},
            "queries": {"labels": 30, "max_queries": 30, "evaluate": False},
            "student": {"name": "forest", "trees": 1},
        },
        "sums": {
            "aggregation": {"aggregator": "class-sums"},
            "sums": {"features": "bins", "cuts": {"x": [0.0, 1.0]}},
        },
        "rounds": {
            "aggregation": {"aggregator": "class-sums"},
            "sums": {"features": "bins", "cuts": {"x": [0.0, 1.0]}, "rounds": ROUNDS},
        },
        "scored": {
            "aggregation": {"aggregator": "class-sums"},
            "sums": {"features": "bins", "cuts": {"x": [0.0, 1.0]}, "rounds": ROUNDS, "scores": True},
        },
        "whole": {
            "aggregation": {"aggregator": "class-sums"},
            "parties": {"num_clients": HOSPITALS, "records": RECORDS},
            "privacy": {"allow_weak": True, "unit": "hospital"},
            "sums": {"dimension": 3, "rounds": ROUNDS},
        },
        "own": {"aggregation": {"kind": "own_kind:Median", "parameters": {"bins": BINS, "scale": 4.0}}},
    }
    return study_from_dict(
        {
            "study": {"name": "s"} | ({} if seed is None else {"seed": seed}),
            "parties": {"num_clients": HOSPITALS},
            "privacy": {"allow_weak": True},
            "data": {
                "pool": str(folder / "pool.csv"),
                "private": files,
                "num_queries": ASKED,
                "table": {**table, "columns": {"x": "number", "sex": ["m", "f"]}},
            },
            "secrecy": {"secure_sum": True} | ({"noise_at": "hospitals"} if at_hospitals else {}),
            "engine": {"backend": "grpc"},
            **sections[asks],
        }
    ).resolve()


LABEL = np.arange(POOL) % CLASSES
CLUSTER = np.arange(POOL, dtype=np.int64) % CLUSTERS


# One kind at its hospitals.


class HospitalKind(ABC):
    """Real hospitals of a kind on one disk, and a coordinator that a test may make ask anything."""

    file: bytes  # what comes with the terms
    at_hospitals = True  # who adds the noise
    in_parts = False  # whether less than all may be asked about
    columns = CLASSES  # numbers of an answer for each place

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.terms = self.make_terms()
        self.sum = CoordinatorSum(
            Identity.generate(), study=self.terms.digest, colluders=self.terms.colluders
        )
        self.settings = [self._settings(number) for number in range(HOSPITALS)]
        self.stated: dict[str, Statement] = {}  # each hospital's newest, as a coordinator keeps them
        self.heads = ""  # what it shows of them with the next question
        for number in range(HOSPITALS):
            self.set_policy(number, "")

    # What differs by kind.

    permits = ""  # lines that every policy here has, without which nothing of the kind leaves

    @abstractmethod
    def make_terms(self, *, seed: int | None = None) -> Terms:
        """The study's terms; the data and the `file` are made."""

    @abstractmethod
    def data(self, number: int) -> Path:
        """The file of a hospital's records."""

    @abstractmethod
    def places(self) -> Ints:
        """All that is asked about."""

    def other_terms(self) -> Any:
        """Terms that are as good, and others."""
        return replace(self.terms, least_clients=HOSPITALS)

    # Written once.

    def hospital(self, number: int) -> Hospital:
        """The hospital, as another process finds it."""
        return Hospital(local_site(self.settings[number]))

    def _settings(self, number: int) -> LocalSettings:
        state = self.folder / f"state-{number}"
        state.mkdir(mode=0o700)
        return LocalSettings(
            hospital=f"hospital-{number}",
            data=str(self.data(number)),
            state_dir=state,
            pool=self.folder / "pool.csv",
            policy=self.folder / f"policy-{number}.toml",
        )

    def set_policy(self, number: int, text: str) -> None:
        """Have a hospital's policy say this beside what the kind needs; nobody is there to be telephoned."""
        lines = ("least_confirmed = 0\n", "least_colluders = 0\n")
        alone = "".join(line for line in lines if line.split()[0] not in text)
        (self.folder / f"policy-{number}.toml").write_text(f"{alone}{self.permits}{text}", encoding="utf-8")

    def agree(self, number: int = 0, terms: Any = None, *, text: str | None = None, enrol: Any = None) -> Any:
        """Ask a hospital to agree: to the study's terms, to others, or to a text."""
        terms = terms or self.terms
        if enrol is None:
            known = terms.digest == self.terms.digest
            made = (
                self.sum
                if known
                else CoordinatorSum(Identity.generate(), study=terms.digest, colluders=terms.colluders)
            )
            enrol = made.enrol_request().to_bytes()
        request = JoinRequest(terms=text or terms.to_json(), enrol=enrol, file=self.file)
        return self.hospital(number).join(request)

    def close(self, threshold: int | None = None) -> None:
        """Have all agree and enrol, and fix the roster."""
        for number in range(HOSPITALS):
            self.sum.admit(Enrolment.from_bytes(self.agree(number).enrolment))
        self.roster = self.sum.close_roster(threshold=threshold or self.terms.least_clients).to_bytes()

    def question(self, batch: int = 0, index: Ints | None = None, measured: int = 0) -> Question:
        """All that is asked about, as one question."""
        places = self.places() if index is None else np.asarray(index, dtype=np.int64)
        digest = self.terms.digest
        return Question(terms_digest=digest, batch=batch, index=places, measured=measured, heads=self.heads)

    def open(self, question: Question, **changes: Any) -> SumBatch:
        """The coordinator's rounds about a question; `changes` to what it says of them."""
        most = self.terms.bounds.largest(HOSPITALS)
        totals = SumRange.noisy() if most is None else SumRange.votes(most)
        usual = {"length": len(question.index) * self.columns, "sum_range": totals}
        return self.sum.open_batch(
            batch=question.batch, batch_digest=question.digest, roster_rides=True, **{**usual, **changes}
        )

    def send(self, number: int, question: Question, message: Any, **changes: Any) -> Any:
        """One step to one hospital; its message, or its refusal."""
        name = self.settings[number].hospital
        values = {
            "terms_digest": question.terms_digest,
            "batch": question.batch,
            "index": question.index,
            "measured": question.measured,
            "heads": question.heads,
            "statement": self.stated[name].to_bytes() if name in self.stated else b"",
            "roster": self.sum.pin_request(self.settings[number].hospital).to_bytes(),
            "step": message if isinstance(message, bytes) else message.to_bytes(),
        }
        reply = self.hospital(number).sum_step(SumRequest(**{**values, **changes}))
        if getattr(reply, "statement", b""):
            self.stated[name] = Statement.read(reply.statement)
        return read_reply(reply.step) if hasattr(reply, "step") else reply

    def total(self, question: Question) -> Ints:
        """The sum over all hospitals, after all rounds."""
        batch = self.open(question)
        for requests in batch.rounds():
            for party, step in requests.items():
                batch.take(self.send(int(party[-1]), question, step))
        self.show()
        return batch.total().reshape(-1, self.columns)

    def show(self, *without: str) -> None:
        """Show from now on the newest statement of each hospital but these."""
        newest = {name: stated.head for name, stated in self.stated.items() if name not in without}
        self.heads = heads_text(newest)

    def exact(self, number: int) -> Ints:
        """What a hospital's records say, without noise and masks."""
        hospital = self.hospital(number)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(HospitalLog, "record", lambda *_, **__: None)  # nothing was asked for
            return np.asarray(hospital._side(self.terms).answer(self.question()))

    def log(self, number: int) -> list[Any]:
        """A hospital's own log."""
        path = self.settings[number].state_dir / "log.jsonl"
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]

    def answers(self, number: int = 0) -> int:
        """How often a hospital gave what it was asked for."""
        return [event["event"] for event in self.log(number)].count("answered")


class _Tables(HospitalKind):
    """A hospital with a table."""

    asks = "votes"

    def make_terms(self, *, seed: int | None = None) -> Terms:
        if not (self.folder / "pool.csv").exists():
            write_tables(self.folder)
        study = table_study(self.folder, asks=self.asks, at_hospitals=self.at_hospitals, seed=seed)
        dataset = load_study_data(study)
        self.file = public_file(study, dataset)
        return make_terms(study, dataset)

    def data(self, number: int) -> Path:
        return self.folder / f"h{number}.csv"


class Votes(_Tables):
    """Teachers' votes; the coordinator adds the noise to their exact totals."""

    at_hospitals, in_parts = False, True

    def places(self) -> Ints:
        return np.arange(30, dtype=np.int64)


class NoisyVotes(Votes):
    """The same with noise at the hospitals."""

    at_hospitals = True


class ClassSums(_Tables):
    """Sums of features by class, with noise at the hospitals."""

    asks = "sums"

    def places(self) -> Ints:
        return np.arange(self.terms.bounds.rows, dtype=np.int64)


class ExactClassSums(ClassSums):
    """The same with noise at the coordinator."""

    at_hospitals, permits = False, 'class_sums = "exact"\n'


class RoundSums(ClassSums):
    """Sums in rounds, of which `places` are the first."""

    asks = "rounds"


class ExactRoundSums(RoundSums):
    """The same with noise at the coordinator."""

    at_hospitals, permits = False, 'class_sums = "exact"\n'


class WholeSums(RoundSums):
    """Sums in rounds of which each hospital's is cut as a whole."""

    asks = "whole"


class ScoredSums(RoundSums):
    """Sums in rounds and counts of held-out records, of which `places` are the first sums."""

    asks, permits = "scored", "counts = true\n"

    def places(self) -> Ints:
        return np.arange(ScoredTerms.of(self.terms).dimension, dtype=np.int64)


class Own(_Tables):
    """The example of a kind of one's own, with its own noise at the hospitals."""

    given, asks, columns, permits = "answered", "own", 1, 'kinds = ["own_kind:Median"]\n'

    def other_terms(self) -> Any:
        """With shares of more hospitals, which are smaller."""
        share = Median(bins=BINS, scale=4.0).sigma(shares_of(self.terms) + 1)
        return replace(self.terms, least_clients=HOSPITALS, sigma_party=share if self.at_hospitals else None)

    def places(self) -> Ints:
        return np.arange(BINS, dtype=np.int64)


class ExactOwn(Own):
    """The same with noise at the coordinator."""

    at_hospitals, permits = False, f'{Own.permits}class_sums = "exact"\n'


class LabelCounts(HospitalKind):
    """Counts of private labels in public clusters."""

    file = clusters_file(CLUSTER)

    def make_terms(self, *, seed: int | None = None) -> Terms:
        for number in range(HOSPITALS):
            places = range(number, POOL, HOSPITALS)
            rows = "".join(f"{place},{LABEL[place]}\n" for place in places)
            self.data(number).write_text(f"index,label\n{rows}", encoding="utf-8")
        return label_terms(
            PublicPool(size=POOL, digest="ab" * 32, num_classes=CLASSES, shape=(8, 8, 1)),
            num_clients=HOSPITALS,
            quorum=0.8,
            epsilon=1.0,
            seed=seed,
            clusters=PublicClusters(place=CLUSTER, count=CLUSTERS, delta=1e-5),
        )

    def data(self, number: int) -> Path:
        return self.folder / f"labels-{number}.csv"

    def places(self) -> Ints:
        return np.arange(CLUSTERS, dtype=np.int64)


HOSPITAL_KINDS: tuple[type[HospitalKind], ...] = (
    *(Votes, NoisyVotes, ClassSums, ExactClassSums, LabelCounts),
    *(RoundSums, ExactRoundSums, WholeSums, ScoredSums, Own, ExactOwn),
)


# A whole study of one kind.


class StudyKind(ABC):
    """A study in this process: its run directory and its hospitals' disks outlive every coordinator.

    It asks `questions` under masks. `asks` is what their rows on the ledger count, `void` the exit code of
    the command that is repeated once hospitals were asked for what never came.
    """

    asks: int
    questions = 1
    void = 3
    labels_last = False  # whether the last of several rows has all labels
    verify: tuple[str, ...] = ()  # options without which the verification finds something left to check

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.run_dir, self.parties, self.patch = folder / "run", folder / "parties", patch
        self.parties.mkdir()

    @abstractmethod
    def run(self, *, hospitals: int | None = None) -> int:
        """The command, with all hospitals or none that answers: begun, or gone on with; its exit code."""

    def read_as_commands_do(self) -> None:
        """Read what both sides' commands read as they start."""

    @property
    def private(self) -> Path:
        """The folder in which a coordinator keeps what another goes on from."""
        return self.run_dir / "private"

    @property
    def digest(self) -> str:
        """Of the question that is open."""
        digest: str = json.loads((self.private / "batch.json").read_text(encoding="utf-8"))["digest"]
        return digest

    def entries(self) -> list[Any]:
        """The ledger's charges, after every check; none where there is no ledger yet."""
        exists = (self.run_dir / "ledger.sqlite").exists()
        return list(Ledger.read(self.run_dir).chain.entries) if exists else []

    def events(self, name: str) -> list[Any]:
        """All hospitals' own events of a name."""
        logs = [path.read_text(encoding="utf-8").splitlines() for path in self.parties.glob("*/log.jsonl")]
        return [event for log in logs for event in map(json.loads, log) if event["event"] == name]

    def left_out(self) -> list[Any]:
        """Whom the coordinator's log tells to be left out."""
        lines = (self.run_dir / "log.jsonl").read_text(encoding="utf-8").splitlines()
        return [event for event in map(json.loads, lines) if event["event"] == "left_out"]

    def metrics(self) -> Any:
        """The run's figures."""
        return json.loads((self.run_dir / "metrics.json").read_text(encoding="utf-8"))

    def check(self, *, given: int = HOSPITALS, refused: int = 0) -> None:
        """What holds after every end that is a success: a row and all answers a question, verified."""
        events = [entry.event for entry in self.entries()]
        counts = [(event.asked, event.answered) for event in events]
        if self.labels_last:
            assert counts == [(self.asks, 0)] * (self.questions - 1) + [(self.asks, self.asks)]
        else:
            assert counts == [(self.asks // self.questions,) * 2] * self.questions
        assert len(self.events("answered")) == given * self.questions
        assert len(self.events("refused")) == refused
        verify_run(self.run_dir)
        metrics = self.metrics()
        assert metrics["status"] == "success" and metrics["queries_answered"] == self.asks
        with np.load(self.run_dir / "labels.npz") as labels:
            index = labels["index"][labels["answered"]]
            assert len(np.unique(index)) == len(index) == self.asks


class _TableStudy(StudyKind):
    kind, at_hospitals = "votes", False

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        super().__init__(folder, patch)
        write_tables(folder)
        self.study = table_study(folder, asks=self.kind, at_hospitals=self.at_hospitals)
        (self.parties / "study.toml").write_text(self.study.to_toml(), encoding="utf-8")
        site = {"study": str(self.parties / "study.toml"), "state_dir": str(self.parties)}
        (self.parties / "site.json").write_text(json.dumps(site), encoding="utf-8")
        patch.setenv("PATE_FED_SITE", str(self.parties / "site.json"))
        # As careful as hospitals that are no simulation.
        careful = lambda *found: replace(simulated_site(*found), simulated=False)  # noqa: E731
        patch.setattr("clients.local.simulated_site", careful)

    def read_as_commands_do(self) -> None:
        """Read what `run_study` and a hospital's process do before either is connected to."""
        held = str(self.run_dir)
        if read_status(self.run_dir) is not None:
            clear_finished(self.run_dir)
        if (over := finished_study(held, lambda path: read_study(path) == self.study)) is not None:
            Audience(over).untold()
            read_result(over)
        for state in sorted(self.parties.glob("*/")):
            has_left(state)
            over_since(state, "ab" * 32)
            for event in (event for _, event in read_events(state) if event):
                Answered().take(event)
            with suppress(InputError):  # none is kept yet
                check_log(state, None)

    def run(self, *, hospitals: int | None = None) -> int:
        coordinator = Coordinator(
            self.study,
            run_dir=self.run_dir,
            quiet=True,
            stop=threading.Event(),
            started=time.perf_counter(),
            resume=(self.run_dir / "study.toml").exists(),
        )
        nodes = HOSPITALS if hospitals is None else hospitals
        coordinator.run(lambda server_app: run_inline(server_app, clients.app.app, num_nodes=nodes))
        return coordinator.conclude(as_json=False)


class VoteStudy(_TableStudy):
    """Votes, one batch."""

    asks, void = 30, 2  # no label to learn from


class NoisyVoteStudy(VoteStudy):
    """The same with noise at the hospitals."""

    at_hospitals = True


class SumStudy(_TableStudy):
    """Class sums with noise at the hospitals."""

    asks, kind, at_hospitals = ASKED, "sums", True


class ExactSumStudy(SumStudy):
    """The same with noise at the coordinator."""

    at_hospitals = False


class RoundStudy(SumStudy):
    """Sums in three rounds, with noise at the hospitals."""

    kind, questions, labels_last = "rounds", 1 + ROUNDS, True

    def pool(self) -> Ints:
        """The public inputs that get labels."""
        return load_study_data(self.study).public_images[:ASKED]


class ExactRoundStudy(RoundStudy):
    """The same with noise at the coordinator."""

    at_hospitals = False


class WholeStudy(RoundStudy):
    """Sums in three rounds of which each hospital's is cut as a whole."""

    kind = "whole"


class ScoredStudy(RoundStudy):
    """Sums in three rounds, then counts of held-out records."""

    kind, questions = "scored", 2 + ROUNDS

    def check(self, *, given: int = HOSPITALS, refused: int = 0) -> None:
        """Figures of the counts are there, too, whichever process came to the end."""
        super().check(given=given, refused=refused)
        assert self.metrics()["own_records"]["noise"] > 0


class ExactScoredStudy(ScoredStudy):
    """The same with noise at the coordinator."""

    at_hospitals = False


class OwnStudy(_TableStudy):
    """The example of a kind of one's own: two questions, with noise at the hospitals."""

    given, asks, questions, kind, at_hospitals = "answered", 2, 2, "own", True
    verify = ("--aggregator", "own_kind:Median")


class ExactOwnStudy(OwnStudy):
    """The same with noise at the coordinator."""

    at_hospitals = False


class CountStudy(StudyKind):
    """Counts of private labels, by the command."""

    asks = POOL

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        super().__init__(folder, patch)
        images = np.zeros((POOL, 8, 8, 1), dtype=np.uint8)
        images[np.arange(POOL), LABEL] = 200
        for name, array in (("images", images), ("labels", LABEL)):
            np.save(folder / f"{name}.npy", array)
        files = [f"--{name}={folder / name}.npy" for name in ("images", "labels")]
        fixed = ["--classes", "2", "--epsilon", "1", "--method", "noise-cluster", "--clusters", str(CLUSTERS)]
        self.command = ["label-dp", "--dataset", "files", *files, *fixed, "--clusterer", "kinds:by_place"]
        self.command += ["--num-clients", str(HOSPITALS), "--run-dir", str(self.run_dir)]

        @contextmanager
        def outliving() -> Iterator[Path]:
            yield self.parties

        patch.setattr("pate_fed.cli.label_run.simulated_disks", outliving)
        patch.setattr(LabelSetup, "apart", property(lambda setup: True))

    def run(self, *, hospitals: int | None = None) -> int:
        with self.patch.context() as patch:
            if hospitals == 0:
                patch.setattr(Hospital, "join", _away)
            return main(self.command)


def _away(*_: object) -> Any:
    raise ConnectionError


def by_place(inputs: Ints, num_clusters: int, *, seed: int) -> Ints:
    """A clusterer: inputs in turn."""
    return np.arange(len(inputs), dtype=np.int64) % num_clusters


STUDY_KINDS: tuple[type[StudyKind], ...] = (
    *(VoteStudy, NoisyVoteStudy, SumStudy, ExactSumStudy, CountStudy),
    *(RoundStudy, ExactRoundStudy, WholeStudy, OwnStudy, ExactOwnStudy),
    *(ScoredStudy, ExactScoredStudy),
)
