"""Networks on small images."""

from __future__ import annotations

import importlib

import pytest
import torch

from pate_fed.errors import InputError
from pate_fed.kinds.label_dp.clusters import NETWORKS, build_network


@pytest.fixture(autouse=True, scope="module")
def models() -> None:
    """Torch 2.6 cannot import them where tensors have no values. A worker without these tests need not."""
    importlib.import_module("torchvision.models")


@pytest.mark.parametrize("name", [name for name in NETWORKS if name != "light"])
@pytest.mark.parametrize("shape", [(32, 32, 3), (28, 28, 1)])
def test_networks_take_small_images(name: str, shape: tuple[int, int, int]) -> None:
    """Of any weights."""
    with torch.device("meta"):
        network = build_network(name, shape, 7).eval()
    network.to_empty(device="cpu")
    for value in network.state_dict().values():
        value.fill_(1)
    x = torch.rand(2, shape[2], *shape[:2], generator=torch.Generator().manual_seed(0))
    network.preprocess.fit(x)
    with torch.no_grad():
        assert network(x).shape == (2, 7)
        assert network.logits(network.preprocess(x)).shape == (2, 7)


def test_the_papers_network_is_of_its_size() -> None:
    def millions(name: str) -> float:
        with torch.device("meta"):  # sizes alone
            return sum(p.numel() for p in build_network(name, (32, 32, 3), 10).parameters()) / 1e6

    assert millions("resnet-18") == pytest.approx(11.17, abs=0.02)
    with pytest.raises(InputError, match="network is 'vgg'"):
        build_network("vgg", (32, 32, 3), 10)
    with pytest.raises(InputError, match="16×16"):
        build_network("resnet-18", (8, 8, 3), 10)
    with pytest.raises(InputError, match="encoder"):
        build_network("light", (32, 32, 3), 10)
