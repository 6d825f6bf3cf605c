"""All that is public about the records: their images, features, views and clusters. No label is in here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pate_fed.errors import InputError
from pate_fed.kinds.label_dp.clusters import Clusterer, build_network, cluster_means
from pate_fed.learning.networks.classifiers import Classifier
from pate_fed.learning.networks.encoder import Encoder, HistogramFeatures, fit_encoder
from pate_fed.learning.students.fixmatch import ImageViews, Views, strong_view, weak_view
from pate_fed.learning.tensors import check_images, image_shape, resolve_device, seeded, to_tensor

DIMENSIONS = 120  # of the encoder: with so many records a few more than a small hospital's part bears
WEAK, STRONG = 1, 2  # views of each input that the light network has at hand, beside the plain one
PREDICT = 500
BATCH = 1000  # images viewed at once: which view each gets rests on it

Floats = NDArray[np.float32]


class FeatureViews:
    """Features of views that were drawn once, so that a step costs no look at an image.

    Every batch takes one of the weak views (the plain one among them) or one of the strong ones, at random.
    """

    def __init__(self, plain: Tensor, weak: list[Tensor], strong: list[Tensor]) -> None:
        self.plain = plain
        self._weak, self._strong = [plain, *weak], strong

    def weak(self, index: Tensor) -> Tensor:
        """Features (m, d) of a weak view."""
        return self._weak[int(torch.randint(len(self._weak), ()))][index]

    def strong(self, index: Tensor) -> Tensor:
        """Features (m, d) of a strong view."""
        return self._strong[int(torch.randint(len(self._strong), ()))][index]


class PublicInputs:
    """The records' images, what they are shown as, and the network that looks at them.

    With `network` "light" the views are features of the public encoder, which is fitted to these very images
    without a label; else they are images. `flip` mirrors views, for photographs. `phase` opens a part of the
    work by its name and number of steps, and gives what tells that one is done.

    Raises:
        InputError: the images are none, or the device or the network is not there.
    """

    def __init__(
        self,
        images: NDArray[np.uint8],
        *,
        num_classes: int,
        network: str = "light",
        device: str = "cpu",
        seed: int = 0,
        flip: bool = False,
        log: Callable[[str], None] | None = None,
        phase: Callable[[str, int], AbstractContextManager[Callable[[], None]]] | None = None,
    ) -> None:
        check_images(images)
        if len(images) < num_classes:
            raise InputError(f"{len(images)} records for {num_classes} classes: at least one each is meant")
        self.images, self.shape, self.num_classes = images, image_shape(images), num_classes
        self.network_name, self.device, self.seed = network, resolve_device(device), seed
        self.flip, self._log = flip, log or (lambda line: None)
        self._phase = phase or (lambda name, total: nullcontext(lambda: None))
        self.encoder: Encoder = fit_encoder(images, dimensions=DIMENSIONS)
        self._front = self.encoder.preprocessing().to(self.device)
        self.linear = network == "light"
        self._views: Views | None = None
        self._features: Floats | None = None
        self._clusters: dict[tuple[int, int], tuple[Clusterer, NDArray[np.int64]]] = {}
        self._shown: dict[int, tuple[NDArray[np.uint8], Floats]] = {}
        self.network()  # an unknown one is refused at once

    def __len__(self) -> int:
        return len(self.images)

    def epochs(self, count: int) -> Iterator[int]:
        """The numbers of `count` epochs, from 1 on; each is told as done when the next one is asked for."""
        with self._phase("learning", count) as done:
            for epoch in range(1, count + 1):
                yield epoch
                done()

    @property
    def features(self) -> Floats:
        """The encoder's features of the images themselves, float32 (n, d)."""
        if self._features is None:
            self._log(f"features of {len(self)} images")
            self._features = self._transformed(self.images, lambda x: x).cpu().numpy()
        return self._features

    def network(self) -> Classifier:
        """A fresh network from torch's current random state, its front fitted to the images."""
        network = build_network(self.network_name, self.shape, self.num_classes, self.encoder)
        network = network.to(self.device)
        if not isinstance(network.preprocess, HistogramFeatures):
            some = np.unique(np.linspace(0, len(self) - 1, min(len(self), 2 * BATCH)).astype(np.int64))
            network.preprocess.fit(to_tensor(self.images[some], self.device))
        return network

    def views(self) -> Views:
        """What the network is shown, drawn from the seed of these inputs where it is drawn once."""
        if self._views is None:
            with seeded(self.seed, self.device):
                if self.linear:
                    plain = torch.from_numpy(self.features).to(self.device)
                    self._log("features of weak and strong views")
                    weak = [self._transformed(self.images, weak_view) for _ in range(WEAK)]
                    strong = [self._transformed(self.images, strong_view) for _ in range(STRONG)]
                    self._views = FeatureViews(plain, weak, strong)
                else:
                    front = self.network().preprocess
                    self._views = ImageViews(to_tensor(self.images, self.device), front, flip=self.flip)
        return self._views

    def clusters(self, clusterer: Clusterer, num_clusters: int) -> NDArray[np.int64]:
        """The cluster of each image, int64 (n,); found once for each clusterer and number.

        Raises:
            InputError: fewer clusters than classes or more than images, or a clusterer that gives none.
        """
        if num_clusters < self.num_classes:
            raise InputError(
                f"--clusters {num_clusters}: must be at least the {self.num_classes} classes, or a class has "
                "no cluster"
            )
        if num_clusters > len(self):
            raise InputError(f"--clusters {num_clusters}: must not be more than the {len(self)} records")
        key = (id(clusterer), num_clusters)  # not by its name: two may have one, as all lambdas do
        if key not in self._clusters:
            self._log(f"{num_clusters} clusters")
            name = getattr(clusterer, "__name__", repr(clusterer))
            found = np.asarray(clusterer(self, num_clusters, seed=self.seed))
            if found.shape != (len(self),) or found.dtype.kind not in "iu":
                raise InputError(f"clusterer {name} gave {found.dtype} {found.shape}: int ({len(self)},)")
            if found.min() < 0 or found.max() >= num_clusters:
                raise InputError(f"clusterer {name} gave a cluster outside 0 to {num_clusters - 1}")
            self._clusters[key] = (clusterer, found.astype(np.int64))  # kept, so that its id stays its own
        return self._clusters[key][1]

    def centres(self, clusters: NDArray[np.int64], num_clusters: int) -> Floats:
        """The mean features of each cluster, float32 (clusters, d)."""
        return cluster_means(self.features, clusters, num_clusters)

    def probabilities(
        self, networks: list[Classifier], images: NDArray[np.uint8] | None = None
    ) -> NDArray[np.float64]:
        """The networks' mean class probabilities, float64 (n, K), of these inputs or of other images."""
        asked = self.images if images is None else images
        check_images(asked, self.shape)
        found = np.empty((len(asked), self.num_classes))
        ready = torch.from_numpy(self.features_of(asked)).to(self.device) if self.linear else None
        for network in networks:
            network.eval()
        with torch.inference_mode():
            for start in range(0, len(asked), PREDICT):
                if ready is not None:
                    logits = [network.logits(ready[start : start + PREDICT]) for network in networks]
                else:
                    x = to_tensor(asked[start : start + PREDICT], self.device)
                    logits = [network(x) for network in networks]
                shares = torch.stack([each.double().softmax(dim=1) for each in logits]).mean(dim=0)
                found[start : start + PREDICT] = shares.cpu().numpy()
        return found

    def classes_at(self, network: Classifier, index: NDArray[np.int64]) -> NDArray[np.int64]:
        """The network's classes of some of these inputs, int64 (m,)."""
        with torch.inference_mode():
            if self.linear:
                logits = network.eval().logits(torch.from_numpy(self.features[index]).to(self.device))
            else:
                logits = network.eval()(to_tensor(self.images[index], self.device))
        return np.asarray(logits.argmax(dim=1).cpu().numpy(), dtype=np.int64)

    def features_of(self, images: NDArray[np.uint8]) -> Floats:
        """The encoder's features of any images, float32 (n, d); kept for images that come again."""
        if images is self.images:
            return self.features
        if id(images) not in self._shown:
            shown = self._transformed(images, lambda x: x).cpu().numpy()
            self._shown = {id(images): (images, shown)}  # the array is kept, so that its id stays its own
        return self._shown[id(images)][1]

    def _transformed(self, images: NDArray[np.uint8], view: Callable[[Tensor], Tensor]) -> Tensor:
        with torch.no_grad():
            parts = [
                self._front(view(to_tensor(images[start : start + BATCH], self.device)))
                for start in range(0, len(images), BATCH)
            ]
        return torch.cat(parts)
