"""A torch teacher of one's own in a study with 250 parties."""

from torch import nn

from pate_fed import simulate


def make(image_shape: tuple[int, int, int], num_classes: int) -> nn.Module:
    """A network from images (n, channels, height, width) to logits (n, num_classes)."""
    height, width, channels = image_shape
    return nn.Sequential(
        nn.Flatten(), nn.Linear(height * width * channels, 64), nn.ReLU(), nn.Linear(64, num_classes)
    )


if __name__ == "__main__":
    run = simulate({"parties": {"num_clients": 250}}, teacher=make)
    print(run)
