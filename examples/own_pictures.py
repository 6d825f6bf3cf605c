"""A data set of torchvision's through the adapter: made-up pictures here, MNIST goes in the same way."""

from typing import Any

from torchvision.datasets import FakeData

from pate_fed import simulate
from pate_fed.data import from_torchvision


def load() -> dict[str, Any]:
    """Private and public pictures as arrays, with their classes; every call gives the same."""
    private = FakeData(400, image_size=(3, 16, 16), num_classes=3)
    public = FakeData(100, image_size=(3, 16, 16), num_classes=3, random_offset=400)
    return from_torchvision(private, public)


QUICK = {"teacher": {"name": "hog-linear"}, "student": {"name": "encoder-head"}}

if __name__ == "__main__":
    study = {"parties": {"num_clients": 20}, "privacy": {"allow_weak": True}, **QUICK}
    print(simulate(study, dataset=load))
