"""hashcade for ann-benchmarks: to be put into ``ann_benchmarks/algorithms/hashcade/``.

The benchmark has no labels, so groups of near items stand in for classes: k-means gives each item
a group, and the table learns to tell the groups apart. With labels the table is what it was made
for, see the experiments.
"""

import numpy as np

from hashcade import Hasher, HashIndex

from ..base.module import BaseANN


class Hashcade(BaseANN):
    def __init__(self, metric, width, depth, n_groups, sparsity):
        if metric not in ("euclidean", "angular"):
            raise NotImplementedError(f"metric={metric}: euclidean and angular are supported")
        self._metric = metric
        self._settings = {"width": width, "depth": depth, "sparsity": sparsity}
        self._n_groups = n_groups
        self._n_probe = 1
        self.name = f"hashcade(w={width}, k={depth}, groups={n_groups}, s={sparsity})"

    def fit(self, X):
        from sklearn.cluster import MiniBatchKMeans

        X = self._prepared(X)
        groups = MiniBatchKMeans(self._n_groups, n_init=1, random_state=0).fit_predict(X)
        self._hasher = Hasher(**self._settings, verbose=False).fit(X, groups)
        encoded = self._hasher.encode(X)
        self._index = HashIndex.build(encoded.bucket_ids, X, shape=self._hasher.shape_)

    def set_query_arguments(self, n_probe):
        self._n_probe = n_probe

    def query(self, v, n):
        return self._search(v[None], n, threads=1)[0]

    def batch_query(self, X, n):
        self._results = self._search(X, n, threads=None)

    def get_batch_results(self):
        return self._results

    def _search(self, X, n, threads):
        X = self._prepared(X)
        where = self._hasher.encode(X, n_probe=self._n_probe).where_to_look(self._n_probe)
        return self._index.search(X, n_neighbors=n, threads=threads, **where).ids

    def _prepared(self, X):
        X = np.asarray(X, dtype=np.float32)
        if self._metric == "angular":  # on the unit sphere the order by angle is that by distance
            X = X / np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1e-12)
        return X

    def __str__(self):
        return f"{self.name}, n_probe={self._n_probe}"
