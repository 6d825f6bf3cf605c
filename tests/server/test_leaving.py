"""A whole study of admitted hospitals without a wire: four proven logs, though one leaves in the middle."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pate_fed.flower import prepare_environment

prepare_environment()

from flwr.app import Context, Message, RecordDict

import clients.app
from clients.log_check import check_log
from pate_fed.cli.consent import confirm_in
from pate_fed.cli.main import main
from pate_fed.flower.inline import InlineGrid
from pate_fed.flower.records import from_flower
from pate_fed.flower.transport import Untold
from pate_fed.identity import Authority, HospitalIdentity, make_request
from pate_fed.identity.bundle import BUNDLE_FILE
from pate_fed.identity.certificates import sum_identity_of
from pate_fed.kinds.make import make_terms
from pate_fed.protocol.messages import Refusal
from server.app import Coordinator
from server.base import clear_finished
from server.process import study_to_run

NAMES = ("east", "north", "south", "west")
STUDY = """
[study]
name = "lungs"
[parties]
num_clients = 4
teachers_per_client = 2
quorum = 0.6
[data]
dataset = "table"
pool = "pool.csv"
[data.table]
label = "ill"
classes = ["no", "yes"]
[data.table.columns]
age = "number"
[teacher]
name = "random-forest"
trees = 2
[aggregation]
aggregator = "gnmax"
sigma2 = 20.0
[queries]
labels = 20
max_queries = 20
batch_size = 10
evaluate = false
[secrecy]
secure_sum = true
noise_at = "hospitals"
[student]
name = "forest"
trees = 2
"""


class Houses:
    """Four hospitals behind one Flower ClientApp, each with its own identity, records and state directory."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self._folder, self._patch, self.asked = folder, patch, Counter[str]()
        stream = np.random.default_rng(0)
        for name, count in (("pool", 60), *((name, 40) for name in NAMES)):
            rows = [f"{age},{'yes' if age > 50 else 'no'}" for age in stream.integers(20, 90, count)]
            (folder / f"{name}.csv").write_text("\n".join(["age,ill", *rows]) + "\n")

    def admit(self, authority: Authority) -> None:
        requests = [make_request(self._folder / f"id-{name}", name) for name in NAMES]
        for admission in authority.admit_all(requests, days=9):
            name = admission.hospital
            identity, state = self._folder / f"id-{name}", self.state(name)
            admission.write(self._folder / "admission")
            HospitalIdentity.offered(identity, self._folder / "admission").take()
            confirm_in(identity / "policy.toml", admission.hospitals)
            site = {"hospital": name, "data": str(self._folder / f"{name}.csv"), "state_dir": str(state)}
            keys = {"sum_key": str(identity / "sum.key"), "policy": str(identity / "policy.toml")}
            state.mkdir()
            (state / "hospital.json").write_text(json.dumps({**site, **keys}))

    def state(self, name: str) -> Path:
        return self._folder / f"state-{name}"

    def __call__(self, message: Message, context: Context) -> Message:
        name = NAMES[int(context.node_config["partition-id"])]  # type: ignore[arg-type]
        self.asked[name] += 1
        if name == "west" and self.asked[name] == 7:  # in the second batch, between two steps of its sum
            assert main(["hospital", "leave", str(self.state(name)), "--yes"]) == 0
        self._patch.setenv("PATE_FED_SITE", str(self.state(name) / "hospital.json"))
        reply = clients.app.app(message, context)
        sent = from_flower(reply.content)
        clients.app.note_sent({}, message_type=message.metadata.message_type, bytes_out=1, reply=sent)
        return reply


def test_four_logs_are_proven_and_receipted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    houses = Houses(tmp_path, monkeypatch)
    (tmp_path / "study.toml").write_text(STUDY)
    study = study_to_run(tmp_path / "study.toml", num_hospitals=None)
    stop, run_dir = threading.Event(), tmp_path / "run"
    coordinator = Coordinator(study, run_dir=run_dir, quiet=True, stop=stop, started=time.perf_counter())
    terms = make_terms(study, coordinator.dataset)
    authority = Authority.init(tmp_path / "authority", address="a:1", terms=terms.to_json(), days=9)
    houses.admit(authority)
    coordinator._key = authority.ledger_key()  # as a coordinator whose hospitals have keys

    def serve(server_app: Any) -> None:
        grid = InlineGrid(houses, num_nodes=4)  # type: ignore[arg-type]
        names = dict(zip(grid.get_node_ids(), NAMES, strict=True))
        sums = {name: sum_identity_of(certificate) for name, certificate in authority.admitted()}
        coordinator.set_admitted(names, sums, key=authority.ledger_key())
        context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})
        server_app(grid, context)
        grids.append((grid, names))

    grids: list[tuple[Any, dict[int, str]]] = []
    coordinator.run(serve)
    assert coordinator.conclude(as_json=False) == 0, capsys.readouterr()
    looks = coordinator.audience.telling(*grids[0])
    last = next(each for each in looks if not each.pending)
    assert last == Untold(pending=0, parties=())  # west, which left, is not waited for
    assert coordinator.audience.took_part == tuple(sorted(set(NAMES) - {"west"}))
    clear_finished(run_dir)  # what is as private as the votes that it names is gone with them
    assert not (run_dir / "private").exists()
    said = capsys.readouterr().out
    assert "west left lungs on" in said and said.splitlines()[-1].startswith("SUCCESS")
    for name in NAMES:
        found = check_log(houses.state(name), tmp_path / f"id-{name}")
        assert found.broken == []
        receipted = f"verified: whole, in order, signed by {name}, with the coordinator's receipt"
        assert found.verdict == receipted
        # The terms without and with the pool, the steps of the sums or a refusal for each; not the end.
        assert found.confirmed == len(found.left) == houses.asked[name] - 1 >= 7
    statement = json.loads((houses.state("west") / "left-the-study.json").read_text())["statement"]
    assert statement["queries_answered"] == 10 and statement["epsilon_at_most"]["coordinator"] > 0
    log = [json.loads(line) for line in (run_dir / "log.jsonl").read_text().splitlines()]
    left_out = {(each["party"], each["reason"]) for each in log if each["event"] == "left_out"}
    assert left_out == {("west", Refusal.LEFT.sentence)}
    # The student comes to all but the one that left, from one bundle that the run keeps and seals.
    sent = (run_dir / BUNDLE_FILE).read_bytes()
    assert BUNDLE_FILE in json.loads((run_dir / "seal.json").read_text())["files"]
    assert not (houses.state("west") / BUNDLE_FILE).exists()
    for name in NAMES[:3]:
        assert (houses.state(name) / BUNDLE_FILE).read_bytes() == sent
    capsys.readouterr()
    assert main(["hospital", "predict", str(houses.state("north")), "north.csv"]) == 0
    assert "forest, of 3 hospitals" in (said := capsys.readouterr().out) and "of 40" in said
    monkeypatch.setattr("pate_fed.identity.bundle.MOST_STUDENT", 1000)
    coordinator._key = authority.ledger_key()
    coordinator._bundle_student(SimpleNamespace(head="00"))  # type: ignore[arg-type]
    assert "warning: hospitals do not get the student: the student takes" in capsys.readouterr().err
    assert not (run_dir / BUNDLE_FILE).exists()
