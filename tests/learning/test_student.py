"""Students: they learn, only the right weights move, odd inputs have a defined outcome, files are safe."""

from __future__ import annotations

import subprocess
import sys
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from pate_fed.errors import InputError, IntegrityError, PateFedError
from pate_fed.learning import STUDENTS, EpochRecord, StudentSettings
from pate_fed.learning.inputs import to_tensor
from pate_fed.learning.networks import classifiers as models
from pate_fed.learning.students import gan as steps
from pate_fed.learning.students.sets import batches
from pate_fed.learning.students.student import Student
from pate_fed.learning.students.train import train_student

MakeStripes = Callable[..., tuple[NDArray[np.uint8], NDArray[np.int64]]]
QUICK = StudentSettings(epochs=2, batch_size=50, learning_rate=3e-3)
NAMES = STUDENTS


def _student(images: NDArray[np.uint8], labels: NDArray[np.int64], **changes: object) -> Student:
    """A quick student on the first so many images, as many as there are labels."""
    given: dict[str, object] = {
        "labelled_index": np.arange(len(labels)),
        "labels": labels,
        "num_classes": 4,
        "settings": QUICK,
        "seed": 0,
    }
    return train_student(images, **(given | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", NAMES)
def test_a_student_of_noisy_labels_beats_chance(stripes: MakeStripes, name: str) -> None:
    images, truth = stripes(400)
    labels = truth[:120].copy()
    labels[::5] = (labels[::5] + 1) % 4
    seen: list[EpochRecord] = []
    fresh, answers = stripes(300, seed=1)
    settings = replace(QUICK, name=name, epochs=8 if name in ("supervised", "fixmatch") else 3)
    student = _student(
        images, labels, settings=settings, test_images=fresh, test_labels=answers, on_epoch=seen.append
    )
    assert np.mean(student.predict(fresh) == answers) > 0.6
    assert seen == student.history
    assert [record.epoch for record in seen] == list(range(1, settings.total_epochs + 1))
    assert seen[-1].test_accuracy == pytest.approx(np.mean(student.predict(fresh) == answers))
    alone = ("supervised", "fixmatch", "vat", "encoder-head")
    assert (seen[-1].loss_generator is None) == (name in alone)
    assert (seen[-1].disagreements is None) == (name in (*alone, "gan"))


def test_the_deep_network_takes_colour(stripes: MakeStripes) -> None:
    images, labels = stripes(40, size=8, channels=3)
    settings = StudentSettings(network="deep-cnn", epochs=1, batch_size=20)
    student = _student(images, labels[:20], settings=settings)
    made = student.generate(3)
    assert made is not None and made.shape == (3, 8, 8, 3) and made.dtype == np.uint8


def test_probabilities_are_the_discriminators_mean(stripes: MakeStripes) -> None:
    images, labels = stripes(100)
    student = _student(images, labels[:40])  # too few to calibrate it
    found = student.predict_proba(images)
    assert found.dtype == np.float32 and found.shape == (100, 4)
    assert np.allclose(found.sum(axis=1), 1, atol=1e-5)
    with torch.inference_mode():
        each = [network(to_tensor(images, "cpu")).softmax(dim=1).numpy() for network in student._networks]
    assert len(each) == 2 and np.allclose(found, (each[0] + each[1]) / 2, atol=1e-5)
    assert not np.allclose(each[0], each[1], atol=1e-3)


def test_co_teaching_keeps_what_the_schedule_says(stripes: MakeStripes) -> None:
    images, labels = stripes(100)
    settings = replace(QUICK, name="co-teaching", noise_rate=0.3, ramp_epochs=3, epochs=4)
    student = _student(images, labels[:50], settings=settings)
    assert [record.kept_share for record in student.history] == pytest.approx([0.9, 0.8, 0.7, 0.7])


def _trainer(images: NDArray[np.uint8], name: str = "co-teaching") -> steps.Trainer:
    return steps.Trainer(replace(QUICK, name=name), (16, 16, 1), 4, to_tensor(images, "cpu"), samples=30)


def _copies(module: torch.nn.Module) -> list[torch.Tensor]:
    return [weight.detach().clone() for weight in module.parameters()]


def _moved(module: torch.nn.Module, before: list[torch.Tensor]) -> bool:
    return any(not torch.equal(a, b) for a, b in zip(module.parameters(), before, strict=True))


def test_the_generators_loss_moves_only_the_generator(stripes: MakeStripes) -> None:
    images, _ = stripes(60)
    trainer = _trainer(images)
    generator = trainer.generator
    assert generator is not None
    before = [_copies(each) for each in (*trainer.networks, generator)]
    trainer._learn_generator(trainer.inputs[:30], trainer.front(generator.draw(30)))
    moved = [_moved(m, b) for m, b in zip((*trainer.networks, generator), before, strict=True)]
    assert moved == [False, False, True]
    assert all(weight.grad is None for network in trainer.networks for weight in network.parameters())


def test_the_discriminators_losses_do_not_move_the_generator(
    stripes: MakeStripes, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, labels = stripes(60)
    trainer = _trainer(images)
    assert trainer.generator is not None
    monkeypatch.setattr(trainer, "_learn_generator", lambda u, fake: torch.zeros(()))
    before = [_copies(each) for each in (*trainer.networks, trainer.generator)]
    trainer._learn_batch(trainer.inputs[:30], torch.from_numpy(labels[:30]), trainer.inputs[30:], 0.8)
    modules = (*trainer.networks, trainer.generator)
    assert [_moved(m, b) for m, b in zip(modules, before, strict=True)] == [True, True, False]
    assert all(weight.grad is None for weight in trainer.generator.parameters())


def test_a_sample_only_its_peer_dropped_does_not_teach(stripes: MakeStripes) -> None:
    images, labels = stripes(60)
    trainer = _trainer(images)
    y = torch.from_numpy(labels[:30])
    with torch.no_grad():
        for network in trainer.networks:
            network.eval()
        losses = [steps.supervised_losses(n.logits(trainer.inputs[:30]), y) for n in trainer.networks]
    first, second = steps.exchange(losses, torch.ones(30, dtype=torch.bool), rate=0.5)
    assert first.sum() == second.sum() == 15
    assert set(losses[1].argsort()[:15].tolist()) == set(first.nonzero().flatten().tolist())


def test_the_front_is_shared_and_never_trained(stripes: MakeStripes) -> None:
    images, labels = stripes(100)
    student = _student(images, labels[:50])
    one, two = (network.front.state_dict() for network in student._networks)
    fresh = models.OrientedGradients(1)
    fresh.fit(to_tensor(images, "cpu"))
    for key, value in fresh.state_dict().items():
        assert torch.equal(one[key], value) and torch.equal(two[key], value)


def test_every_sample_comes_before_one_comes_again() -> None:
    found = batches(7, 20, 6, torch.device("cpu"))
    assert found.shape == (4, 6)
    flat = found.flatten().tolist()
    for start in (0, 7, 14):
        assert sorted(flat[start : start + 7]) == list(range(7))


def test_a_batch_is_no_larger_than_the_sets_and_no_smaller_than_two() -> None:
    cpu = torch.device("cpu")
    assert batches(7, 20, 10**9, cpu).shape == (1, 20)
    assert batches(1, 1, 100, cpu).tolist() == [[0, 0]]


@pytest.mark.parametrize("name", ["supervised", "pate++", "vat", "fixmatch"])
def test_extreme_batches_and_dropout_work(stripes: MakeStripes, name: str) -> None:
    images, labels = stripes(60)
    for batch_size in (2, 10**9):
        settings = replace(QUICK, name=name, epochs=1, batch_size=batch_size, dropout=0.9999)
        assert np.isfinite(_student(images, labels[:20], settings=settings).predict_proba(images)).all()


@pytest.mark.parametrize("name", NAMES)
def test_labels_of_one_class_give_a_student_of_that_class(stripes: MakeStripes, name: str) -> None:
    images, _ = stripes(120)
    labels = np.full(60, 2, dtype=np.int64)
    student = _student(images, labels, settings=replace(QUICK, name=name, epochs=4, ema_decay=0.9))
    assert np.all(student.predict(images) == 2)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("count", [1, 3])
def test_fewer_labels_than_a_batch_work(stripes: MakeStripes, name: str, count: int) -> None:
    images, labels = stripes(70)
    student = _student(images, labels[:count], settings=replace(QUICK, name=name))
    assert np.isfinite(student.predict_proba(images)).all()


@pytest.mark.parametrize("name", NAMES)
def test_without_unlabelled_data_the_labelled_ones_serve(stripes: MakeStripes, name: str) -> None:
    images, labels = stripes(60)
    student = _student(images, labels, settings=replace(QUICK, name=name))
    assert np.isfinite(student.predict_proba(images)).all()


@pytest.mark.parametrize("name", NAMES)
def test_a_class_without_a_label_is_not_learnt(stripes: MakeStripes, name: str) -> None:
    images, labels = stripes(200)
    some = np.flatnonzero(labels != 3)[:80]
    student = _student(
        images, labels[some], labelled_index=some, settings=replace(QUICK, name=name, epochs=3)
    )
    assert np.mean(student.predict(images) == 3) < 0.05


def test_one_public_image_works() -> None:
    images = np.full((1, 8, 8, 1), 7, dtype=np.uint8)
    student = _student(images, np.array([1]), settings=replace(QUICK, epochs=1))
    assert student.predict(images).shape == (1,)


@pytest.mark.parametrize("part", ["unsupervised_loss", "supervised_losses", "feature_matching_loss"])
def test_divergence_ends_the_run_and_is_named(
    stripes: MakeStripes, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    images, labels = stripes(60)
    true = getattr(steps, part)
    monkeypatch.setattr(steps, part, lambda *args: true(*args) * float("nan"))
    name = {"supervised_losses": "supervised loss", "unsupervised_loss": "unsupervised loss"}
    with pytest.raises(PateFedError, match=rf"{name.get(part, 'generator')}.* nan in epoch 1"):
        _student(images, labels[:20])


def test_the_callers_randomness_is_left_alone(stripes: MakeStripes) -> None:
    images, labels = stripes(60)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    student = _student(images, labels[:20])
    student.generate(2)
    assert torch.equal(torch.rand(3), expected)


def test_saved_and_loaded_students_are_alike(stripes: MakeStripes, tmp_path: Path) -> None:
    images, labels = stripes(100)
    student = _student(images, labels[:50], test_images=images, test_labels=labels)
    path = tmp_path / "student.pt"
    student.save(path)
    again = Student.load(path)
    assert np.array_equal(again.predict_proba(images), student.predict_proba(images))
    assert again.history == student.history and again.settings == student.settings
    made, remade = student.generate(4, seed=1), again.generate(4, seed=1)
    assert made is not None and remade is not None and np.array_equal(made, remade)
    assert path.stat().st_mode & 0o777 == 0o600


ALONE = """
import sys, warnings
import numpy as np
import torch
warnings.simplefilter("ignore")
model = torch.jit.load(sys.argv[1])
with torch.no_grad():
    found = model(torch.from_numpy(np.load(sys.argv[2])))
np.save(sys.argv[3], found.numpy())
assert not any(name.startswith("pate_fed") for name in sys.modules)
"""


@pytest.mark.parametrize("name", ["gan", "co-teaching"])
def test_an_exported_student_needs_nothing_of_this_package(
    stripes: MakeStripes, tmp_path: Path, name: str
) -> None:
    images, labels = stripes(60, channels=3)
    student = _student(images, labels[:30], settings=replace(QUICK, name=name, epochs=1))
    student.export(tmp_path / "student.ts")
    np.save(tmp_path / "images.npy", images)
    files = [str(tmp_path / name) for name in ("student.ts", "images.npy", "found.npy")]
    subprocess.run([sys.executable, "-c", ALONE, *files], check=True, cwd=tmp_path)
    assert np.allclose(np.load(tmp_path / "found.npy"), student.predict_proba(images), atol=1e-5)
    # And the student itself is as before.
    student.save(tmp_path / "student.pt")
    assert np.array_equal(Student.load(tmp_path / "student.pt").predict(images), student.predict(images))


def test_an_exported_student_says_what_it_takes_and_refuses_anything_else(
    stripes: MakeStripes, tmp_path: Path
) -> None:
    images, labels = stripes(60)
    student = _student(images, labels[:30], settings=replace(QUICK, epochs=1))
    student.class_names = ("a", "b", "c", "d")
    student.export(tmp_path / "student.ts")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls TorchScript old
        model = torch.jit.load(str(tmp_path / "student.ts"))  # type: ignore[no-untyped-call]
    pixels = torch.from_numpy(images.copy())
    assert tuple(model.image_shape) == images.shape[1:] and model.class_names == list(student.class_names)
    assert not model(pixels).requires_grad
    # A traced network would take the first two, and answer: a pooled row more or less is no error to it.
    for wrong in (pixels / 255, pixels[:, :-1], pixels[..., 0], pixels.expand(-1, -1, -1, 3)):
        with pytest.raises(torch.jit.Error, match="uint8 values from 0 to 255"):
            model(wrong)
    # Its folders are this machine's affair.
    content = zipfile.ZipFile(tmp_path / "student.ts")
    assert not any(
        str(Path(__file__).parents[2]).encode() in content.read(name) for name in content.namelist()
    )


def test_an_unwritable_folder_is_named(stripes: MakeStripes, tmp_path: Path) -> None:
    images, labels = stripes(60)
    student = _student(images, labels[:30], settings=replace(QUICK, epochs=1))
    for write in (student.save, student.export):
        with pytest.raises(InputError, match="absent"):
            write(tmp_path / "absent" / "student.pt")
        (tmp_path / "folder").mkdir(exist_ok=True)
        with pytest.raises(InputError, match="folder"):
            write(tmp_path / "folder")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


@pytest.mark.parametrize("name", ["supervised", "gan", "pate++", "vat", "fixmatch"])
@pytest.mark.parametrize("stop", [1, 2, 3])
def test_a_stopped_run_goes_on_to_the_same_student(
    stripes: MakeStripes, tmp_path: Path, name: str, stop: int
) -> None:
    images, labels = stripes(60)
    settings = replace(QUICK, name=name, epochs=2 if name == "pate++" else 4)
    whole = _student(images, labels[:40], settings=settings)

    class Stop(Exception):
        pass

    def stopping(record: EpochRecord) -> None:
        if record.epoch == stop:
            raise Stop

    path = tmp_path / "student.checkpoint"
    with pytest.raises(Stop):
        _student(images, labels[:40], settings=settings, checkpoint=path, on_epoch=stopping)
    seen: list[EpochRecord] = []
    resumed = _student(images, labels[:40], settings=settings, checkpoint=path, on_epoch=seen.append)
    assert [record.epoch for record in seen] == list(range(stop + 1, 5))
    assert resumed.history == whole.history
    assert np.array_equal(resumed.predict_proba(images), whole.predict_proba(images))
    assert not path.exists()


def test_another_runs_checkpoint_is_refused(stripes: MakeStripes, tmp_path: Path) -> None:
    images, labels = stripes(60)
    path = tmp_path / "student.checkpoint"

    def stop(record: EpochRecord) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _student(images, labels[:20], checkpoint=path, on_epoch=stop)
    with pytest.raises(InputError, match="another seed"):
        _student(images, labels[:20], checkpoint=path, seed=1)
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(IntegrityError, match="checkpoint"):
        _student(images, labels[:20], checkpoint=path)


def test_a_supervised_student_has_no_generator(stripes: MakeStripes, tmp_path: Path) -> None:
    images, labels = stripes(60)
    student = _student(images, labels[:30], settings=replace(QUICK, name="supervised"))
    student.save(tmp_path / "student.pt")
    assert Student.load(tmp_path / "student.pt").generate(2) is None


def test_damaged_files_are_refused(stripes: MakeStripes, tmp_path: Path) -> None:
    images, labels = stripes(60)
    path = tmp_path / "student.pt"
    _student(images, labels[:30]).save(path)
    content = torch.load(path, weights_only=True)
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    with pytest.raises(IntegrityError, match=r"student\.pt"):
        Student.load(path)
    del content["weights"]["discriminator1"]
    torch.save(content, path)
    with pytest.raises(IntegrityError, match="do not fit"):
        Student.load(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": np.zeros(0, np.int64), "labelled_index": np.zeros(0, np.int64)}, "0 labels"),
        ({"labelled_index": np.array([0, 60])}, "0 to 59"),
        ({"labelled_index": np.array([-1, 0])}, "-1"),
        ({"labelled_index": np.array([0.0, 1.0])}, "float64"),
        ({"labels": np.array([0, 4])}, "0 to 3"),
        ({"labels": np.array([0]), "labelled_index": np.array([0, 1])}, r"\(2,\)"),
        ({"device": "tpu"}, "auto, cpu"),
    ],
)
def test_bad_input_is_named(stripes: MakeStripes, change: dict[str, object], message: str) -> None:
    images, labels = stripes(60)
    with pytest.raises(InputError, match=message):
        _student(images, **({"labels": labels[:2]} | change))  # type: ignore[arg-type]
