"""Whole studies under masks: the same labels, only sums in sight, and no key where it must not be."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pate_fed.flower import prepare_environment

prepare_environment()

from clients.hospital import Hospital
from pate_fed.flower.inline import InlineGrid
from pate_fed.flower.records import from_flower
from pate_fed.privacy import verify
from pate_fed.privacy.ledger.report import describe
from pate_fed.protocol.messages import Refusal
from pate_fed.secure_sum import SumStore, read_reply, read_request
from pate_fed.secure_sum.keys import Record, unpack
from pate_fed.secure_sum.messages import (
    BatchOpening,
    MaskRequest,
    SurvivorNotice,
    UnmaskRequest,
)
from pate_fed.secure_sum.state import open_state
from pate_fed.simulation import main

BATCH = 25
TINY = """
[data.glyph]
classes = 3
private = 200
public = 120
[privacy]
allow_weak = true
[parties]
num_clients = 5
teachers_per_client = 2
[teacher]
name = "hog-linear"
[aggregation]
threshold = 4
[queries]
labels = 40
batch_size = BATCH
[student]
name = "supervised"
epochs = 1
""".replace("BATCH", str(BATCH))


class Seen:
    """What went through Flower and what was left on the parties' disks, as a test may see it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.requests: list[Record] = []
        self.replies: list[Record] = []
        self.contexts: list[Any] = []


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("secure")
    (folder / "study.toml").write_text(TINY, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATE_FED_SITE", "")
        yield folder / "study.toml"


@contextmanager
def _watched(folder: Path, in_memory: bool) -> Iterator[Seen]:
    seen = Seen(folder)
    deliver = InlineGrid._deliver

    @contextmanager
    def kept() -> Iterator[Path]:
        folder.mkdir(mode=0o700)
        yield folder

    def watch(grid: InlineGrid, message: Any) -> Any:
        seen.requests.append(from_flower(message.content))
        reply = deliver(grid, message)
        if not reply.has_error():
            seen.replies.append(from_flower(reply.content))
        seen.contexts.append(grid._contexts[message.metadata.dst_node_id])
        return reply

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pate_fed.cli.simulate.simulated_disks", kept)
        patch.setattr(InlineGrid, "_deliver", watch)
        if not in_memory:
            disk = partial(SumStore, durable=False)
            patch.setattr("clients.base.PlayedStore", lambda machines, *store: disk(*store))
        yield seen


Study = Callable[..., tuple[int, Path, Seen]]


@pytest.fixture(scope="module")
def study(config: Path, tmp_path_factory: pytest.TempPathFactory) -> Study:
    def run(*options: str, in_memory: bool = False) -> tuple[int, Path, Seen]:
        """Its hospitals' machines lie on their disks, as in a house, or `in_memory`, as else here."""
        folder = tmp_path_factory.mktemp("study")
        base = ["--config", str(config), "--run-dir", str(folder / "run"), "--quiet"]
        with _watched(folder / "parties", in_memory) as seen:
            code = main([*base, "--backend", "inline", "--device", "cpu", *options])
        return code, folder / "run", seen

    return run


@pytest.fixture(scope="module")
def masked(study: Study) -> tuple[int, Path, Seen]:
    return study("--secure-sum", "--seed", "7")


@pytest.fixture(scope="module")
def noisy(study: Study) -> tuple[int, Path, Seen]:
    return study("--secure-sum", "--noise-at", "hospitals", "--seed", "7")


def _metrics(run_dir: Path) -> Any:
    return json.loads((run_dir / "metrics.json").read_text(encoding="utf-8"))


def _labels(run_dir: Path) -> list[Any]:
    with np.load(run_dir / "labels.npz") as labels:
        return [labels[name] for name in ("index", "answered", "label")]


def test_to_measure_teachers_changes_no_label_and_charges_nothing(
    config: Path, study: Study, masked: tuple[int, Path, Seen]
) -> None:
    without = config.with_name("unmeasured.toml")
    without.write_text(TINY.replace("[queries]", "[queries]\nevaluate = false"), encoding="utf-8")
    code, run_dir, seen = study("--config", str(without), "--secure-sum", "--seed", "7")
    assert code == 0
    for ours, theirs in zip(_labels(masked[1]), _labels(run_dir), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    charged = [
        [entry.event for entry in verify(each / "ledger.sqlite").chain.entries]
        for each in (masked[1], run_dir)
    ]
    assert charged[0] == charged[1] and len(charged[0]) >= 2
    assert not any(request.get("measured") for request in seen.requests)
    told = [request for request in masked[2].requests if request.get("measured")]
    assert {request["batch"] for request in told} == {0} and len(told) == 2 * 5  # to open and to mask
    more = [_metrics(each)["accuracy_do_not_publish"]["n"] for each in (masked[1], run_dir)]
    assert more[0] - more[1] == told[0]["measured"] > 0


def test_masks_change_no_label_and_no_figure(study: Study, masked: tuple[int, Path, Seen]) -> None:
    code, plain, seen = study("--seed", "7")
    assert code == 0
    assert "answer" in {reply["kind"] for reply in seen.replies}
    code, run_dir, _ = masked
    assert code == 0
    for ours, theirs in zip(_labels(run_dir), _labels(plain), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    first, second = _metrics(plain), _metrics(run_dir)
    for name in ("accuracy", "accuracy_do_not_publish"):
        assert first[name] == second[name]
    assert first["privacy"]["student"] == second["privacy"]["student"]
    assert second["privacy"]["coordinator"]["epsilon"] is None
    assert "exact totals" in second["privacy"]["coordinator"]["sees"]


@pytest.mark.parametrize("options", [(), ("--noise-at", "hospitals")])
def test_in_memory_masks_are_the_same_and_nothing_of_them_lies_on_a_disk(
    options: tuple[str, ...], study: Study, request: pytest.FixtureRequest
) -> None:
    _, on_disk, _ = request.getfixturevalue("noisy" if options else "masked")
    code, run_dir, seen = study("--secure-sum", "--seed", "7", *options, in_memory=True)
    assert code == 0
    for ours, theirs in zip(_labels(run_dir), _labels(on_disk), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert _metrics(run_dir)["privacy"] == _metrics(on_disk)["privacy"]
    assert len(list(seen.folder.glob("party-*"))) == 5 and not list(seen.folder.glob("party-*/secure_sum"))


def test_the_coordinator_gets_masked_vectors_and_no_votes(masked: tuple[int, Path, Seen]) -> None:
    _, _, seen = masked
    assert {reply["kind"] for reply in seen.replies} == {"joined", "summed"}
    inside = [read_reply(reply["step"]) for reply in seen.replies if reply["kind"] == "summed"]
    kinds = {reply.kind for reply in inside}
    assert kinds == {"sum.shares", "sum.masked", "sum.consent", "sum.unmasked"}
    vectors = [reply.vector for reply in inside if reply.kind == "sum.masked"]
    # Votes are 0, 1 or 2; a masked entry is one of 65,536 values, all as likely as any.
    assert all(np.mean(vector > 2) > 0.99 for vector in vectors if len(vector) > 100)


def test_the_roster_crosses_once_a_study(masked: tuple[int, Path, Seen]) -> None:
    _, _, seen = masked
    requests = [request for request in seen.requests if request["kind"] == "sum"]
    assert sum(bool(request["roster"]) for request in requests) == 5
    openings = [request for request in requests if read_request(request["step"]).kind == "sum.open"]
    assert len(requests) == 4 * len(openings) >= 8 * 5


def test_noise_at_the_hospitals_bounds_what_the_coordinator_learns(noisy: tuple[int, Path, Seen]) -> None:
    code, run_dir, seen = noisy
    assert code == 0
    metrics = _metrics(run_dir)
    assert metrics["accuracy_do_not_publish"]["teacher_mean"] is None
    assert metrics["accuracy_do_not_publish"]["ensemble"] is None
    assert metrics["accuracy"]["labels"] is not None
    privacy = metrics["privacy"]
    assert privacy["student"]["data_dependent_do_not_publish"] is None
    # It sees noisy totals, everyone else what wins.
    assert 0 < privacy["student"]["data_independent"] < privacy["coordinator"]["epsilon"]
    assert "noisy totals" in privacy["coordinator"]["sees"]
    report = verify(run_dir / "ledger.sqlite")
    assert report.coordinator_epsilon is not None
    # What is promised holds for the fewest voters; all five voted, so the coordinator learnt less.
    assert 0 < report.coordinator_epsilon < privacy["coordinator"]["epsilon"]
    assert 0 < report.epsilon <= privacy["student"]["data_independent"] + 1e-6
    for entry in report.chain.entries:
        assert (entry.event.coordinator.survivors, entry.event.coordinator.colluders) == (5, 1)
    assert {request.get("measured", 0) for request in seen.requests} == {0}
    words = "\n".join(describe(run_dir / "ledger.sqlite"))
    assert "while at most 1 hospital tells it their noise" in words
    html = (run_dir / "report.html").read_text(encoding="utf-8")
    assert "noise and masks" in html
    assert "not private: seeded noise" in html


def test_without_a_seed_the_hospitals_noise_is_the_systems(study: Study) -> None:
    code, run_dir, _ = study("--secure-sum", "--noise-at", "hospitals")
    assert code == 0
    assert "not private" not in (run_dir / "report.html").read_text(encoding="utf-8")
    assert verify(run_dir / "ledger.sqlite").chain.terms.private


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--noise-at", "hospitals"], "--secure-sum"),
        (["--secure-sum", "--noise-at", "clients"], "coordinator, hospitals"),
        (["--secure-sum", "--num-clients", "3"], "--num-clients 3"),
        (["--secure-sum", "--noise-at", "hospitals", "--sigma2", "0.5"], "--sigma2 0.5"),
        (["--secure-sum", "--noise-at", "hospitals", "--aggregator", "lnmax"], "--aggregator lnmax"),
        (["--secure-sum", "--noise-at", "hospitals", "--sanitise"], "--sanitise"),
    ],
)
def test_settings_that_do_not_go_together_are_named(
    options: list[str], word: str, study: Study, capsys: pytest.CaptureFixture[str]
) -> None:
    code, run_dir, _ = study(*options)
    assert code == 2
    assert word in capsys.readouterr().err
    assert not run_dir.exists()


@contextmanager
def _silent(parties: int, kind: type[Any] | None) -> Iterator[None]:
    """The first parties fall silent at a step, or answer no plain question where `kind` is None."""
    names = {f"party-{number}" for number in range(parties)}
    step, vote = Hospital.sum_step, Hospital.answer

    def answer(self: Hospital, request: Any) -> Any:
        if kind is not None and self._site.party in names and isinstance(read_request(request.step), kind):
            raise ConnectionError
        return step(self, request)

    def refuse(self: Hospital, request: Any) -> Any:
        return self.refuse(Refusal.FAULT) if self._site.party in names else vote(self, request)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Hospital, "sum_step", answer)
        if kind is None:
            patch.setattr(Hospital, "answer", refuse)
        yield


def test_survivors_give_the_labels_that_they_give_without_masks(study: Study) -> None:
    with _silent(1, None):
        _, plain, _ = study("--seed", "7")
    for kind in (BatchOpening, MaskRequest):
        with _silent(1, kind):
            code, masked, _ = study("--secure-sum", "--seed", "7")
        assert code == 0
        for ours, theirs in zip(_labels(masked), _labels(plain), strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_a_vector_in_the_sum_stays_in_it_whatever_its_sender_does_later(
    study: Study, masked: tuple[int, Path, Seen]
) -> None:
    for kind in (SurvivorNotice, UnmaskRequest):
        with _silent(1, kind):
            code, run_dir, _ = study("--secure-sum", "--seed", "7")
        assert code == 0
        for ours, theirs in zip(_labels(run_dir), _labels(masked[1]), strict=True):
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("kind", [BatchOpening, MaskRequest, SurvivorNotice, UnmaskRequest])
@pytest.mark.parametrize("noise_at", ["coordinator", "hospitals"])
def test_below_the_threshold_nothing_comes_out_and_the_batch_is_charged(
    kind: type[Any], noise_at: str, study: Study, capsys: pytest.CaptureFixture[str]
) -> None:
    with _silent(2, kind):
        code, run_dir, _ = study("--secure-sum", "--noise-at", noise_at, "--seed", "7")
    assert code == 4
    out, err = capsys.readouterr()
    assert "3 of 5 hospitals" in err
    assert "Traceback" not in err
    assert out.splitlines()[-1].startswith("FAILED")
    report, metrics = verify(run_dir / "ledger.sqlite"), _metrics(run_dir)
    # Votes that were asked for are paid for; nobody was asked for votes who had not even shared a secret.
    asked = 0 if kind is BatchOpening else BATCH
    assert (report.asked, report.answered) == (asked, 0)
    assert (metrics["queries_asked"], metrics["queries_answered"]) == (asked, 0)
    assert (report.epsilon > 0) == (asked > 0)
    if noise_at == "hospitals":
        # It may have seen the noisy totals, which are charged as such.
        assert ((report.coordinator_epsilon or 0.0) > report.epsilon) == (asked > 0)
    index, answered, label = _labels(run_dir)
    assert len(index) == asked
    assert not answered.any()
    assert (label == -1).all()


def test_an_interrupt_amid_a_batch_is_charged_too(study: Study, capsys: pytest.CaptureFixture[str]) -> None:
    """Masked votes are on their way by then; the batch is void, and no later one may ask the same."""
    step = Hospital.sum_step

    def answer(self: Hospital, request: Any) -> Any:
        if isinstance(read_request(request.step), MaskRequest) and self._site.party == "party-0":
            os.kill(os.getpid(), signal.SIGINT)
        return step(self, request)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Hospital, "sum_step", answer)
        code, run_dir, _ = study("--secure-sum", "--seed", "7")
    assert code == 130
    assert capsys.readouterr().out.splitlines()[-1].startswith("ABORTED")
    report = verify(run_dir / "ledger.sqlite")
    assert (report.asked, report.answered) == (BATCH, 0)
    assert _metrics(run_dir)["privacy"]["student"]["data_independent"] > 0


def _secrets(folder: Path) -> Iterator[bytes]:
    """Every private key and pair secret that lies on the parties' disks."""
    for party in folder.glob("party-*/secure_sum"):
        yield (party / "identity.key").read_bytes()
        state = open_state("study", (party / "study.state").read_bytes())
        assert "exchange" not in state  # forgotten once the roster was pinned
        pairs = state["extracted"]
        assert isinstance(pairs, bytes)
        rows = (pairs[at : at + 32] for at in range(0, len(pairs), 32))
        yield from (row for row in rows if row != bytes(32))


def _contents(folder: Path) -> dict[str, bytes]:
    """All bytes below a folder, by file name."""
    found: dict[str, bytes] = {}
    for path in folder.rglob("*"):
        if path.is_file():
            found[path.name] = found.get(path.name, b"") + path.read_bytes()
    return found


def _places(contents: dict[str, bytes], secret: bytes) -> set[str]:
    spelt = {secret, secret.hex().encode(), base64.b64encode(secret), repr(secret)[2:-1].encode()}
    return {name for name, data in contents.items() if any(form in data for form in spelt)}


@pytest.mark.parametrize("which", ["masked", "noisy"])
def test_no_secret_leaves_its_file(which: str, request: pytest.FixtureRequest) -> None:
    _, run_dir, seen = request.getfixturevalue(which)
    secrets = list(_secrets(seen.folder))
    assert len(secrets) == 5 + 5 * 4
    crossed = [value for record in (*seen.requests, *seen.replies) for value in record.values()]
    wire = b"".join(value for value in crossed if isinstance(value, bytes))
    published, parties = _contents(run_dir), _contents(seen.folder)
    for secret in secrets:
        assert _places({**published, "wire": wire}, secret) == set()
        assert _places(parties, secret) <= {"identity.key", "study.state"}
    assert _places(parties, secrets[0])  # so the search could have found one
    assert all(len(context.state) == 0 for context in seen.contexts)


def test_only_the_hospital_can_read_its_state(masked: tuple[int, Path, Seen]) -> None:
    _, _, seen = masked
    stores = list(seen.folder.glob("party-*/secure_sum"))
    assert len(stores) == 5
    for store in stores:
        assert stat.S_IMODE(store.stat().st_mode) == 0o700
        names = {path.name for path in store.iterdir()}
        assert names == {"identity.key", "study.state", "batches.state", "lock"}
        assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in store.iterdir())


def test_of_a_finished_batch_no_secret_is_kept(masked: tuple[int, Path, Seen]) -> None:
    _, _, seen = masked
    for path in seen.folder.glob("party-*/secure_sum/batches.state"):
        batches = [unpack(batch) for batch in open_state("batches", path.read_bytes()).values()]  # type: ignore[arg-type]
        assert len(batches) >= 2
        assert all(batch["held"] == b"" and batch["stage"] == 4 for batch in batches)


def test_a_new_run_makes_new_keys(study: Study, masked: tuple[int, Path, Seen]) -> None:
    """Seeds repeat labels, never keys: a key that can be computed again hides nothing."""
    _, _, again = study("--secure-sum", "--seed", "7")
    assert not set(_secrets(again.folder)) & set(_secrets(masked[2].folder))
    shutil.rmtree(again.folder)


@pytest.mark.slow  # plain votes go over Ray by default (test_app), masked ones in one process
def test_on_ray_as_in_one_process(config: Path, masked: tuple[int, Path, Seen], tmp_path: Path) -> None:
    """Every message there meets a process that knows nothing but its party's disk."""
    command = [sys.executable, "-m", "pate_fed.simulation", "--config", str(config)]
    options = ["--run-dir", str(tmp_path / "run"), "--backend", "ray", "--device", "cpu", "--quiet"]
    done = subprocess.run(
        [*command, *options, "--secure-sum", "--seed", "7"],
        cwd=Path(__file__).resolve().parents[2],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    for ours, theirs in zip(_labels(tmp_path / "run"), _labels(masked[1]), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert _metrics(tmp_path / "run")["accuracy"] == _metrics(masked[1])["accuracy"]
