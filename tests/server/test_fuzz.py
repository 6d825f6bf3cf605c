"""Garbage in both directions amid whole studies: it costs whoever sent it, or nobody, and the study ends.

One hospital gets mutated copies of every request before the good one; another one's replies are mutated on
their way to the coordinator. All kinds of study, in the open and under masks.
"""

from __future__ import annotations

import json
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fuzz import mutate_record

from pate_fed.flower import prepare_environment

prepare_environment()

from flwr.app import Message

from clients.log import HospitalLog
from pate_fed.cli.main import main as command
from pate_fed.errors import IntegrityError
from pate_fed.flower.inline import InlineGrid
from pate_fed.flower.records import from_flower, to_flower
from pate_fed.privacy import verify
from pate_fed.protocol.messages import RefusalReply, parse_reply
from pate_fed.simulation import main as simulation

VICTIM, ATTACKER = 2, 4  # partitions

TABLE = """
[privacy]
allow_weak = true
[parties]
num_clients = 6
quorum = 0.5
[data]
pool = "pool.csv"
private = ["a.csv", "b.csv", "c.csv", "d.csv", "e.csv", "f.csv"]
[data.table]
label = "y"
classes = ["no", "yes"]
columns = { x = "number" }
[teacher]
trees = 3
[student]
trees = 3
[aggregation]
aggregator = "gnmax"
sigma2 = 0.5
[queries]
labels = 24
max_queries = 24
batch_size = 8
evaluate = false
"""


class _Fuzz:
    """Stands between the Grid and the hospitals; `each` mutated copies go before a good request."""

    def __init__(self, each: int) -> None:
        self.rng = np.random.default_rng(1)
        self.each, self.sent = each, 0
        self.codes: Counter[str] = Counter()
        self.errors: list[str] = []
        self.deliver = InlineGrid._deliver

    def __call__(self, grid: InlineGrid, message: Message) -> Message:
        party = int(grid._contexts[message.metadata.dst_node_id].node_config["partition-id"])
        if party == VICTIM:
            good = from_flower(message.content)
            for _ in range(self.each):
                self._send(grid, message, mutate_record(good, self.rng))
        reply = self.deliver(grid, message)
        if party == ATTACKER and not reply.has_error():
            reply.content = to_flower(mutate_record(from_flower(reply.content), self.rng))
        return reply

    def _send(self, grid: InlineGrid, message: Message, record: dict[str, Any]) -> None:
        bad = Message(to_flower(record), message.metadata.dst_node_id, message.metadata.message_type)
        bad.metadata.__dict__["_message_id"] = message.metadata.message_id
        reply = self.deliver(grid, bad)
        assert not reply.has_error()
        said = parse_reply(from_flower(reply.content))
        self.sent += 1
        self.codes[said.code if isinstance(said, RefusalReply) else type(said).__name__] += 1


@pytest.fixture
def study(tmp_path: Path) -> Path:
    for name in ("pool", *"abcdef"):
        rows = np.random.default_rng(sum(name.encode())).uniform(0, 20, 60 if name == "pool" else 30)
        lines = "".join(f"{x:.6f},{'yes' if x > 10 else 'no'}\n" for x in rows)
        (tmp_path / f"{name}.csv").write_text("x,y\n" + lines, encoding="utf-8")
    (tmp_path / "study.toml").write_text(TABLE, encoding="utf-8")
    return tmp_path


def _run(kind: str, folder: Path, each: int, monkeypatch: pytest.MonkeyPatch) -> _Fuzz:
    fuzz, run_dir = _Fuzz(each), folder / "run"
    monkeypatch.setattr(InlineGrid, "_deliver", lambda grid, message: fuzz(grid, message))
    keep = HospitalLog.fault

    def fault(journal: HospitalLog, error: BaseException, event: str = "fault") -> None:
        if not isinstance(error, IntegrityError):  # what a message says is refused, and kept in the log too
            fuzz.errors.append("".join(traceback.format_exception(error)))
        keep(journal, error, event)

    monkeypatch.setattr(HospitalLog, "fault", fault)
    if kind in ("plain", "masked", "sums"):
        options = [] if kind == "plain" else ["--secure-sum"]
        options += ["--aggregator", "class-sums", "--student", "ridge"] if kind == "sums" else []
        config = ["--config", str(folder / "study.toml"), "--run-dir", str(run_dir)]
        code = simulation([*config, "--backend", "inline", "--quiet", *options])
    else:
        images = np.random.default_rng(0).integers(0, 255, (120, 16, 16, 1)).astype(np.uint8)
        np.save(folder / "images.npy", images)
        np.save(folder / "labels.npy", np.arange(120) % 2)
        method = (
            ["noise-cluster", "--clusters", "4"] if kind == "counts" else ["randres+normal", "--epochs", "1"]
        )
        code = command(
            [
                *(
                    "label-dp",
                    "--dataset",
                    "files",
                    "--classes",
                    "2",
                    "--epsilon",
                    "2",
                    "--hospitals",
                    "6",
                    "--quorum",
                    "0.6",
                ),
                *(f"--{name}={folder / name}.npy" for name in ("images", "labels")),
                *("--method", *method, "--run-dir", str(run_dir), "--backend", "inline"),
            ]
        )
    assert code == 0
    assert json.loads((run_dir / "metrics.json").read_text())["status"] == "success"
    assert len(verify(run_dir / "ledger.sqlite").chain.outputs)
    return fuzz


@pytest.mark.parametrize("kind", ["plain", "masked", "sums", "labels", "counts"])
def test_garbage_costs_its_sender_alone(kind: str, study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fuzz = _run(kind, study, 20 if kind == "labels" else 10, monkeypatch)
    assert fuzz.sent >= (50 if kind in ("masked", "sums") else 10)  # the victim is asked to the end
    assert not fuzz.errors, fuzz.errors[0]
    assert fuzz.codes["MALFORMED"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "masked", "sums", "labels", "counts"])
def test_much_garbage_costs_its_sender_alone(kind: str, study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fuzz = _run(
        kind,
        study,
        {"plain": 700, "masked": 300, "sums": 520, "labels": 3000, "counts": 1500}[kind],
        monkeypatch,
    )
    assert fuzz.sent >= 2500
    assert not fuzz.errors, fuzz.errors[0]
