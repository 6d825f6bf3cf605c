"""A study on a real Ray cluster: two raylets of one core on this machine, each with folders of its own.

An object store is an S3 on this machine where its library is installed, else a stand-in of the tests' own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from ray_nodes import Node, RayNodes, ray_nodes, short_folder
from s3_server import BUCKET, has_s3, s3_server
from torch import cuda

PARTIES = 8
TOKEN = "cluster-token-" + "7" * 50

STUDY = """
[study]
seed = 7
[data.glyph]
classes = 3
private = 160
public = 60
[privacy]
allow_weak = true
[parties]
num_clients = 8
quorum = {quorum}
[teacher]
name = "{teacher}"
[aggregation]
aggregator = "gnmax"
sigma2 = 0.5
[queries]
labels = 25
max_queries = 30
batch_size = 15
[student]
name = "supervised"
epochs = 1
"""

# Code of the user's own, in the folder from which the command is run: slow enough to be killed at.
TEACHER = '''
import os
import time

import numpy as np


def by_process(labels, parties, seed):
    """Other parts in every process."""
    order = np.random.default_rng(os.getpid()).permutation(len(labels))
    return [np.sort(part) for part in np.array_split(order, parties)]


class Slow:
    """The nearest class mean, after a second."""

    def fit(self, inputs, labels):
        time.sleep({fit_s})
        flat = np.asarray(inputs, dtype=float).reshape(len(inputs), -1)
        self.classes = np.unique(labels)
        self.means = np.stack([flat[labels == each].mean(axis=0) for each in self.classes])
        return self

    def predict(self, inputs):
        time.sleep({predict_s})
        flat = np.asarray(inputs, dtype=float).reshape(len(inputs), -1)
        return self.classes[((flat[:, None] - self.means) ** 2).sum(axis=2).argmin(axis=1)]
'''


# In place of the library for S3, which may not be here: objects are files, and are put at once.
OBJECTS = """
import os, shutil, uuid
from pathlib import Path

from fsspec.spec import AbstractFileSystem

__version__ = "2026.9.0"


class S3FileSystem(AbstractFileSystem):
    protocol = "s3"

    def _file(self, path):
        return Path({root!r}, self._strip_protocol(path))

    def cat_file(self, path, **kwargs):
        return self._file(path).read_bytes()

    def pipe_file(self, path, value, mode="overwrite", **kwargs):
        file = self._file(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_name(uuid.uuid4().hex + ".part")
        part.write_bytes(value)
        if mode == "create":
            os.link(part, file)
            part.unlink()
        else:
            part.replace(file)

    def rm(self, path, recursive=False, maxdepth=None):
        shutil.rmtree(self._file(path))
"""


@dataclass(frozen=True)
class _Done:
    code: int
    said: str
    run_dir: Path

    @property
    def labels(self) -> dict[str, list[int]]:
        with np.load(self.run_dir / "labels.npz") as held:
            return {name: held[name].tolist() for name in held.files}

    @property
    def events(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in (self.run_dir / "log.jsonl").read_text().splitlines()]

    def voters(self) -> list[object]:
        return [event["clients"] for event in self.events if event["event"] == "vote"]

    def left_out(self, phase: str) -> int:
        return sum(event["event"] == "left_out" and event["phase"] == phase for event in self.events)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with short_folder() as path:
        yield path


@pytest.fixture(scope="module")
def stand_in(folder: Path) -> Path | None:
    """Where the stand-in for S3 has its objects; None where there is an S3."""
    return None if has_s3() else folder / "objects"


@pytest.fixture(scope="module")
def cluster(folder: Path, stand_in: Path | None) -> Iterator[RayNodes]:
    with pytest.MonkeyPatch.context() as patch, ExitStack() as held:
        if stand_in is None:
            for name, value in held.enter_context(s3_server()).items():
                patch.setenv(name, value)
        else:
            (folder / "lib").mkdir()
            (folder / "lib" / "s3fs.py").write_text(OBJECTS.format(root=str(stand_in)))
            patch.setenv("PYTHONPATH", str(folder / "lib"))
        with ray_nodes(folder / "t", 1, token=TOKEN) as found:
            yield found


class _Runs:
    """Runs of one command each, in folders of their own."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._count = folder, 0

    def __call__(
        self,
        *options: str,
        environment: Mapping[str, str],
        teacher: str = "small-cnn",
        quorum: float = 0.4,
        fit_s: float = 0.0,
        predict_s: float = 0.0,
        meanwhile: Callable[[subprocess.Popen[bytes]], None] | None = None,
    ) -> _Done:
        self._count += 1
        work = self._folder / f"run-{self._count}"
        work.mkdir()
        (work / "slow_teacher.py").write_text(TEACHER.format(fit_s=fit_s, predict_s=predict_s))
        (work / "study.toml").write_text(STUDY.format(teacher=teacher, quorum=quorum))
        command = [str(Path(sys.executable).parent / "flower-simulation"), "--config", "study.toml"]
        own = {"PATE_FED_CACHE": str(self._folder / "driver-cache"), "TMPDIR": str(work)}
        with open(work / "said", "w+b") as said:
            process = subprocess.Popen(
                [*command, "--run-dir", "run", "--device", "cpu", *options],
                cwd=work,
                env={**environment, **own},
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
            )
            try:
                if meanwhile is not None:
                    meanwhile(process)
                process.wait(timeout=150)
            finally:
                process.kill()
                process.wait()
            said.seek(0)
            return _Done(process.returncode, said.read().decode(), work / "run")


@pytest.fixture(scope="module")
def run(folder: Path) -> _Runs:
    return _Runs(folder)


@pytest.fixture(scope="module")
def inline(run: _Runs) -> _Done:
    """What the others are held against, with networks as teachers."""
    return run("--backend", "inline", environment=_plain())


@pytest.fixture(scope="module")
def own_inline(run: _Runs) -> _Done:
    """The same with the user's own teachers."""
    return run("--backend", "inline", environment=_plain(), teacher="slow_teacher:Slow")


def _plain() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}


def _disks(node: Node, what: str = "") -> list[Path]:
    return list((node.folder / "tmp").glob(f"pate-fed-*/party-*/{what}"))


def _when(there: Callable[[], object], *, least_s: float = 0.0) -> None:
    end = time.monotonic() + 90
    while not there():
        assert time.monotonic() < end, "never came"
        time.sleep(0.05)
    time.sleep(least_s)


@pytest.mark.slow
def test_two_nodes_give_the_labels_of_one_process(cluster: RayNodes, run: _Runs, inline: _Done) -> None:
    second = cluster.add()
    cluster.wait(2)
    first = cluster.nodes[0]
    most, seen_by_ps = {first: 0, second: 0}, []

    def watch(process: subprocess.Popen[bytes]) -> None:
        while process.poll() is None:
            for node in most:
                most[node] = max(most[node], len(_disks(node, "teacher-*")))
            seen_by_ps.extend(
                " ".join(each.info["cmdline"] or []) for each in psutil.process_iter(["cmdline"])
            )
            time.sleep(0.3)

    # RAY_ADDRESS is Ray's own word for the cluster; auto takes it.
    environment = {**cluster.environment, "RAY_ADDRESS": cluster.address}
    done = run("--ray-address", "auto", environment=environment, meanwhile=watch)
    assert done.code == 0, done.said
    assert done.labels == inline.labels
    assert done.voters() == inline.voters() == [PARTIES] * len(done.voters())
    # Both played, each with its own disk and half of the parties; the data came from the driver.
    assert sorted(most.values()) == [PARTIES / 2] * 2
    assert not [path for node in most for path in (node.folder / "cache").iterdir()]
    assert not any(_disks(node) for node in most), "gone with the run"
    # The token is in no command line, no file and no word of it.
    assert TOKEN not in done.said and not any(TOKEN in line for line in seen_by_ps)
    logs = [path for path in (cluster.folder).rglob("*") if path.is_file() and not path.is_symlink()]
    assert len(logs) > 20 and not [path for path in logs if TOKEN.encode() in path.read_bytes()]
    assert not [
        path for path in done.run_dir.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()
    ]
    second.stop()
    cluster.nodes.remove(second)


@pytest.mark.slow
@pytest.mark.skipif(cuda.is_available(), reason="a node's card must be one that PyTorch does not see")
def test_a_node_with_a_card_is_taken_and_one_that_cannot_be_used_is_told(
    cluster: RayNodes, run: _Runs
) -> None:
    with_card = cluster.add("--num-gpus=1")  # as it says; here is none
    cluster.wait(2)
    most = {cluster.nodes[0]: 0, with_card: 0}

    def watch(process: subprocess.Popen[bytes]) -> None:
        while process.poll() is None:
            for node in most:
                most[node] = max(most[node], len(node.workers()))
            time.sleep(0.1)

    options = ("--ray-address", cluster.address, "--device", "auto")
    done = run(*options, environment=cluster.environment, meanwhile=watch)
    assert done.code == 2
    assert "of the cluster: --device cuda: torch sees 0 CUDA devices here" in done.said
    assert most == {cluster.nodes[0]: 0, with_card: 1}
    with_card.stop()
    cluster.nodes.remove(with_card)


@pytest.mark.slow
@pytest.mark.parametrize("quorum", [0.4, 0.9])
def test_a_node_killed_while_teaching(cluster: RayNodes, run: _Runs, quorum: float) -> None:
    doomed = cluster.add()
    cluster.wait(2)

    def kill(process: subprocess.Popen[bytes]) -> None:
        _when(lambda: _disks(doomed, "terms.json"), least_s=0.5)
        doomed.kill()

    done = run(
        "--ray-address",
        cluster.address,
        environment=cluster.environment,
        teacher="slow_teacher:Slow",
        quorum=quorum,
        fit_s=1.5,
        meanwhile=kill,
    )
    lost = done.left_out("teach")
    assert 1 <= lost <= PARTIES / 2
    assert "is lost, with its process or its node of the cluster" in done.said + json.dumps(done.events)
    if quorum == 0.4:
        assert done.code == 0, done.said
        assert done.voters() == [PARTIES - lost] * len(done.voters())
    else:
        assert done.code == 4 and "the quorum is 8" in done.said
    assert "Traceback" not in done.said and "raylet" not in done.said


@pytest.mark.slow
@pytest.mark.parametrize("quorum", [0.2, 0.9])
def test_a_node_killed_while_voting(cluster: RayNodes, run: _Runs, quorum: float) -> None:
    doomed = cluster.add()
    cluster.wait(2)
    held: list[int] = []

    def kill(process: subprocess.Popen[bytes]) -> None:
        _when(lambda: _disks(doomed, "answered/*"))
        held.append(len(_disks(doomed, "terms.json")))
        doomed.kill()

    done = run(
        "--ray-address",
        cluster.address,
        environment=cluster.environment,
        teacher="slow_teacher:Slow",
        quorum=quorum,
        predict_s=1.5,
        meanwhile=kill,
    )
    assert not done.left_out("teach")
    if quorum == 0.2:  # teaching takes no time here: a node may have more than half of them
        assert done.code == 0, done.said
        # Some had voted before; in later batches none of that node is heard any more.
        first, *others = map(int, map(str, done.voters()))
        assert PARTIES > first >= PARTIES - held[0]
        assert others == [PARTIES - held[0]] * len(others) and others
    else:
        assert done.code == 4 and "the quorum is 8" in done.said
    assert "Traceback" not in done.said


@pytest.mark.slow
@pytest.mark.parametrize("objects", [False, True])
def test_on_a_shared_disk_the_parties_of_a_killed_node_go_on(
    cluster: RayNodes, run: _Runs, own_inline: _Done, folder: Path, stand_in: Path | None, objects: bool
) -> None:
    doomed = cluster.add()
    cluster.wait(2)
    shared = folder / "shared"
    shared.mkdir(exist_ok=True)

    def there(pattern: str) -> list[Any]:
        return _objects(stand_in, pattern) if objects else list(shared.glob(pattern))

    def kill(process: subprocess.Popen[bytes]) -> None:
        voted = "00000002" if objects else "answered/*"  # after terms and a teacher
        _when(lambda: there(f"pate-fed-*/party-*/{voted}"))
        assert objects or not _disks(doomed)
        doomed.kill()

    done = run(
        *("--ray-address", cluster.address, "--shared-dir", f"s3://{BUCKET}" if objects else str(shared)),
        environment=cluster.environment,
        teacher="slow_teacher:Slow",
        predict_s=0.7,
        meanwhile=kill,
    )
    assert done.code == 0, done.said
    assert done.voters() == [PARTIES] * len(done.voters()) and not done.left_out("vote")
    assert done.labels == own_inline.labels
    assert not there("pate-fed-*")


def _objects(stand_in: Path | None, pattern: str) -> list[Any]:
    """Objects of the bucket."""
    if stand_in is not None:
        return list(stand_in.glob(f"{BUCKET}/{pattern}"))
    from fsspec import filesystem

    return list(filesystem("s3", use_listings_cache=False).glob(f"{BUCKET}/{pattern}"))


@pytest.mark.slow
def test_a_wrong_or_missing_token_is_turned_away(cluster: RayNodes, run: _Runs) -> None:
    where = ("--ray-address", cluster.address)
    done = run(*where, environment={**cluster.environment, "RAY_AUTH_TOKEN": "w" * 64})
    assert done.code == 2 and "does not take this token" in done.said and "w" * 64 not in done.said
    home = {"HOME": str(done.run_dir.parent)}
    done = run(*where, environment={**_plain(), **home})
    assert done.code == 2 and "asks for a token" in done.said
    done = run(*where, "--insecure-cluster", environment={**_plain(), **home})
    assert done.code == 2 and "leave this option away" in done.said
    assert "Traceback" not in done.said


@pytest.mark.slow
def test_masked_votes_with_the_hospitals_noise_are_summed_over_a_cluster(
    cluster: RayNodes, run: _Runs
) -> None:
    masked = ("--secure-sum", "--noise-at", "hospitals", "--sigma2", "4")
    here = run("--backend", "inline", *masked, environment=_plain())
    there = run("--ray-address", cluster.address, *masked, environment=cluster.environment)
    assert (here.code, there.code) == (0, 0), there.said
    assert there.labels == here.labels


@pytest.mark.slow
def test_a_node_that_would_deal_records_otherwise_ends_the_run(cluster: RayNodes, run: _Runs) -> None:
    where = ("--ray-address", cluster.address, "--partition", "slow_teacher:by_process")
    done = run(*where, environment=cluster.environment, teacher="slow_teacher:Slow")
    assert done.code == 2, done.said
    assert "of the cluster: dataset 'glyph' with partition" in done.said
    assert "gives other records here than to the coordinator" in done.said
    assert "Traceback" not in done.said and not done.run_dir.joinpath("labels.npz").exists()


@pytest.mark.slow
def test_a_cluster_without_a_token_is_refused_unless_its_network_is_closed(
    folder: Path, run: _Runs, inline: _Done
) -> None:
    with ray_nodes(folder / "o", 1, token=None) as found:
        where = ("--ray-address", found.address)
        done = run(*where, environment=_plain())
        assert done.code == 2 and "asks for no token" in done.said and "--insecure-cluster" in done.said
        assert not done.run_dir.joinpath("labels.npz").exists()
        done = run(*where, "--insecure-cluster", environment=_plain())
        assert done.code == 0, done.said
        assert done.labels == inline.labels
