"""`pate-fed hospital log`: the log in words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from clients.log import HospitalLog
from pate_fed.protocol.messages import Refusal


def test_a_hospitals_log_in_words(tmp_path: Path, run: Any) -> None:
    log = HospitalLog(tmp_path)
    log.note("taught", teacher=0)
    log.note("voted", queries=30, bytes=480)
    log.note("handled", seconds=4.454343)
    log.note("sent", message_type="query.votes", bytes=1589)
    log.note("sent", message_type="query.end", bytes=400)
    log.note("policy", reason="POLICY_DAY", sentence="too many today: 3 more")
    log.note("refused", reason="POLICY_DAY")
    with (tmp_path / "log.jsonl").open("a") as file:
        file.write('{"time": 1, "eve')
    code, out, _ = run("hospital", "log", str(tmp_path))
    lines = out.splitlines()
    assert code == 0
    assert lines[-1] == "in all: 30 queries answered, 1 requests refused, 1989 bytes sent, 1 lines cut"
    for line, words in zip(
        lines,
        (
            "trained teacher 1",
            "voted on 30",
            "took 4.5 s",
            "1589 bytes",
            "400 bytes",
            "3 more",
            Refusal.POLICY_DAY.value,
        ),
        strict=False,
    ):
        assert words in line
    code, out, _ = run("hospital", "log", str(tmp_path), "--format", "json")
    assert json.loads(out.splitlines()[-1])["bytes"] == 1989
