"""Light teachers and students: their features, their closed forms against slow versions, their files."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as searched
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays

from pate_fed.errors import InputError, IntegrityError
from pate_fed.learning import StudentSettings, TeacherSettings
from pate_fed.learning.inputs import to_tensor
from pate_fed.learning.networks import encoder as features
from pate_fed.learning.networks import linear as light
from pate_fed.learning.networks.encoder import (
    Encoder,
    encoder_for,
    fit_encoder,
    histogram_size,
    oriented_histograms,
)
from pate_fed.learning.networks.heads import fit_ridge, gaussian_kernel, vote_with_heads
from pate_fed.learning.networks.linear import deformed_copies, fit_head_student, moved_copies
from pate_fed.learning.students.calibration import calibrate
from pate_fed.learning.students.label_graph import Graph, held_out_scores
from pate_fed.learning.students.student import Student
from pate_fed.learning.students.train import train_student
from pate_fed.learning.teachers.network import Teacher, train_teacher

MakeStripes = Callable[..., tuple[NDArray[np.uint8], NDArray[np.int64]]]


@pytest.mark.parametrize("shape", [(28, 28, 1), (32, 32, 3), (8, 8, 1), (11, 14, 3)])
def test_histograms_have_the_size_they_say(shape: tuple[int, int, int]) -> None:
    rows, columns, channels = shape
    for cell in (3, 5):
        found = oriented_histograms(torch.rand(3, channels, rows, columns), cell)
        assert found.shape == (3, histogram_size(shape, cell))
        assert bool((found >= 0).all()) and float(found.max()) <= 0.3 + 1e-6


def test_histograms_see_the_angle_of_an_edge_and_not_its_brightness() -> None:
    ramp = torch.linspace(0.1, 0.9, 12).square()  # of its square root the slope is the same everywhere
    across, down = ramp.expand(12, 12)[None, None], ramp[:, None].expand(12, 12)[None, None]
    first, second = (
        oriented_histograms(each, 3).view(4, 6, 3, 3).mean(dim=(0, 2, 3)) for each in (across, down)
    )
    assert int(first.argmax()) == 0  # the gradient points along 0°
    assert int(second.argmax()) == 3  # of six orientations, 30° apart
    strong = oriented_histograms(across * 1.0, 3), oriented_histograms(across * 0.9, 3)
    assert torch.allclose(*strong, atol=0.05)


@pytest.mark.parametrize(("n", "p"), [(12, 5), (6, 20)])
def test_the_ridge_and_what_it_leaves_out_are_the_plain_ones(n: int, p: int) -> None:
    generator = torch.Generator().manual_seed(n)
    x = torch.randn(n, p, generator=generator, dtype=torch.float64)
    y = torch.randn(n, 3, generator=generator, dtype=torch.float64)
    found = fit_ridge(x, y, strengths=(0.3,))

    def plain(keep: list[int], at: torch.Tensor) -> torch.Tensor:
        # An unpenalised constant: its column is centred away, in the plain way by a huge weight.
        ones = torch.cat([x[keep], 1e6 * torch.ones(len(keep), 1, dtype=x.dtype)], dim=1)
        gram = ones.T @ ones + 0.3 * torch.eye(p + 1, dtype=x.dtype)
        weights = torch.linalg.solve(gram, ones.T @ y[keep])
        return torch.cat([at, 1e6 * torch.ones(len(at), 1, dtype=x.dtype)], dim=1) @ weights

    everyone = list(range(n))
    assert torch.allclose(x @ found.weights + found.bias, plain(everyone, x), atol=1e-4)
    slow = torch.cat([plain([j for j in everyone if j != i], x[i : i + 1]) for i in everyone])
    assert torch.allclose(found.left_out, slow, atol=1e-4)


def test_the_strength_with_the_least_left_out_error_is_taken() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 30, generator=generator)
    y = torch.randn(40, 2, generator=generator)  # nothing to learn
    assert fit_ridge(x, y, strengths=(1e-3, 1e3)).strength == 1e3
    assert fit_ridge(x, x[:, :2], strengths=(1e-3, 1e3)).strength == 1e-3


def test_calibration_finds_the_noise_and_the_sharpness() -> None:
    rng = np.random.default_rng(0)
    scores = torch.from_numpy(rng.normal(size=(4000, 5)))
    truth = torch.distributions.Categorical(logits=4 * scores)
    torch.manual_seed(0)
    labels = truth.sample()
    random = torch.from_numpy(rng.random(4000) < 0.3)
    labels = torch.where(random, torch.from_numpy(rng.integers(0, 5, 4000)), labels)
    sharpness, share = calibrate(scores, labels)
    assert sharpness == pytest.approx(4, rel=0.25) and share == pytest.approx(0.3, abs=0.06)


def test_many_heads_at_once_vote_as_one_by_one(stripes: MakeStripes) -> None:
    images, labels = stripes(90)
    public, _ = stripes(50, seed=1)
    encoder = fit_encoder(public)
    parts = np.arange(90).reshape(3, 30)
    front = encoder.front()
    features = torch.stack([front(each) for each in moved_copies(to_tensor(images, "cpu"))])
    together = vote_with_heads(
        features[:, parts].transpose(0, 1),
        torch.from_numpy(labels)[parts],
        torch.from_numpy(encoder.transform(public)),
        num_classes=4,
    )
    for row, part in zip(together.numpy(), parts, strict=True):
        teacher = train_teacher(
            images[part],
            labels[part],
            num_classes=4,
            settings=TeacherSettings(name="encoder-head"),
            seed=0,
            encoder=encoder,
        )
        assert np.mean(teacher.predict(public) == row) > 0.97  # single precision may turn a close call


@pytest.mark.parametrize("name", ["hog-linear", "encoder-head"])
@pytest.mark.parametrize("shape", [(16, 1), (11, 3)])
def test_light_teachers_learn_and_are_kept(
    stripes: MakeStripes, tmp_path: Path, name: str, shape: tuple[int, int]
) -> None:
    size, channels = shape
    images, labels = stripes(200, size=size, channels=channels)
    fresh, truth = stripes(200, size=size, channels=channels, seed=1)
    teacher = train_teacher(
        images,
        labels,
        num_classes=4,
        settings=TeacherSettings(name=name),
        seed=0,
        encoder=fit_encoder(fresh),
    )
    voted = teacher.predict(fresh)
    assert np.mean(voted == truth) > 0.6
    teacher.save(tmp_path / "t.pt")
    assert np.array_equal(Teacher.load(tmp_path / "t.pt").predict(fresh), voted)


@pytest.mark.parametrize("name", ["hog-linear", "encoder-head"])
@pytest.mark.parametrize("count", [1, 2, 31])
def test_light_teachers_take_any_part(stripes: MakeStripes, name: str, count: int) -> None:
    images, _ = stripes(40)
    labels = np.full(count, 3, dtype=np.int64)
    settings = TeacherSettings(name=name)
    teacher = train_teacher(
        images[:count], labels, num_classes=4, settings=settings, seed=0, encoder=fit_encoder(images)
    )
    assert np.all(teacher.predict(images) == 3)  # labels all of one class


@pytest.mark.parametrize(("most", "times"), [(light.MOST_KEPT, 1), (0, 2)])
@pytest.mark.parametrize("name", ["encoder-head", "hog-linear"])
def test_teachers_share_what_is_measured_of_a_pool(
    stripes: MakeStripes, monkeypatch: pytest.MonkeyPatch, name: str, most: int, times: int
) -> None:
    images, labels = stripes(90)
    encoder, settings = fit_encoder(images), TeacherSettings(name=name)
    teachers = [
        train_teacher(images[part], labels[part], num_classes=4, settings=settings, seed=0, encoder=encoder)
        for part in (slice(30), slice(30, 36))  # the second one knows little
    ]
    expected = [teacher.predict(images[60:]) for teacher in teachers]
    true, calls = light.to_tensor, []

    def counted(*args: object) -> object:
        calls.append(args)
        return true(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(light, "to_tensor", counted)
    monkeypatch.setattr(light, "MOST_KEPT", most)
    found = [teacher.predict(images[50:]) for teacher in teachers]
    assert len(calls) == times  # of one pool once, but for those that are too large to keep
    for one, other in zip(found, expected, strict=True):
        assert np.array_equal(one[10:], other)


def test_flat_images_give_a_teacher() -> None:
    images = np.zeros((5, 8, 8, 1), dtype=np.uint8)
    for name in ("hog-linear", "encoder-head"):
        teacher = train_teacher(
            images,
            np.array([1, 1, 0, 1, 1]),
            num_classes=2,
            settings=TeacherSettings(name=name),
            seed=0,
            encoder=fit_encoder(images),
        )
        assert np.all(teacher.predict(images) == 1)


def test_a_teacher_without_its_encoder_is_refused(stripes: MakeStripes) -> None:
    images, labels = stripes(20)
    settings = TeacherSettings(name="encoder-head")
    with pytest.raises(InputError, match="encoder"):
        train_teacher(images, labels, num_classes=4, settings=settings, seed=0)
    with pytest.raises(InputError, match=r"\(16, 16, 1\)"):
        train_teacher(
            images,
            labels,
            num_classes=4,
            settings=settings,
            seed=0,
            encoder=fit_encoder(stripes(9, size=8)[0]),
        )


def test_an_encoder_is_kept_and_held_to_its_digest(stripes: MakeStripes, tmp_path: Path) -> None:
    images, _ = stripes(60)
    encoder = fit_encoder(images)
    encoder.save(tmp_path / "e.safetensors")
    again = Encoder.load(tmp_path / "e.safetensors", digest=encoder.digest)
    assert again.digest == encoder.digest == fit_encoder(images).digest
    assert np.array_equal(again.transform(images), encoder.transform(images))
    other = fit_encoder(images[:50])
    assert other.digest != encoder.digest
    with pytest.raises(IntegrityError, match=encoder.digest):
        Encoder.load(tmp_path / "e.safetensors", digest=other.digest)
    with pytest.raises(InputError, match="no encoder"):
        Encoder.load(tmp_path / "none.safetensors")
    data = (tmp_path / "e.safetensors").read_bytes()
    for damaged in (data[: len(data) // 2], b"nothing"):
        (tmp_path / "e.safetensors").write_bytes(damaged)
        with pytest.raises(IntegrityError, match="damaged"):
            Encoder.load(tmp_path / "e.safetensors")


def test_a_pools_encoder_is_fitted_once(stripes: MakeStripes) -> None:
    images, _ = stripes(30)
    settings = TeacherSettings(name="encoder-head")
    assert encoder_for(TeacherSettings(), images) is None
    first = encoder_for(settings, images)
    assert first is not None and first.digest == fit_encoder(images).digest
    assert encoder_for(settings, images.copy()) is first
    assert encoder_for(settings, images[:20]) is not first
    assert fit_encoder(images, dimensions=3).basis.shape[1] == 3


@searched(deadline=None, max_examples=150, derandomize=True)
@given(data=st.data())
def test_a_changed_file_is_another_encoder_or_refused(data: st.DataObject) -> None:
    """Nothing else is raised, whatever a coordinator sends; the digest tells another encoder."""
    images = np.arange(12 * 64, dtype=np.uint8).reshape(12, 8, 8, 1)
    whole = bytearray(fit_encoder(images, dimensions=2).to_bytes())
    header = 8 + int.from_bytes(whole[:8], "little")
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, header + 40))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.one_of(st.just(len(whole)), st.integers(0, len(whole))))
    digest = fit_encoder(images, dimensions=2).digest
    try:
        found = Encoder.from_bytes(bytes(whole[:cut]), digest=digest)
    except IntegrityError:
        return
    assert found.digest == digest


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("image_shape", np.array([np.inf, 8, 1])),
        ("image_shape", np.array(8)),
        ("mean", np.zeros(3, dtype=np.float16)),
        ("basis", np.zeros((2, 2), dtype=np.float64)),
    ],
)
def test_arrays_that_are_no_encoder_are_refused(name: str, array: NDArray[Any]) -> None:
    arrays = load_arrays(fit_encoder(np.arange(12 * 64, dtype=np.uint8).reshape(12, 8, 8, 1)).to_bytes())
    with pytest.raises(IntegrityError):
        Encoder.from_bytes(save_arrays({**arrays, name: array}))


def test_features_have_mean_squared_length_one(stripes: MakeStripes) -> None:
    images, _ = stripes(300)
    features = fit_encoder(images).transform(images)
    assert np.mean(np.sum(features**2, axis=1)) == pytest.approx(1, rel=1e-4)
    assert np.allclose(features.mean(axis=0), 0, atol=1e-4)


def _student(stripes: MakeStripes, *, labels: NDArray[np.int64] | None = None, count: int = 120) -> Student:
    images, truth = stripes(300)
    noisy = truth[:count].copy() if labels is None else labels
    if labels is None:
        noisy[::5] = (noisy[::5] + 1) % 4
    return train_student(
        images,
        labelled_index=np.arange(len(noisy)),
        labels=noisy,
        num_classes=4,
        settings=StudentSettings(name="encoder-head"),
        seed=0,
        test_images=images[200:],
        test_labels=truth[200:],
    )


def test_a_head_student_stands_wrong_labels_and_is_kept(stripes: MakeStripes, tmp_path: Path) -> None:
    student = _student(stripes)
    fresh, truth = stripes(300, seed=2)
    assert np.mean(student.predict(fresh) == truth) > 0.85
    (record,) = student.history
    assert record.test_accuracy is not None and record.test_accuracy > 0.8 and record.disagreements is None
    student.save(tmp_path / "s.pt")
    shares = student.predict_proba(fresh)
    assert np.allclose(shares.sum(axis=1), 1, atol=1e-5)
    assert np.array_equal(Student.load(tmp_path / "s.pt").predict_proba(fresh), shares)
    student.export(tmp_path / "s.ts")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls TorchScript old
        found = torch.jit.load(str(tmp_path / "s.ts"))(torch.from_numpy(fresh[:7]))
    assert np.allclose(found.numpy(), shares[:7], atol=1e-5)


def test_left_out_labels_calibrate_a_student(stripes: MakeStripes) -> None:
    _, truth = stripes(300)
    random = np.random.default_rng(0).integers(0, 4, 300)
    fresh, right = stripes(500, seed=2)
    shares = _student(stripes, labels=np.where(random < 2, truth, random)).predict_proba(fresh)
    accuracy = float(np.mean(shares.argmax(axis=1) == right))
    assert accuracy > 0.9
    assert abs(float(shares.max(axis=1).mean()) - accuracy) < 0.1


@pytest.mark.parametrize("labels", [[2], [2, 2, 2], [0, 1, 3]])
def test_few_labels_give_a_student(stripes: MakeStripes, labels: list[int]) -> None:
    student = _student(stripes, labels=np.array(labels))
    fresh, _ = stripes(50, seed=2)
    assert set(student.predict(fresh)) <= set(labels)  # a class without a label is not learnt


def test_more_labels_than_centres(stripes: MakeStripes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(light, "MOST_CENTRES", 60)
    fresh, truth = stripes(200, seed=2)
    assert np.mean(_student(stripes).predict(fresh) == truth) > 0.8


def test_a_graph_joins_neighbours_both_ways_and_is_normalised() -> None:
    features = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    normed = Graph(features, neighbours=4)._normed.toarray()
    slow = np.zeros((40, 40))
    for one in range(40):
        gaps = ((features[one] - features) ** 2).sum(axis=1)
        near = np.argsort(gaps)[1:5]
        slow[one, near] = np.exp(-gaps[near] / gaps[near].max())
    slow = slow + slow.T
    degree = slow.sum(axis=1)
    assert np.allclose(normed, slow / np.sqrt(np.outer(degree, degree)), atol=1e-5)


def test_a_graph_measures_to_the_nearest_copy() -> None:
    rng = np.random.default_rng(3)
    features, copy = rng.normal(size=(2, 40, 3)).astype(np.float32)
    normed = Graph(features, neighbours=4, copies=[copy])._normed.toarray()
    slow = np.zeros((40, 40))
    for one in range(40):
        gaps = np.minimum(((features[one] - features) ** 2).sum(1), ((features[one] - copy) ** 2).sum(1))
        gaps[one] = np.inf
        near = np.argsort(gaps)[:4]
        slow[one, near] = np.exp(-gaps[near] / gaps[near].max())
    slow = slow + slow.T
    degree = slow.sum(axis=1)
    assert np.allclose(normed, slow / np.sqrt(np.outer(degree, degree)), atol=1e-5)


def test_deformed_copies_move_turn_slant_and_grow() -> None:
    image = torch.zeros(1, 1, 28, 28)
    image[0, 0, 14, 6:22] = 1.0  # a line across, a little below the middle
    rows, columns = torch.meshgrid(torch.arange(28.0), torch.arange(28.0), indexing="ij")
    found = []
    for copy in deformed_copies(image):
        assert copy.shape == image.shape
        ink = copy / copy.sum()
        found.append([float((ink * rows).sum()), float((ink * columns).sum()), float(copy.sum())])
    (right, left, down, up), turned = found[:4], found[4:]
    middle = [14.0, 13.5]
    assert np.allclose([right[:2], left[:2]], [[14, 12.5], [14, 14.5]], atol=1e-4)
    assert np.allclose([down[:2], up[:2]], [[13, 13.5], [15, 13.5]], atol=1e-4)
    assert np.allclose([each[:2] for each in turned[:4]], [middle] * 4, atol=0.2)  # about the middle
    assert len(turned) == 6 and turned[4][2] < image.sum() < turned[5][2]


def test_labels_spread_as_the_closed_form_says() -> None:
    features = np.random.default_rng(1).normal(size=(30, 2)).astype(np.float32)
    graph = Graph(features, neighbours=5)
    index, labels = np.array([0, 7, 9]), np.array([1, 0, 1])
    found = graph.spread(index, labels, classes=2, alpha=0.5)
    start = np.zeros((30, 2))
    start[[0, 9], 1], start[7, 0] = 0.5, 1.0
    closed = 0.5 * np.linalg.solve(np.eye(30) - 0.5 * graph._normed.toarray(), start)
    assert np.allclose(found, closed, atol=1e-9)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_graph_of_few_inputs_works(count: int) -> None:
    graph = Graph(np.zeros((count, 3), dtype=np.float32))
    found = graph.spread(np.array([0]), np.array([1]), classes=2, alpha=0.9)
    assert found.shape == (count, 2) and np.isfinite(found).all() and found[0, 1] > 0


def test_held_out_scores_do_not_see_their_own_label() -> None:
    rng = np.random.default_rng(2)
    features = rng.normal(size=(60, 2)).astype(np.float32)
    graph, index, labels = Graph(features), np.arange(20), rng.integers(0, 3, 20)
    found = held_out_scores(graph, index, labels, classes=3, alpha=0.9, seed=4)
    fold = np.random.default_rng(4).permutation(20) % 5
    turned = labels.copy()
    turned[fold == 2] = (turned[fold == 2] + 1) % 3
    again = held_out_scores(graph, index, turned, classes=3, alpha=0.9, seed=4)
    assert np.allclose(found[fold == 2], again[fold == 2])


def test_few_labels_are_spread_over_all_images(stripes: MakeStripes) -> None:
    """Four labels a class and many images: the graph must make up for what the labels lack."""
    images, truth = stripes(800)
    some = np.concatenate([np.flatnonzero(truth == each)[:4] for each in range(4)])
    fitted = fit_head_student(
        to_tensor(images, "cpu"), some, truth[some], num_classes=4, encoder=fit_encoder(images), seed=0
    )
    assert fitted.alpha > 0
    fresh, answers = stripes(400, seed=5)
    found = fitted.model(to_tensor(fresh, "cpu")).argmax(dim=1).numpy()
    assert np.mean(found == answers) > 0.9


def test_contradicted_labels_are_not_spread(stripes: MakeStripes) -> None:
    """With a tenth of few labels wrong, the head learns what the neighbours say."""
    images, truth = stripes(800)
    some = np.concatenate([np.flatnonzero(truth == each)[:10] for each in range(4)])
    noisy = truth[some].copy()
    noisy[::10] = (noisy[::10] + 2) % 4
    fitted = fit_head_student(
        to_tensor(images, "cpu"), some, noisy, num_classes=4, encoder=fit_encoder(images), seed=0
    )
    assert fitted.alpha > 0
    found = fitted.model(to_tensor(images[some[::10]], "cpu")).argmax(dim=1).numpy()
    assert np.array_equal(found, truth[some[::10]])


def test_the_kernel_is_the_plain_one() -> None:
    a, b = torch.randn(4, 3), torch.randn(5, 3)
    plain = [[np.exp(-float(((x - y) ** 2).sum())) for y in b] for x in a]
    assert np.allclose(gaussian_kernel(a, b).numpy(), plain, atol=1e-5)


def test_leading_directions_are_the_plain_ones() -> None:
    generator = torch.Generator().manual_seed(0)
    turn = torch.linalg.qr(torch.randn(30, 30, generator=generator, dtype=torch.float64)).Q
    rows = torch.randn(400, 30, generator=generator, dtype=torch.float64) * 0.7 ** torch.arange(30) @ turn
    rows = rows - rows.mean(dim=0)
    variance, vectors = torch.linalg.eigh(rows.T @ rows)
    expected = vectors.flip(1)[:, :6] * (variance.flip(0)[:6] / variance[-1]) ** -0.1
    found = features._leading(rows, 6)
    assert torch.allclose(found.abs(), expected.abs(), atol=1e-6)
    assert torch.equal(features._leading(rows[:, :4], 6)[:, 4:], torch.zeros(4, 2, dtype=rows.dtype))


def test_moved_copies_are_the_image_and_four_neighbours() -> None:
    pixels = torch.arange(64.0).view(1, 1, 8, 8)
    same, *moved = moved_copies(pixels)
    assert torch.equal(same, pixels) and len(moved) == 4
    assert torch.equal(moved[0][0, 0, 1:], pixels[0, 0, :-1]) and torch.equal(
        moved[0][0, 0, 0], pixels[0, 0, 0]
    )
    assert torch.equal(moved[3][0, 0, :, :-1], pixels[0, 0, :, 1:])


def test_large_images_are_made_smaller_first() -> None:
    images = np.random.default_rng(0).integers(0, 256, (12, 96, 64, 1), dtype=np.uint8)
    small = images.reshape(12, 48, 2, 32, 2, 1).mean(axis=(2, 4))
    assert features.reduction((96, 64, 1)) == 2 and features.reduction((28, 28, 1)) == 1
    assert len(fit_encoder(images).mean) == sum(features.block_sizes((48, 32, 1)))
    found = fit_encoder(images).transform(images)
    near = fit_encoder(small.round().astype(np.uint8)).transform(small.round().astype(np.uint8))
    assert np.abs(found).mean() == pytest.approx(np.abs(near).mean(), rel=0.05)
