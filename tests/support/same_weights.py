"""Whether students' weights are those of another commit, on this machine, with the libraries installed here.

    python tests/support/same_weights.py OTHER_COMMIT [PART_OF_A_STUDY'S_NAME]

runs every seeded study with both commits' code and compares all that a torch version may change: labels and
students, bit by bit. Ends with 1 where something differs. The other commit is checked out beside, in a
temporary folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]


def digests(part: str) -> dict[str, str]:
    """A digest of labels and student of each seeded study whose name has this in it."""
    from seeded_studies import STUDIES

    found = {}
    for name, study in STUDIES.items():
        if part in name:
            with tempfile.TemporaryDirectory() as folder:
                study.run(run_dir := Path(folder, "run"))
                found[name] = _digest(run_dir)
    return found


def _digest(run_dir: Path) -> str:
    state = hashlib.sha256()
    for path in sorted(run_dir.iterdir()):
        if path.suffix in (".npz", ".pt", ".ts"):
            for key, value in _arrays(_read(path)):
                array = np.ascontiguousarray(value)
                state.update(f"{path.name}{key}{array.dtype}{array.shape}".encode() + array.tobytes())
    return state.hexdigest()[:16]


def _read(path: Path) -> Any:
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as held:
            return {name: held[name] for name in held.files if name != "feature_map"}
    import torch

    return torch.jit.load(path).state_dict() if path.suffix == ".ts" else torch.load(path, weights_only=True)


def _arrays(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every array in nested containers, by its place."""
    if isinstance(value, dict):
        for key in sorted(value):
            yield from _arrays(value[key], f"{path}/{key}")
    elif isinstance(value, list | tuple):
        for number, each in enumerate(value):
            yield from _arrays(each, f"{path}/{number}")
    elif hasattr(value, "shape"):
        yield path, value.detach().numpy() if hasattr(value, "detach") else value


def _of(code: Path, part: str) -> dict[str, str]:
    """The digests by the code in a folder: the studies are those of this commit."""
    paths = os.pathsep.join((str(code), str(ROOT / "tests" / "support")))
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", __file__, "--digests", part]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(command, env=environment, cwd=folder, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{code}: its studies fail")
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


def compare(commit: str, part: str) -> int:
    """Run both, print what differs, and give how much that is."""
    with tempfile.TemporaryDirectory() as folder:
        other = Path(folder, "other")
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "-q", "--detach", str(other), commit], check=True)
        try:
            before, now = _of(other, part), _of(ROOT, part)
        finally:
            subprocess.run([*git, "remove", "--force", str(other)], check=True)
    changed = [name for name in now if now[name] != before[name]]
    for name in changed:
        print(f"{name}: {before[name]} in {commit}, {now[name]} here")
    print(f"{len(now) - len(changed)} of {len(now)} studies have the same labels and weights")
    return len(changed)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--digests"]:
        print(json.dumps(digests(sys.argv[2])))
    elif len(sys.argv) in (2, 3):
        sys.exit(min(1, compare(sys.argv[1], "".join(sys.argv[2:]))))
    else:
        sys.exit(__doc__)
