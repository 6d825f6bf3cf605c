"""What Flower, Ray and our own messages cost without learning: stub teachers, real messages.

Run: pytest -m benchmark -s tests/benchmarks/test_engine_benchmark.py
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

PARTIES, BATCHES, QUERIES, CLASSES = 250, 5, 1000, 10

STUB = f"""
import sys, threading, time
from pate_fed.flower import prepare_environment
prepare_environment()
import numpy as np
from flwr.app import Message
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from pate_fed.config.backend import cores
from pate_fed.flower.records import from_flower, to_flower
from pate_fed.kinds.base import Bounds
from pate_fed.protocol.messages import AnswerReply, Question
from server.exchange import exchange, wait_for_nodes

client = ClientApp()
window = 12 * cores() if sys.argv[1] == "ray" else None

@client.query("answer")
def votes(message, context):
    request = Question.from_record(from_flower(message.content))
    chosen = np.full(len(request.index), context.node_config["partition-id"] % {CLASSES}, dtype=np.uint8)
    reply = AnswerReply(party="p", batch_digest=request.digest, answer=chosen)
    return Message(to_flower(reply.to_record()), reply_to=message)

server = ServerApp()

@server.main()
def main(grid, context):
    stop, bounds = threading.Event(), Bounds(rows={QUERIES}, columns={CLASSES}, row=(1, 1))
    nodes = wait_for_nodes(grid, count={PARTIES}, timeout_s=60, stop=stop)
    for batch in range({BATCHES}):
        request = Question(terms_digest="t", batch=batch, index=np.arange({QUERIES}))
        start, totals = time.perf_counter(), np.zeros(({QUERIES}, {CLASSES}), dtype=np.int64)
        sent = dict.fromkeys(nodes, request.to_record())
        for answer in exchange(
            grid, sent, message_type="query.answer", timeout_s=600, stop=stop, window=window
        ):
            bounds.check(answer.reply.answer, rows={QUERIES})
            bounds.add(totals, answer.reply.answer)
        assert totals.sum() == {PARTIES} * {QUERIES}
        print(f"batch {{batch + 1}}: {{time.perf_counter() - start:.2f}} s")

import pathlib
from pate_fed.flower.engine import run_apps
start = time.perf_counter()
folder = pathlib.Path(sys.argv[2])
run_apps(server, lambda: client, backend=sys.argv[1], num_nodes={PARTIES}, folder=folder)
print(f"all, start and end of the engine included: {{time.perf_counter() - start:.2f}} s")
"""


@pytest.mark.benchmark
@pytest.mark.parametrize("backend", ["inline", "ray"])
def test_parties_and_batches_without_learning(backend: str, tmp_path: Path) -> None:
    script = tmp_path / "stub.py"
    script.write_text(STUB, encoding="utf-8")
    start = time.perf_counter()
    root = Path(__file__).resolve().parent.parent.parent
    done = subprocess.run(
        [sys.executable, str(script), backend, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    print(f"\n{backend}: {PARTIES} parties, {BATCHES} batches of {QUERIES} queries, {CLASSES} classes")
    print(done.stdout + f"whole process: {time.perf_counter() - start:.2f} s")
    assert done.stdout.count("batch") == BATCHES
