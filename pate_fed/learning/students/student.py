"""A trained student: classes and probabilities for images, images from its generator, and its file."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pate_fed.errors import InputError, IntegrityError
from pate_fed.learning import tensors
from pate_fed.learning.networks.classifiers import (
    Classifier,
    Shape,
    build_discriminator,
    build_encoder_discriminator,
    build_encoder_network,
    own_network,
)
from pate_fed.learning.networks.encoder import HistogramFeatures
from pate_fed.learning.networks.generators import DenseGenerator, FeatureGenerator, Generator
from pate_fed.learning.networks.heads import empty_head_classifier
from pate_fed.learning.settings import CLOSED_FORM, UNNAMED, EpochRecord, StudentSettings
from pate_fed.learning.students.export import write_onnx, write_torchscript
from pate_fed.learning.students.losses import sharpened, sharpness_for
from pate_fed.structure import PART_NAME

PREDICT_BATCH = 200


class Student:
    """One or two discriminators that predict together, and the generator they were trained with, if any.

    Probabilities are the mean of the networks', to the power of `sharpness`, which `calibrate` sets.
    `class_names` are for people, one a class where they are known; files carry them.
    `history` holds one record an epoch; `removed` which labels PATE++ took off after its first stage, bool
    (m,), while the student is fresh from such training.
    """

    kind: ClassVar[str] = "network"

    def __init__(
        self,
        networks: list[Classifier],
        generator: Generator | None,
        *,
        settings: StudentSettings,
        image_shape: tuple[int, int, int],
        num_classes: int,
        device: str = "cpu",
        history: list[EpochRecord] | None = None,
    ) -> None:
        self.settings, self.image_shape, self.num_classes = settings, image_shape, num_classes
        self.history: list[EpochRecord] = [] if history is None else history
        self.removed: NDArray[np.bool_] | None = None
        self.sharpness = 1.0
        self.class_names: tuple[str, ...] = ()
        self._device = device
        self._networks = [network.to(device) for network in networks]
        self._generator = generator.to(device) if generator is not None else None

    def predict_proba(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        """The mean of the discriminators' class probabilities, calibrated.

        Shapes: uint8 (n, H, W, C) to float32 (n, classes), rows sum to 1.

        Raises:
            InputError: the images do not fit the model.
        """
        found = [np.empty((0, self.num_classes), dtype=np.float32)]
        for logits in self._logits(images):
            found.append(sharpened(logits.softmax(dim=2).mean(dim=0), self.sharpness).cpu().numpy())
        return np.concatenate(found)

    def _logits(self, images: NDArray[np.uint8]) -> Iterator[Tensor]:
        """Each batch's logits, (networks, batch, K)."""
        tensors.check_images(images, self.image_shape)
        for network in self._networks:
            network.eval()
        for batch in tensors.tensor_batches(images, PREDICT_BATCH, self._device):
            with torch.inference_mode():
                inputs = self._networks[0].preprocess(batch)  # the same for all of them
                yield torch.stack([network.logits(inputs) for network in self._networks])

    def calibrate(self, images: NDArray[np.uint8], reference: NDArray[np.float32]) -> None:
        """Scale confidence so that its mean is the accuracy that a calibrated classifier expects.

        `reference` are that classifier's probabilities of the images, none of which had a label. What is
        predicted stays. Where both know different things the student is more often right than the other can
        see, so it errs on the side of doubt. Shapes: uint8 (n, H, W, C), n ≥ 1, and (n, K).
        """
        self.sharpness = 1.0
        shares = self.predict_proba(images)
        expected = reference[np.arange(len(images)), shares.argmax(axis=1)].mean()
        self.sharpness = sharpness_for(torch.from_numpy(shares), confidence=float(expected))

    def predict(self, images: NDArray[np.uint8]) -> NDArray[np.int64]:
        """The most probable class of each image; int64 (n,)."""
        return np.asarray(self.predict_proba(images).argmax(axis=1), dtype=np.int64)

    def predict_each(self, images: NDArray[np.uint8]) -> NDArray[np.int64]:
        """The class that each network alone finds most probable; int64 (networks, n), n ≥ 1."""
        parts = [logits.argmax(dim=2).cpu().numpy() for logits in self._logits(images)]
        return np.concatenate(parts, axis=1)

    def generate(self, count: int, *, seed: int = 0) -> NDArray[np.uint8] | None:
        """`count` images of the generator as uint8 (count, H, W, C); None for a student without one."""
        if self._generator is None:
            return None
        self._generator.eval()
        with tensors.seeded(seed, self._device), torch.inference_mode():
            drawn = self._generator.draw(count)  # (count, C, H, W) in [0, 1]
        return np.ascontiguousarray((drawn * 255).round().to(torch.uint8).permute(0, 2, 3, 1).cpu().numpy())

    def check_weights(self) -> None:
        """Hold every weight to finite numbers; PateFedError names one that is not."""
        for network in self._networks:
            tensors.check_weights(network, "student", "lower learning_rate")

    def save(self, path: Path) -> None:
        """Write settings, weights and history to `path`, whole or not at all, readable by the owner only.

        Raises:
            InputError: the folder cannot be written to.
        """
        modules: dict[str, torch.nn.Module] = {
            f"discriminator{n}": network for n, network in enumerate(self._networks, start=1)
        }
        if self._generator is not None:
            modules["generator"] = self._generator
        content = {
            **self._about,
            "class_names": list(self.class_names),
            "history": [asdict(record) for record in self.history],
            "weights": {
                part: {name: value.cpu() for name, value in module.state_dict().items()}
                for part, module in modules.items()
            },
        }
        tensors.write_model(path, "student", content)

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """All that its predictions follow from: weights by network and name, the rest as JSON."""
        about = np.frombuffer(json.dumps(self._about).encode(), dtype=np.uint8)
        found: dict[str, NDArray[Any]] = {"about": about}
        for number, network in enumerate(self._networks, start=1):
            for name, value in network.state_dict().items():
                found[f"discriminator{number}/{name}"] = value.cpu().numpy()
        return found

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, NDArray[Any]], *, where: str, device: str = "cpu") -> Student:
        """The student that `to_arrays` gave, without its generator.

        Raises:
            IntegrityError: the arrays do not fit together.
        """
        device, weights = tensors.resolve_device(device), dict[str, dict[str, Tensor]]()
        for part, _, name in (each.partition("/") for each in arrays if each != "about"):
            weights.setdefault(part, {})[name] = torch.from_numpy(arrays[f"{part}/{name}"].copy())
        try:
            about = json.loads(arrays["about"].tobytes())
        except (KeyError, ValueError, RecursionError) as error:
            raise IntegrityError(f"{where}: holds no settings of a student") from error
        with tensors.building_network(about, "student", where=where) as known:
            return cls._built(about, weights, *known, device=device)

    @property
    def _about(self) -> dict[str, Any]:
        """What every file of it says beside its weights."""
        return {
            "settings": asdict(self.settings),
            "image_shape": list(self.image_shape),
            "num_classes": self.num_classes,
            "sharpness": self.sharpness,
        }

    def export(self, path: Path) -> None:
        """Write the student as TorchScript: uint8 (n, H, W, C) to probabilities (n, K), without this package.

        Raises:
            InputError: the networks branch on their inputs, or the folder cannot be written to.
        """
        write_torchscript(
            self._networks, self.image_shape, path, sharpness=self.sharpness, class_names=self.class_names
        )

    def export_onnx(self, path: Path, *, about: Mapping[str, str] | None = None) -> None:
        """Write the student as ONNX, with what is said `about` it as metadata.

        Raises:
            InputError: the package onnx is not installed, the networks have no ONNX form or branch on their
                inputs, or the folder cannot be written to.
        """
        write_onnx(
            self._networks,
            self.image_shape,
            path,
            sharpness=self.sharpness,
            class_names=self.class_names,
            about=about,
        )

    @classmethod
    def load(cls, path: Path, device: str = "cpu", *, network: torch.nn.Module | None = None) -> Student:
        """Read what `save` wrote; no code in the file is run. `network` is a fresh one of the user's own.

        Raises:
            InputError: no such file, or a student whose code is the user's own and was not given.
            IntegrityError: the file is damaged or is no student.
        """
        content = tensors.read_model(path, "student")
        kept = content.get("settings") if network is None else None
        given = [kept.get(key) for key in ("name", "network")] if isinstance(kept, dict) else []
        name = next((each for each in given if isinstance(each, str) and PART_NAME.fullmatch(each)), None)
        if name is not None:
            raise InputError(
                f"{path}: holds the weights of {name}, code of the user's own: Student.load(path, network=…) "
                "with a fresh network of it is meant"
            )
        device = tensors.resolve_device(device)
        with tensors.building_network(content, "student", where=str(path)) as known:
            return cls._built(content, content["weights"], *known, device=device, own=network)

    @classmethod
    def _built(
        cls,
        content: dict[str, Any],
        weights: dict[str, dict[str, Tensor]],
        shape: Shape,
        classes: int,
        *,
        device: str,
        own: torch.nn.Module | None = None,
    ) -> Student:
        """From settings and weights; whatever does not fit raises something that `building_network` knows."""
        settings = StudentSettings(**content["settings"])
        generator = _empty_generator(shape, weights["generator"]) if "generator" in weights else None
        networks = [
            _empty_network(settings, shape, classes, weights[name], own=own)
            for name in weights
            if name != "generator"
        ]
        for number, network in enumerate(networks, start=1):
            network.load_state_dict(weights[f"discriminator{number}"])
        if generator is not None:
            generator.load_state_dict(weights["generator"])
        student = cls(
            networks,
            generator,
            settings=settings,
            image_shape=shape,
            num_classes=classes,
            device=device,
            history=[EpochRecord(**record) for record in content.get("history", ())],
        )
        student.sharpness = float(content["sharpness"])
        student.class_names = tuple(map(str, content.get("class_names", ())))  # a bundle has its own
        return student


def _empty_network(
    settings: StudentSettings,
    shape: Shape,
    classes: int,
    weights: dict[str, Tensor],
    *,
    own: torch.nn.Module | None,
) -> Classifier:
    """The network that `weights` are of, to be filled from them."""
    if own is not None:
        return own_network(copy.deepcopy(own), channels=shape[2])
    if settings.name in CLOSED_FORM:
        return empty_head_classifier(settings.name, shape, classes, weights)
    basis = weights.get("preprocess.basis")
    if basis is None:
        return build_discriminator(settings.chosen("network") or UNNAMED, shape, classes)
    build = build_encoder_network if settings.name == "fixmatch" else build_encoder_discriminator
    return build(HistogramFeatures(shape, basis.shape[1]), basis.shape[1], classes)


def _empty_generator(shape: Shape, weights: dict[str, Tensor]) -> Generator:
    """The generator that `weights` are of, to be filled from them."""
    decoder = weights.get("decoder")
    return DenseGenerator(shape) if decoder is None else FeatureGenerator(shape, len(decoder))
