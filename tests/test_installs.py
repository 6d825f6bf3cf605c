"""Environments of each extra as they are installed, and what is built of this repository.

Needs a package index, 8 GB of disk, and minutes.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from builders import SMALL_STUDY
from tables_study import write_tables_study

from pate_fed.errors import EXTRA_OF

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent
UV = str(Path(sys.executable).parent / "uv")  # which Flower brings

# Libraries of extras that an environment has; the others it must not have.
BRINGS: dict[str, set[str]] = {
    "": set(),
    "deploy": set(),
    "simulation": {"ray"},
    "images": {"torch", "torchvision", "matplotlib", "PIL", "fontTools", "fsspec"},  # torch takes it along
}
BRINGS["hospital"] = BRINGS["images"] | {"pydicom"}
BRINGS["all"] = set(EXTRA_OF)
DEPLOYS = ("deploy", "hospital", "all")  # with the line of Flower that speaks gRPC


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what a wheel is built from, as a build leaves files beside it."""
    folder = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    for room in ("pate_fed", "clients", "server"):
        shutil.copytree(ROOT / room, folder / room, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


class Installed:
    """A fresh environment, which keeps nothing that this process has in its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.place = folder, folder / "work"
        self.place.mkdir()
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)

    def install(self, *words: str) -> None:
        """Install what uv's words name."""
        python = str(self.folder / "venv/bin/python")
        subprocess.run([UV, "pip", "install", "-q", "--python", python, *words], check=True, cwd=self.place)

    @property
    def megabytes(self) -> float:
        """As `du -sm` counts: blocks on the disk."""
        found = (path.lstat() for path in (self.folder / "venv").rglob("*"))
        return sum(each.st_blocks * 512 for each in found) / 2**20

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run one of its commands."""
        private = {"PATE_FED_CACHE": "cache", "XDG_STATE_HOME": "state", "HOME": "."}
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PATE_FED"))}
        return subprocess.run(
            [str(self.folder / "venv/bin" / words[0]), *words[1:]],
            cwd=self.place,
            capture_output=True,
            text=True,
            check=False,
            env=kept | {key: str(self.place / value) for key, value in private.items()},
        )


@pytest.fixture
def installed(tmp_path: Path) -> Installed:
    return Installed(tmp_path)


FOUND = """
import importlib.util, json, sys
print(json.dumps([name for name in sys.argv[1:] if importlib.util.find_spec(name)]))
"""


SIZES = """
from importlib.metadata import distributions

found = []
for each in distributions():
    files = [each.locate_file(path) for path in each.files or ()]
    held = sum(path.lstat().st_blocks * 512 for path in files if path.is_file())
    found.append((held / 2**20, each.name))
found.sort(reverse=True)
for size, name in found[:12]:
    print(f"{size:6.1f} MB  {name}")
print(f"{sum(size for size, _ in found[12:]):6.1f} MB  {len(found) - 12} others")
"""


@pytest.mark.parametrize("extra", BRINGS)
def test_an_extra_brings_what_it_says_and_its_commands_run(
    source: Path, installed: Installed, extra: str
) -> None:
    installed.install(str(source) + (f"[{extra}]" if extra else ""))
    size = installed.megabytes
    print(f"[{extra}]: {size:.0f} MB")
    if not extra:
        print(installed.run("python", "-c", SIZES).stdout)
    found = installed.run("python", "-c", FOUND, *EXTRA_OF)
    assert set(json.loads(found.stdout)) == BRINGS[extra]
    asked = "from pate_fed.flower.transport import has_transport; print(has_transport())"
    assert (installed.run("python", "-c", asked).stdout == "True\n") == (extra in DEPLOYS)
    if extra in ("", "deploy"):
        assert size <= 400
    if extra in ("", "deploy", "simulation"):
        assert abs(size / _told(f"[{extra}]" if extra else "pate-fed") - 1) < 0.05, (
            "another is in docs/results"
        )
    write_tables_study(installed.place)
    (installed.place / "pictures.toml").write_text(SMALL_STUDY, encoding="utf-8")
    study = ("flower-simulation", "--quiet", "--config")
    ray, torch = "ray" in BRINGS[extra], "torch" in BRINGS[extra]
    backend = "ray" if extra == "simulation" else "inline"  # which takes long to start
    ran = installed.run(*study, "simulated.toml", "--backend", backend, "--run-dir", "tables")
    assert ran.returncode == 0, ran.stderr
    verified = installed.run("pate-fed", "ledger", "verify", "tables")
    assert verified.returncode == 0, verified.stderr
    ran = installed.run(*study, "pictures.toml", "--run-dir", "pictures")
    assert ran.returncode == (0 if torch else 2), ran.stderr
    assert torch or ran.stderr.endswith("pip install 'pate-fed[images]'\n")
    if not ray:
        lacking = installed.run(*study, "simulated.toml", "--backend", "ray")
        assert lacking.returncode == 2 and "pip install 'pate-fed[simulation]'" in lacking.stderr
    if torch:
        exported = installed.run("pate-fed", "export", "pictures", "--onnx", "student.onnx")
        onnx = "onnx" in BRINGS[extra]
        assert exported.returncode == (0 if onnx else 2), exported.stderr
        assert onnx or "pip install 'pate-fed[onnx]'" in exported.stderr


def _index(wheels: Path, folder: Path) -> str:
    """The address of an index on the disk, as PyTorch's own for the CPU is: of torch and what it needs."""
    for wheel in sorted(wheels.glob("*.whl")):
        name = re.sub(r"[-_.]+", "-", wheel.name.split("-")[0]).lower()
        (folder / name).mkdir(parents=True, exist_ok=True)
        link = f'<a href="{wheel.resolve().as_uri()}">{wheel.name}</a>\n'.replace("+", "%2B", 1)
        with (folder / name / "index.html").open("a", encoding="utf-8") as page:
            page.write(link)
    return folder.as_uri()


def _told(what: str) -> float:
    """What docs/results says that an environment takes, in MB."""
    held = json.loads((ROOT / "docs/results/install-sizes.json").read_text(encoding="utf-8"))
    return next(float(each["mean"]["memory_mb"]) for each in held["figures"] if each["of"]["what"] == what)


@pytest.mark.parametrize("libraries", [["flwr"], ["flwr", "scipy"]])
def test_flower_and_scipy_alone_are_what_the_page_says(installed: Installed, libraries: list[str]) -> None:
    """With pip and bytecode they are above what the base may take, so nothing of ours decides that."""
    asked = [f"{name}>=1.39,<1.40" if name == "flwr" else name for name in libraries]
    name = " and ".join(libraries).replace("scipy", "SciPy")
    installed.install(*asked)
    found = {name: installed.megabytes}
    for beside, options in ((" with pip", []), (" with pip --no-compile", ["--no-compile"])):
        shutil.rmtree(installed.folder / "venv")
        subprocess.run([sys.executable, "-m", "venv", str(installed.folder / "venv")], check=True)
        pip = str(installed.folder / "venv/bin/pip")
        subprocess.run([pip, "install", "-q", *options, *asked], check=True)
        found[name + beside] = installed.megabytes
    print({what: round(size) for what, size in found.items()})
    assert all(abs(size / _told(what) - 1) < 0.05 for what, size in found.items())
    assert (found[name + " with pip"] > 400) == ("scipy" in libraries)


@pytest.mark.parametrize("tool", ["uv", "pip"])
def test_the_options_for_an_index_give_torch_for_the_cpu(
    source: Path, installed: Installed, monkeypatch: pytest.MonkeyPatch, tool: str
) -> None:
    """The commands of docs/install.md, with an index of wheels in a folder in place of PyTorch's."""
    wheels = os.environ.get("PATE_FED_CPU_WHEELS")
    if wheels is None:
        pytest.skip(
            "PATE_FED_CPU_WHEELS names no folder with PyTorch's wheels for the CPU, and what they need"
        )
    address = _index(Path(wheels), installed.folder / "index")
    if tool == "uv":
        installed.install("torch", "--index-url", address)
        installed.install(f"{source}[images]")
    else:
        python = str(installed.folder / "venv/bin/python")
        install = [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-compile"]
        alone = {**os.environ, "PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": ""}
        subprocess.run([*install, "torch", "--index-url", address], check=True, env=alone)
        frozen = subprocess.run([*install[:5], "freeze"], check=True, capture_output=True, text=True).stdout
        kept = installed.place / "torch.txt"
        kept.write_text("".join(line + "\n" for line in frozen.splitlines() if line.startswith("torch")))
        subprocess.run([*install, f"{source}[images]", "-c", str(kept)], check=True)
    version = installed.run("python", "-c", "import torch; print(torch.__version__, torch.version.cuda)")
    assert version.stdout.split()[0].endswith("+cpu") and version.stdout.split()[1] == "None"
    print(f"[images] for the CPU by {tool}: {installed.megabytes:.0f} MB")
    assert installed.megabytes <= 1500
    (installed.place / "pictures.toml").write_text(SMALL_STUDY, encoding="utf-8")
    ran = installed.run("flower-simulation", "--quiet", "--config", "pictures.toml", "--run-dir", "run")
    assert ran.returncode == 0, ran.stderr
    # The index in the folder has no torchvision, so this one is made for CUDA.
    (installed.place / "svhn").mkdir()
    for name in ("train_32x32.mat", "test_32x32.mat"):
        (installed.place / "svhn" / name).write_bytes(b"0")
    shown = installed.run("pate-fed", "data", "svhn", "--data-dir", "svhn")
    assert shown.returncode == 2 and "torchvision does not load beside this torch" in shown.stderr, (
        shown.stderr
    )


PARTITIONS = """
import numpy as np
from datasets import ClassLabel, Dataset, Features, Image
from flwr_datasets.partitioner import IidPartitioner

from pate_fed.data import as_dataset, from_partitions

rng = np.random.default_rng(0)
images, labels = rng.integers(0, 256, (90, 8, 8, 3), dtype=np.uint8), rng.integers(0, 3, 90)
features = Features({"image": Image(), "label": ClassLabel(names=["a", "b", "c"])})
whole = Dataset.from_dict({"image": list(images), "label": labels.tolist()}, features=features)
dealer = IidPartitioner(num_partitions=6)
dealer.dataset, public = whole.select(range(60)), whole.select(range(60, 90))
parts = [dealer.load_partition(party) for party in range(6)]
found = as_dataset(lambda: from_partitions(parts, public), what="these", name="these")
assert np.array_equal(found.public_images, images[60:]) and found.class_names == ("a", "b", "c")
assert np.bincount(found.owners).tolist() == [10] * 6
"""


def test_partitions_of_flwr_datasets_are_read(source: Path, installed: Installed) -> None:
    installed.install(f"{source}[datasets]")
    done = installed.run("python", "-c", PARTITIONS)
    assert done.returncode == 0, done.stderr


def test_a_wheel_can_be_built_again_byte_by_byte(source: Path, tmp_path: Path) -> None:
    digests = set()
    for number in range(2):
        folder = shutil.copytree(source, tmp_path / f"copy-{number}")
        for path in folder.rglob("*"):
            os.utime(path, (1e9 + number, 1e9 + number))
        command = ["build", "-q", "--wheel", "--out-dir", str(tmp_path / f"{number}"), str(folder)]
        subprocess.run([UV, *command], check=True, env={**os.environ, "SOURCE_DATE_EPOCH": "315532800"})
        [wheel] = (tmp_path / f"{number}").glob("*.whl")
        digests.add(hashlib.sha256(wheel.read_bytes()).hexdigest())
    assert len(digests) == 1


def test_the_locks_are_what_the_project_asks_for(tmp_path: Path) -> None:
    """Nothing that the project declares is missing in them, or another than it asks for."""
    script = (ROOT / "deploy" / "lock").read_text(encoding="utf-8")
    assert "--upgrade" in script
    (tmp_path / "deploy").mkdir()
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    locks = sorted((ROOT / "deploy").glob("*.lock"))
    for path in locks:
        shutil.copy(path, tmp_path / "deploy")
    (tmp_path / "deploy" / "lock").write_text(script.replace("--upgrade ", ""), encoding="utf-8")
    scripts = os.pathsep.join([str(Path(UV).parent), os.environ["PATH"]])
    subprocess.run(
        ["bash", str(tmp_path / "deploy" / "lock")], check=True, env={**os.environ, "PATH": scripts}
    )
    for path in locks:
        assert (tmp_path / "deploy" / path.name).read_text() == path.read_text(), path.name


def test_the_page_s_command_makes_a_bill_of_materials(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    [command] = re.findall(r"^uvx .*cyclonedx.*$", page, flags=re.MULTILINE)
    words = [str(tmp_path / "sbom.json") if word == "sbom.json" else word for word in command.split()]
    words[0] = str(Path(UV).parent / words[0])
    subprocess.run(words, check=True, cwd=ROOT, capture_output=True)
    bill = json.loads((tmp_path / "sbom.json").read_text(encoding="utf-8"))
    lock = (ROOT / "deploy" / "requirements.lock").read_text(encoding="utf-8")
    pinned = set(re.findall(r"^([\w.-]+)==([\w.]+)", lock, flags=re.MULTILINE))
    assert bill["bomFormat"] == "CycloneDX"
    assert {(each["name"], each["version"]) for each in bill["components"]} == pinned
    assert all(each["externalReferences"][0]["hashes"] for each in bill["components"])
