"""A student of one's own that also learns from the public images without a label: it spreads the labels."""

import numpy as np
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from sklearn.semi_supervised import LabelSpreading

from pate_fed import simulate


class Spreading:
    """Labels spread along neighbours on principal components."""

    def fit(self, x_public: NDArray[np.float64], index: NDArray[np.int64], labels: NDArray[np.int64]) -> None:
        """Inputs (n, inputs) in [0, 1], and the labels (m,) of those at the places `index` (m,)."""
        spread = np.full(len(x_public), -1)
        spread[index] = labels
        self.components = PCA(10).fit(x_public)
        self.graph = LabelSpreading("knn", n_neighbors=5).fit(self.components.transform(x_public), spread)

    def predict(self, x: NDArray[np.float64]) -> NDArray[np.int64]:
        """The class of each input (n,)."""
        return np.asarray(self.graph.predict(self.components.transform(x)))


if __name__ == "__main__":
    run = simulate({"parties": {"num_clients": 250}}, student=Spreading())
    print(run)
