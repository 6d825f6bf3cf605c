"""Records from an array of 20 GB on the disk, of which a study reads what it takes, and no more.

The file is sparse here, so it takes no room. Slices of a memory map stay on the disk until they are read.
"""

import tempfile
from pathlib import Path

import numpy as np

from pate_fed import simulate

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "images.npy"
    x = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=(20_000_000, 32, 32, 1))
    shown = x[::20_000]  # every 20,000th record; nothing is read yet
    shown[:, 8:16] = np.random.default_rng(0).integers(0, 200, (len(shown), 8, 32, 1))
    shown[::2, 20:24] = 255  # another bright bar for each class
    y = np.arange(len(shown)) % 2
    data = {
        "private_images": shown[:800],
        "private_labels": y[:800],
        "public_images": shown[800:],
        "public_labels": y[800:],
    }
    print(simulate({"parties": {"num_clients": 20}}, dataset=data))
