"""Another user of the coordinator's machine: what it can submit, register, read, change or see."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from sum_study import SumStudy

from pate_fed.cli.demo import HOSPITALS
from pate_fed.flower.processes import SECRET
from pate_fed.flower.transport import CONTROL_HEADER, control_word

pytestmark = pytest.mark.slow
NOBODY = 65534
# What it tries, by the standard library alone: argument 1 is a folder, 2 a port, the others are processes.
TRIES = """
import http.client, json, os, ssl, sys
folder, port, *processes = sys.argv[1:]
found = {"read": [], "changed": [], "said": [], "environments": [], "commands": []}
for top, _, names in os.walk(folder):
    for path in [os.path.join(top, name) for name in names] + [top]:
        try:
            open(path, "rb").read(1)
            found["read"].append(path)
        except OSError:
            pass
        if os.access(path, os.W_OK):
            found["changed"].append(path)
context = ssl._create_unverified_context()
for call in ("start-run", "register-node", "list-nodes", "unregister-node", "stop-run", "list-runs"):
    for word in (None, "", "0" * 64):
        connection = http.client.HTTPSConnection("127.0.0.1", int(port), context=context, timeout=20)
        headers = {"content-type": "application/protobuf"} | ({} if word is None else {HEADER: word})
        connection.request("POST", "/v1/control/" + call, body=b"", headers=headers)
        found["said"].append(connection.getresponse().status)
for process in processes:
    found["commands"].append(open(f"/proc/{process}/cmdline").read())
    try:
        found["environments"].append(open(f"/proc/{process}/environ").read())
    except OSError:
        pass
print(json.dumps(found))
"""


def _as_nobody(*arguments: str) -> subprocess.CompletedProcess[str]:
    user = ("--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups")
    command = (shutil.which("setpriv") or "setpriv", *user, sys.executable, "-I", *arguments)
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")


def test_another_user_of_the_machine_submits_reads_and_sees_nothing(rehearsal: Any) -> None:
    if os.geteuid() != 0 or shutil.which("setpriv") is None or _as_nobody("-c", "pass").returncode != 0:
        pytest.skip("only root can try it, with setpriv and a Python that others may run")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)  # what protects are the modes of our own files
        place = replace(rehearsal, folder=folder, parties=[])
        try:
            _try(SumStudy(place, joined=0))
        finally:
            place.stop()


def _try(study: SumStudy) -> None:
    server = study.coordinator()
    server.wait_for("listening on")
    parent = psutil.Process(server.process.pid)
    processes = [parent, *parent.children(recursive=True)]
    commands = [" ".join(each.cmdline()) for each in processes]
    [port] = {found[1] for each in commands if (found := re.search(r"--port (\d+)", each))}
    [secret] = [path.read_text() for path in (study.folder / "run").rglob(SECRET)]
    program = f"HEADER = {CONTROL_HEADER!r}\n{TRIES}"
    tried = _as_nobody("-c", program, str(study.folder), port, *(str(each.pid) for each in processes))
    assert tried.returncode == 0, tried.stderr
    found = json.loads(tried.stdout)
    assert found["said"] == [401] * 18
    assert found["changed"] == found["environments"] == []
    assert "study.toml" in {Path(each).name for each in found["read"]}  # it could look around
    ours = [study.folder / name for name in ("run", "authority", *(f"identity-{name}" for name in HOSPITALS))]
    assert [each for each in found["read"] if set(ours) & {*Path(each).parents, Path(each)}] == []
    said = " ".join(found["commands"])
    assert "--superexec-auth-secret-file" in said and secret not in said
    assert control_word(secret.encode()) not in said
    study.hospitals = [study.join(name) for name in HOSPITALS]
    assert server.wait(300) == 0, server.text
    study.check()
