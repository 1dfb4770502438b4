"""What the routes work with: the table, the pictures, and the threads that work is done in."""

from __future__ import annotations

import contextlib
import logging
import re
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
from starlette.exceptions import HTTPException

from hashcade._kernels import usable_cores
from hashcade.errors import ClusterError, ConfigError, CorruptIndexError, DataError, StorageError
from hashcade.index import Cancel, Encoded
from hashcade.results import Item
from hashcade.serve.images import Pictures, from_catalog, from_path
from hashcade.serve.metrics import Metrics
from hashcade.serve.settings import ServeSettings
from hashcade.serve.workers import Workers
from hashcade.store import MODEL_DIR, BusyError, DurableIndex, Label, ReadOnlyError, State
from hashcade.table import HashTable
from hashcade.warmup import load_search_kernels

if TYPE_CHECKING:
    from hashcade.learn import Hasher
    from hashcade.serve.published import PublishedTable

log = logging.getLogger("hashcade.serve")
Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class _Rest:
    """What is served along with an index."""

    hasher: Hasher | None
    fingerprint: str | None
    pictures: Pictures | None


class Snapshot(NamedTuple):
    """What a request works with from beginning to end: nothing in it changes."""

    table: HashTable
    durable: DurableIndex | PublishedTable
    epoch: int
    pictures: Pictures | None

    def id_of(self, text: str) -> int | str:
        """An id that stands in an address: as the ids of the table are, or 422."""
        if self.table.catalog.id_kind == "str":
            return text
        if not re.fullmatch("[0-9]+", text) or int(text) >= 2**63:
            raise HTTPException(422, "the id must be a whole number below 2**63, in digits")
        return int(text)

    def item(self, text: str) -> Item:
        """The item with an id that stands in an address, or 404."""
        try:
            return self.table[self.id_of(text)]
        except KeyError as error:
            raise HTTPException(404, str(error.args[0])) from None

    def brief(
        self, item: Any, label: Label | None, name: str | None, payload: Any
    ) -> dict[str, Any]:
        """An item for a list, which says whether there is a picture of it."""
        picture = self.pictures is not None and item in self.pictures
        return {"id": item, "label": label, "name": name, "payload": payload, "picture": picture}

    def briefs(self, numbers: Ids, codes: Ids | None) -> list[dict[str, Any]]:
        """Items for a list, with labels by their codes."""
        catalog = self.table.catalog
        columns = (
            catalog.ids_of(numbers).tolist(),
            [None] * len(numbers) if codes is None else catalog.labels(codes).tolist(),
            catalog.names_of(numbers),
            catalog.payload_of(numbers),
        )
        return [self.brief(*row) for row in zip(*columns, strict=True)]

    def bucket_briefs(self, bucket_id: int, **part: int) -> list[dict[str, Any]]:
        """Some items of a bucket, for a list."""
        return self.briefs(*self.table.index.bucket(bucket_id, **part))


class Service:
    """A running service. Made by :func:`create_app`; closed when the application stops."""

    def __init__(self, settings: ServeSettings) -> None:
        self.settings = settings
        self.metrics = Metrics()
        n_threads = settings.threads or usable_cores()
        self.search_pool = Workers(n_threads, "hashcade-search")
        self.large_pool = Workers(n_threads, "hashcade-large")  # searches that take long
        self.parse_pool = Workers(1, "hashcade-parse")
        self.slow_pool = Workers(1, "hashcade-encode")  # torch, Pillow: one at a time
        self.cancels: set[Cancel] = set()  # of the work that is done, to stop it
        self.short_work_after = 0.0  # time.monotonic() from which the event loop may search itself
        self.stopping = False
        self._ends_at: float | None = None
        # As long as a state is published and no longer: it keeps the log of SQLite from shrinking.
        self._snapshots: WeakKeyDictionary[State, tuple[_Rest, Snapshot]] = WeakKeyDictionary()
        load_search_kernels()  # now, and not when the first query comes
        self.durable, self._rest = self._open()
        gauge = self.metrics.gauge
        gauge("hashcade_items", "Items in the table", lambda: len(self.durable.index))
        gauge("hashcade_unsaved_changes", "Changes in the log", lambda: self.durable.unsaved)
        gauge("hashcade_index_saves", "Times the index was saved", lambda: self.durable.n_folds)
        failed = "Times the index could not be saved"
        gauge("hashcade_index_saves_failed", failed, lambda: self.durable.n_failed_folds)
        failing = "1 while the index cannot be saved, else 0"
        gauge("hashcade_saves_failing", failing, lambda: self.durable.save_failure is not None)
        refused = "1 while no changes are taken, else 0"
        gauge("hashcade_writes_failing", refused, lambda: self.durable.failure is not None)

    def _open(self) -> tuple[DurableIndex | PublishedTable, _Rest]:
        settings = self.settings
        if settings.in_cluster:
            from hashcade.serve.published import PublishedTable

            source = settings.pictures and from_path(settings.pictures)
            pictures = source and Pictures(source, max_pixels=settings.max_pixels)
            return PublishedTable(settings, self.metrics), _Rest(None, None, pictures or None)
        durable = DurableIndex(
            Path(settings.table), read_only=settings.read_only,
            fold_bytes=settings.fold_bytes, fold_seconds=settings.fold_seconds,
        )  # fmt: skip
        durable.on_commit = self.metrics.committed
        try:
            return durable, self._open_rest(durable, durable.state)
        except BaseException:
            durable.close()
            raise

    def _open_rest(self, durable: DurableIndex, state: State, before: _Rest | None = None) -> _Rest:
        """Open model and pictures. The model of ``before`` is taken if it is still the same."""
        if self.settings.pictures is None:
            source = from_catalog(state.catalog, lambda: durable.state.catalog)
        else:
            source = from_path(self.settings.pictures)
        pictures = source and Pictures(source, max_pixels=self.settings.max_pixels)
        path = durable.path / MODEL_DIR
        if not self.settings.use_model or not path.is_dir():
            return _Rest(None, None, pictures)
        from hashcade.learn import Hasher, model_fingerprint

        fingerprint = model_fingerprint(path)
        if before is not None and before.fingerprint == fingerprint:
            return _Rest(before.hasher, fingerprint, pictures)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # said below, in the log
            hasher = Hasher.load(path)
        if hasher.shape_ != state.index.shape:
            raise ConfigError(f"{path} has {hasher.shape_}, the index has {state.index.shape}")
        # A first call finds out what the vectors look like, and pays for what first calls pay.
        config = hasher.config_
        item = np.zeros((1, *config.item_shape), np.uint8 if config.takes_images else np.float32)
        made, dim = hasher.encode(item).vectors.shape[1], state.index.dim
        if made != dim:
            raise ConfigError(f"{path} makes vectors of dim {made}, the index has dim {dim}")
        features = hasher.image_features
        if features is not None and features.missing:
            log.warning("images cannot be taken: %s", features.missing)
        elif features is not None:
            hasher.encode(np.zeros((1, *features.image_size, 3), np.uint8))
        return _Rest(hasher, fingerprint, pictures)

    def now(self) -> Snapshot:
        """The table as it is now. Take it once per request."""
        durable, served = self.durable, self._rest
        if not isinstance(durable, DurableIndex):  # model and index of one generation
            return Snapshot(durable.table, durable, durable.epoch, served.pictures)
        epoch, state = durable.epoch, durable.state
        rest, snapshot = self._snapshots.get(state, (None, None))
        if snapshot is None or rest is not served or snapshot.epoch != epoch:
            table = HashTable.from_parts(served.hasher, state.index, state.catalog)
            snapshot = Snapshot(table, durable, epoch, served.pictures)
            self._snapshots[state] = served, snapshot
        return snapshot

    def end_within(self, seconds: float) -> None:
        """Let :meth:`close` end in time, from now on, whatever runs."""
        self._ends_at = time.monotonic() + seconds

    def stop_work(self) -> None:
        """Stop searches and encoding, and begin no more."""
        self.stopping = True
        for cancel in tuple(self.cancels):
            cancel.set()

    def close(self) -> None:
        """Stop searches, commit the changes that wait, save if there is time, release the table."""
        self.stop_work()
        self.parse_pool.close()
        self.slow_pool.close()
        self.search_pool.close()
        self.large_pool.close()
        left = None if self._ends_at is None else max(self._ends_at - time.monotonic(), 0.1)
        self.durable.close(left)

    def encode_item(self, item_id: str, n_probe: int) -> tuple[Snapshot, Encoded]:
        """An item of the table as a query, with scores if the model can be asked about it."""
        now = self.now()
        item = now.item(item_id)
        vectors, buckets = item.vector[None], np.asarray(item.bucket_ids, dtype=np.int64)[None]
        hasher = now.table.hasher
        encoded: Encoded | None = None
        if hasher is not None and hasher.config_.vectors_are_items:
            encoded = hasher.encode(vectors, n_probe=n_probe)
        elif hasher is not None and hasher.image_size is not None and now.pictures is not None:
            # The picture is gone or damaged, or the network for it is not installed: the item is.
            with contextlib.suppress(DataError, HTTPException):
                pixels = now.pictures.pixels(item.id, self.image_size(now))
                if pixels is not None:
                    encoded = hasher.encode(pixels[None], n_probe=n_probe)
        scores, by_path, ranked, all_ranked = None, False, None, False
        if encoded is not None:
            scores, by_path, ranked = encoded.scores, encoded.by_path, encoded.ranked
        elif hasher is not None:
            ranked = hasher.rank(vectors, n_probe)
        if hasher is not None and ranked is not None:  # it looks first where it lies
            all_ranked = ranked.size == hasher.codebook_.size
            codes, own = ranked.reshape(-1, hasher.shape_.sparsity), set(item.bucket_ids)
            others = [code for code in codes if set(code.tolist()) != own]
            ranked = np.hstack([buckets, *(code[None] for code in others)])
        return now, Encoded(vectors, buckets, scores, by_path, ranked, all_ranked)

    @staticmethod
    def image_size(now: Snapshot) -> tuple[int, int]:
        """Height and width of the images that the model takes; 409 if it takes none."""
        hasher = now.table.hasher
        if hasher is None:
            raise HTTPException(409, "there is no model: images cannot be encoded")
        if hasher.image_size is None:
            size = hasher.config_.item_shape[0]
            raise HTTPException(409, f"the model takes embeddings of size {size}, not images")
        if hasher.image_features is not None and hasher.image_features.missing:
            raise HTTPException(409, f"images cannot be taken: {hasher.image_features.missing}")
        return hasher.image_size

    def reload(self) -> bool:
        """Take over what stands at the path of the table now; pictures are read again.

        False if index and model are those that are served. Runs in the slow thread: nothing is
        encoded meanwhile, everything else continues.
        """
        old, before = self.durable, self._rest
        if not isinstance(old, DurableIndex):
            return old.cluster.refresh()
        if Path(self.settings.table).resolve() == old.path:
            opened: list[_Rest] = []
            if old.reload(lambda state: opened.append(self._open_rest(old, state, before))):
                self._rest = opened[0]
                return True
            self._rest = self._open_rest(old, old.state, before)
            changed = self._rest.hasher is not before.hasher
            old.epoch += changed  # what the model before it encoded is not to be added any more
            return changed
        self.durable, self._rest = self._open()  # another table was linked to the path
        old.close()  # its changes are saved where they were made
        return True


@contextlib.contextmanager
def errors_as_answers() -> Iterator[None]:
    """Turn what the caller did wrong, or what is wrong here, into a status."""
    try:
        yield
    except (ValueError, DataError) as error:
        raise HTTPException(422, str(error)) from None
    except ReadOnlyError as error:
        raise HTTPException(403, str(error)) from None
    except BusyError as error:
        raise HTTPException(429, str(error), {"Retry-After": "1"}) from None
    except CorruptIndexError as error:
        log.error("the index is damaged: %s", error)
        raise HTTPException(503, "the index is damaged; see the log") from None
    except ClusterError as error:  # addresses of its servers are not for clients
        log.error("answered with 503: %s", error)
        raise HTTPException(503, "the cluster cannot answer now; see the log") from None
    except StorageError as error:
        log.error("answered with 503: %s", error)
        raise HTTPException(503, without_paths(str(error))) from None


def without_paths(text: str) -> str:
    """A message without the directories of this machine: they are not for clients."""
    return re.sub(r"(?<![\w.])/(?:[^\s/:;,'\"]+/)+(?=[^\s/:;,'\"])", "", text)
