"""A study from Python, with parts of one's own by object and by name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import own_parts
import pytest
from builders import SMALL_STUDY

from clients.state_dir import SITE_VARIABLE, SimulatedSites
from pate_fed import Run, Step, simulate
from pate_fed.cli.simulate import _write_site
from pate_fed.config.backend import INLINE, RAY, Engine
from pate_fed.config.study import Study, study_from_dict
from pate_fed.errors import InputError
from pate_fed.kinds.votes import VoteTerms

FEW: dict[str, Any] = {"study": {"seed": 1}, **tomllib.loads(SMALL_STUDY)}


def blank(image_shape: tuple[int, ...], num_classes: int) -> Any:
    from torch import nn

    return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(image_shape)), num_classes))


def test_a_teacher_of_one_s_own_by_object_and_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sklearn.tree import DecisionTreeClassifier

    fitted: list[int] = []

    class Counted(DecisionTreeClassifier):  # type: ignore[misc]
        def fit(self, x: Any, y: Any) -> Any:
            fitted.append(len(x))
            return super().fit(x, y)

    run = simulate(FEW, teacher=Counted(), run_dir=tmp_path / "object", quiet=True)
    assert fitted[1:] == [20] * 6  # one trial, then each party's own records
    assert run.result.study.terms.asks.teacher.name.startswith("in_memory:teacher_")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")  # undone afterwards, with what the study appends
    (tmp_path / "their_models.py").write_text("from sklearn.tree import DecisionTreeClassifier as Tree\n")
    named = {**FEW, "teacher": {"name": "their_models:Tree"}}
    run = simulate(named, run_dir=tmp_path / "name", quiet=True)
    part = run.result.study.terms.asks.teacher_part
    assert part is not None and part.name == "their_models:Tree" and len(part.digest) == 64
    assert "NOT PROVEN: every ε rests on the word of their_models:Tree" in "\n".join(run.ledger.lines())
    network = simulate(FEW, teacher=blank, run_dir=tmp_path / "network", quiet=True)
    assert network.result.study.terms.asks.teacher.name == f"{__name__}:blank"
    with pytest.raises(InputError, match="their_models has no Tre"):
        simulate({**FEW, "teacher": {"name": "their_models:Tre"}}, run_dir=tmp_path / "none", quiet=True)
    assert not (tmp_path / "none").exists()


def test_a_student_of_one_s_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    from sklearn.neighbors import KNeighborsClassifier

    from pate_fed.cli.main import main

    run = simulate(FEW, student=KNeighborsClassifier(1), run_dir=tmp_path / "estimator", quiet=True)
    images = np.zeros((2, *run.result.study.terms.image_shape), dtype=np.uint8)
    assert run.student.predict_proba(images).shape == (2, 3)
    assert run.result.study.student.startswith("in_memory:student_")
    again = Run.load(run.path)
    with pytest.raises(InputError, match=r"predictions\.npz: all that is kept of in_memory:student_"):
        _ = again.student
    alike = again.student_from(KNeighborsClassifier(1))
    assert np.array_equal(alike.predict_proba(images), run.student.predict_proba(images))
    with pytest.raises(InputError, match="learns something else from the same labels"):
        again.student_from(KNeighborsClassifier(len(run.labels)))
    with pytest.raises(InputError, match=r"the student of .* is in_memory"):
        again.student_from("own_parts:make")
    with np.load(run.path / "predictions.npz", allow_pickle=False) as held:
        assert held["probabilities"].shape == (60, 3)
    study = {**FEW, "student": {"epochs": 1}}
    run = simulate(study, student=blank, run_dir=tmp_path / "network", quiet=True)
    assert run.student.predict(images).shape == (2,) and not (run.path / "student.ts").exists()
    with pytest.raises(InputError, match=f"weights of {__name__}:blank, code of the user's own"):
        _ = Run.load(run.path).student
    np.save(tmp_path / "two.npy", images)
    ask = ["predict", str(run.path), str(tmp_path / "two.npy"), "--format", "json"]
    assert main(ask) == 2 and main([*ask, "--student", "os:system"]) == 2
    capsys.readouterr()
    assert main([*ask, "--student", f"{__name__}:blank"]) == 0
    part = run.result.study.student_part
    assert part is not None and part.name == f"{__name__}:blank"
    other = replace(part, digest="0" * 64)
    monkeypatch.setattr("pate_fed.report.run.part_identity", lambda *_: other)
    lines, asked = capsys.readouterr().out, main([*ask, "--student", f"{__name__}:blank"])
    assert asked == 6 and "0" * 64 in capsys.readouterr().err
    told = [json.loads(line)["probabilities"] for line in lines.splitlines()]
    assert np.allclose(told, run.student.predict_proba(images), atol=1e-5)
    monkeypatch.undo()
    exported = tmp_path / "student.onnx"
    export = ["export", str(run.path), "--onnx", str(exported)]
    assert main([*export, "--student", "os:system"]) == 2 and main(export) == 2
    assert not exported.exists()
    assert main([*export, "--student", f"{__name__}:blank"]) == 0
    found = onnxruntime.InferenceSession(exported).run(None, {"images": images})[0]
    assert np.allclose(found, run.student.predict_proba(images), atol=1e-4)
    with pytest.raises(InputError, match=r"student 'in_memory:student_\d+\.int': is a int"):
        simulate(FEW, student=3, quiet=True)


def test_a_gan_with_a_network_of_one_s_own(tmp_path: Path) -> None:
    study = {**FEW, "student": {"name": "co-teaching", "epochs": 1, "network": f"{__name__}:blank"}}
    run = simulate(study, run_dir=tmp_path / "gan", quiet=True)
    images = np.zeros((2, *run.result.study.terms.image_shape), dtype=np.uint8)
    assert run.student.generate(2) is not None and not (run.path / "student.ts").exists()
    again = Run.load(run.path)
    with pytest.raises(InputError, match=f"weights of {__name__}:blank, code of the user's own"):
        _ = again.student
    alike = again.student_from(f"{__name__}:blank")
    assert np.allclose(alike.predict_proba(images), run.student.predict_proba(images), atol=1e-5)
    assert np.array_equal(alike.predict_each(images), run.student.predict_each(images))
    for student, said in (
        ({"name": "gan", "network": "sklearn.tree:DecisionTreeClassifier"}, "Classifier; as a network"),
        ({"name": "fixmatch", "network": "own_parts:make"}, "one of ours, or one of these students"),
    ):
        with pytest.raises(InputError, match=said):
            simulate({**FEW, "student": student}, quiet=True)


@pytest.mark.parametrize("given", [5, 0, [("study", {})], b"study.toml"])
def test_what_is_no_study_is_told_in_a_sentence(given: Any) -> None:
    with pytest.raises(InputError, match=r"^the study is .*: a Study, nested dictionaries as in study"):
        simulate(given)


def halves(labels: Any, num_parties: int, seed: int) -> list[Any]:
    return np.array_split(np.random.default_rng(seed).permutation(len(labels)), num_parties)


def test_data_and_a_partition_of_one_s_own(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 150)
    rows = labels[:, None] + rng.normal(0, 0.1, (150, 2))
    arrays = {"private_images": rows[:90], "private_labels": labels[:90], "public_images": rows[90:]}
    study = {**FEW, "teacher": {"trees": 5}, "student": {"trees": 20}}
    del study["data"]
    study["parties"] = {"num_clients": 6}
    given = {"dataset": {**arrays, "public_labels": labels[90:]}, "partitioner": halves}
    run = simulate(study, **given, run_dir=tmp_path / "rows", quiet=True)
    told = run.result.study
    assert told.inputs == "rows" and told.partition == f"{__name__}:halves" and told.backend == "inline"
    assert told.terms.asks.teacher.name == "random-forest" and told.terms.table is None
    assert run.student.predict(np.array([[0.0, 0.0], [1.0, 1.0]])).tolist() == [0, 1]
    assert (run.metrics["accuracy"]["student"] or 0) > 0.9
    with pytest.raises(InputError, match=r"dataset 'in_memory:dataset_\d+\.dict': lacks public_images"):
        simulate(study, dataset={key: arrays[key] for key in arrays if key != "public_images"})
    with pytest.raises(InputError, match="record 0 is not dealt out"):
        simulate(study, dataset=arrays, partitioner=lambda *_: [[1 + k] for k in range(6)], quiet=True)


def test_rows_that_are_named_get_models_of_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from pate_fed.simulation import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    (tmp_path / "their_rows.py").write_text(
        "import numpy as np\n"
        "calls = []\n"
        "def load():\n"
        "    calls.append(1)\n"
        "    labels = np.random.default_rng(0).integers(0, 2, 150)\n"
        "    rows = labels[:, None] + np.zeros((150, 2))\n"
        "    private = {'private_images': rows[:90], 'private_labels': labels[:90]}\n"
        "    return {**private, 'public_images': rows[90:], 'public_labels': labels[90:]}\n"
    )
    command = ["--num-clients", "6", "--sigma2", "2", "--aggregator", "gnmax", "--labels", "4", "--backend"]
    command += ["inline", "--allow-weak-privacy", "--dataset", "their_rows:load", "--quiet", "--dry-run"]
    assert main(command) == 0, capsys.readouterr()
    import their_rows  # type: ignore[import-not-found]

    assert len(their_rows.calls) == 1
    study = {**FEW, "teacher": {"trees": 5}, "student": {"trees": 20}}
    del study["data"]
    named = {**study, "parties": {"num_clients": 6}, "data": {"dataset": "their_rows:load"}}
    run = simulate(named, run_dir=tmp_path / "run", quiet=True)
    held = tomllib.loads((tmp_path / "run" / "study.toml").read_text(encoding="utf-8"))
    assert (held["teacher"]["name"], held["student"]["name"]) == ("random-forest", "forest")
    assert run.student.predict(np.array([[0.0, 0.0], [1.0, 1.0]])).tolist() == [0, 1]
    # What the user named stays, and is told where it cannot learn from rows.
    assert main([*command, "--student", "gan"]) == 2
    assert "gives rows, so --student gan cannot" in capsys.readouterr().err
    with pytest.raises(InputError, match="gives rows, so --teacher small-cnn cannot"):
        simulate({**named, "teacher": {"name": "small-cnn"}}, quiet=True)


def test_a_mechanism_of_one_s_own_by_object_and_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from pate_fed.cli.main import main

    study = {key: FEW[key] for key in FEW if key != "aggregation"}
    steps: list[Step] = []
    run = simulate(
        study, aggregator=own_parts.GeometricMax(2.0), run_dir=tmp_path / "object", on_progress=steps.append
    )
    terms, name = run.result.study.terms, "own_parts:GeometricMax"
    assert terms.asks.aggregation.aggregator == name and terms.asks.aggregation.parameters == (
        ("scale", 2.0),
    )
    run.ledger.require_checked()
    assert run.epsilon == pytest.approx(run.ledger.guaranteed, rel=1e-6)
    assert f"claimed by {name}, not proven" in repr(run)
    assert any("has not proven them" in step.note for step in steps)
    again = Run.load(run.path)
    assert again.epsilon == run.epsilon and np.array_equal(again.labels.label, run.labels.label)
    with pytest.raises(InputError, match="only if you name it"):
        again.ledger.require_checked()
    capsys.readouterr()
    assert main(["ledger", "verify", str(run.path), "--aggregator", name]) == 0
    assert "claims no more than was charged" in capsys.readouterr().out
    assert main(["ledger", "verify", str(run.path)]) == 2
    told = capsys.readouterr()
    assert "NOT CHECKED: the curve of own_parts:GeometricMax" in told.out and "--aggregator" in told.err
    assert main(["ledger", "verify", str(run.path), "--format", "json", "--aggregator", "no_such:part"]) == 2
    assert main(["ledger", "show", str(run.path)]) == 0
    assert "NOT PROVEN" in capsys.readouterr().out

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    source = Path(own_parts.__file__).read_text(encoding="utf-8")
    (tmp_path / "their_mech.py").write_text(source, encoding="utf-8")
    named = {**study, "aggregation": {"aggregator": "their_mech:make", "parameters": {"scale": 2.0}}}
    second = simulate(named, run_dir=tmp_path / "name", quiet=True)
    assert np.array_equal(second.labels.label, run.labels.label) and second.epsilon == run.epsilon
    (tmp_path / "their_mech.py").write_text(source + "# another\n", encoding="utf-8")
    assert main(["ledger", "verify", "name", "--aggregator", "their_mech:make"]) == 6
    assert "differs from the study's" in capsys.readouterr().err

    class Local(own_parts.GeometricMax):
        """Of this process alone."""

    third = simulate(study, aggregator=Local(2.0), run_dir=tmp_path / "local", quiet=True)
    assert third.ledger.claims and "in_memory:aggregator_" in repr(third)
    assert Run.load(third.path).ledger.unchecked


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"aggregation": {"aggregator": "own_parts:nothing"}}, "own_parts has no nothing"),
        ({"aggregation": {"aggregator": "own_parts:Free"}}, "'own_parts:Free': claims an RDP of 0.0"),
        ({"aggregation": {"aggregator": "own_parts:make", "sigma2": 3.0}}, r"aggregation\.sigma2"),
        ({"aggregation": {"aggregator": "gnmax", "parameters": {"a": 1}}}, r"aggregation\.parameters"),
        ({"aggregation": {"aggregator": "own_parts:make", "parameters": {"a": [1]}}}, r"\.parameters"),
        ({"aggregation": {"aggregator": "own_parts:make", "parameters": {"a": 1}}}, "fails when it is made"),
        ({"aggregation": {"aggregator": "own_parts:make"}, "privacy": {"sanitise": True}}, "--sanitise"),
        (
            {
                "aggregation": {"aggregator": "own_parts:make"},
                "secrecy": {"secure_sum": True, "noise_at": "hospitals"},
            },
            "--noise-at hospitals: hospitals add shares of Gaussian noise",
        ),
        ({"queries": {"strategy": "own_parts:make"}}, "query strategy 'own_parts:make': gives object"),
        ({"queries": {"strategy": "own_parts:nothing"}}, "own_parts has no nothing"),
        ({"queries": {"strategy": "leastconfident"}}, "did you mean least-confident"),
    ],
)
def test_a_wrong_part_is_refused_before_anything_is_asked(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    study = {**{key: FEW[key] for key in FEW if key not in ("aggregation", "study")}, **changes}
    with pytest.raises(InputError, match=said):
        simulate(study, run_dir=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_a_mechanism_of_one_s_own_weakens_no_alarm(tmp_path: Path) -> None:
    study = {**FEW, "aggregation": {"aggregator": "own_parts:make", "parameters": {"scale": 0.1}}}
    with pytest.raises(InputError, match=r"promises almost nothing.*aggregation\.parameters"):
        simulate({**study, "privacy": {}}, run_dir=tmp_path / "run", quiet=True)
    with pytest.raises(InputError, match="not even one query fits"):
        simulate({**study, "privacy": {"epsilon": 0.1}}, run_dir=tmp_path / "run", quiet=True)


def test_a_query_strategy_and_a_feature_map_of_one_s_own(tmp_path: Path) -> None:
    run = simulate(FEW, query_strategy=own_parts.backwards, run_dir=tmp_path / "asked", quiet=True)
    assert run.labels.index.tolist() == [53, 52, 51, 50]
    study = {key: FEW[key] for key in ("study", "parties", "data", "engine", "privacy")}
    study["aggregation"] = {"aggregator": "class-sums"}
    study["secrecy"] = {"secure_sum": True, "noise_at": "hospitals"}
    run = simulate(study, feature_map=own_parts.brightness, run_dir=tmp_path / "sums", quiet=True)
    sums = run.result.study.terms.asks
    assert sums is not None and sums.part is not None and sums.part.name == "own_parts:brightness"
    images = np.zeros((2, *run.result.study.terms.image_shape), dtype=np.uint8)
    assert run.student.predict_proba(images).shape == (2, 3)
    word = f"NOT PROVEN: every ε rests on the word of {sums.part.text}"
    assert sum(line.startswith(word) for line in run.ledger.lines()) == 1
    assert "claimed by own_parts:brightness, not proven" in repr(run) and "not proven" in repr(run.ledger)
    assert run.metrics["privacy"]["claimed_by"] == [{"kind": "feature map", **asdict(sums.part)}]
    with pytest.raises(InputError, match="a file may not name any; the run that `simulate` gave"):
        _ = Run.load(run.path).student


def test_an_unknown_part_is_a_mistake_in_the_call() -> None:
    with pytest.raises(
        TypeError, match=r"unexpected keyword argument 'aggregater'; did you mean aggregator\?"
    ):
        simulate(FEW, aggregater=3)  # type: ignore[call-arg]


PARTS = """
from dataclasses import dataclass

import numpy as np
from sklearn.tree import DecisionTreeClassifier as Tree

@dataclass(frozen=True)
class GeometricMax:
    scale: float = 2.0

    def rdp(self, order, sensitivity):
        return min(sensitivity.l1 / self.scale, order * (sensitivity.l1 / self.scale) ** 2 / 2)

    def release(self, totals, noise):
        return int((totals + noise.discrete_laplace(totals.shape, scale=self.scale)).argmax())

def load():
    rng = np.random.default_rng(3)
    labels = rng.integers(0, 2, 400)
    images = (labels[:, None, None] * 100 + rng.integers(0, 100, (400, 8, 8))).astype(np.uint8)
    private = {"private_images": images[:300], "private_labels": labels[:300]}
    return {**private, "public_images": images[300:], "public_labels": labels[300:]}

def deal(labels, num_parties, seed):
    return np.array_split(np.argsort(labels, kind="stable")[::-1], num_parties)
"""


@pytest.mark.parametrize("backend", [INLINE, RAY])
def test_only_one_process_is_told_that_it_plays_all(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SITE_VARIABLE, "another's")  # and put back
    _write_site(Study(engine=Engine(backend=backend, device="cpu")).resolve(), tmp_path, None)
    assert SimulatedSites.read(Path(os.environ[SITE_VARIABLE])).alone == (backend == INLINE)


@pytest.mark.slow
def test_parts_are_found_by_name_in_ray_s_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pate_fed.cli.main import main

    (tmp_path / "their_parts.py").write_text(PARTS)
    small = {**FEW, "data": {}, "engine": {"device": "cpu"}, "student": {"name": "supervised"}}
    small["teacher"], small["parties"], small["aggregation"] = {}, {"num_clients": 3}, {}
    (tmp_path / "study.toml").write_text(study_from_dict(small).to_toml())
    parts = [
        "--dataset",
        "their_parts:load",
        "--partition",
        "their_parts:deal",
        "--teacher",
        "their_parts:Tree",
        "--aggregator",
        "their_parts:GeometricMax",
    ]
    code = "import sys; from pate_fed.simulation import main; sys.exit(main())"
    labels = []
    for backend in ("inline", "ray"):
        given = ["--config", "study.toml", *parts, "--backend", backend, "--run-dir", backend, "--quiet"]
        done = subprocess.run(
            [sys.executable, "-P", "-c", code, *given],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=200,
        )
        assert done.returncode == 0, done.stderr
        labels.append(Run.load(tmp_path / backend).labels.label.tolist())
    assert labels[0] == labels[1]
    monkeypatch.chdir(tmp_path)
    own = "their_parts:GeometricMax"
    assert main(["ledger", "verify", "ray", "--aggregator", own]) == 0
    found = Run.load("ray").result.study.terms
    assert (claim := VoteTerms.of(found).claim) is not None and claim.part.name == own
