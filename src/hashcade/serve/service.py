"""What the routes work with: the table, the pictures, and the threads that work is done in."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from starlette.exceptions import HTTPException

from hashcade._extras import require_extra
from hashcade.data import read_image
from hashcade.errors import ConfigError, CorruptIndexError, DataError, StorageError
from hashcade.index import Encoded, HashIndex, warmup
from hashcade.serve.images import Pictures, from_catalog, from_path
from hashcade.serve.metrics import Metrics
from hashcade.serve.settings import ServeSettings
from hashcade.store import MODEL_DIR, BusyError, DurableIndex, Label, ReadOnlyError, State
from hashcade.table import HashTable, Item

if TYPE_CHECKING:
    from hashcade.learn import Hasher

log = logging.getLogger("hashcade.serve")
T = TypeVar("T")


class Snapshot(NamedTuple):
    """What a request works with from beginning to end: nothing in it changes."""

    table: HashTable
    durable: DurableIndex
    epoch: int
    pictures: Pictures | None


@dataclass(frozen=True)
class _Served:
    """What is served along with an index."""

    hasher: Hasher | None
    fingerprint: str | None
    pictures: Pictures | None


class Service:
    """A running service. Made by :func:`create_app`; closed when the application stops."""

    def __init__(self, settings: ServeSettings) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self._search_pool = ThreadPoolExecutor(settings.n_threads, "hashcade-search")
        self._slow_pool = ThreadPoolExecutor(1, "hashcade-encode")  # torch, Pillow: one at a time
        self.durable = self._open_durable()
        try:
            self._served = self._open_rest(self.durable.path, self.durable.state)
            warmup()  # kernels are compiled now, not by the first query
        except BaseException:
            self.durable.close()
            raise
        gauges: dict[str, tuple[str, Callable[[], float]]] = {
            "items": ("Items in the table", lambda: len(self.durable.index)),
            "unsaved_changes": ("Changes in the log alone", lambda: self.durable.unsaved),
            "index_saves": ("Times the index was saved", lambda: self.durable.n_folds),
        }
        for name, (text, value) in gauges.items():
            self.metrics.gauge(f"hashcade_{name}", text, value)

    def _open_durable(self) -> DurableIndex:
        durable = DurableIndex(
            self.settings.table,
            read_only=self.settings.read_only,
            fold_bytes=self.settings.fold_bytes,
            fold_seconds=self.settings.fold_seconds,
        )
        durable.on_commit = self.metrics.committed
        return durable

    def _open_rest(self, directory: Path, state: State, before: _Served | None = None) -> _Served:
        """Open model and pictures. The model of ``before`` is taken if it is still the same."""
        source = from_catalog(state.catalog)
        if self.settings.pictures is not None:
            source = from_path(self.settings.pictures)
        pictures = None
        if source is not None:
            pictures = Pictures(source, max_pixels=self.settings.max_pixels)
        path = directory / MODEL_DIR
        if not self.settings.use_model or not path.is_dir():
            return _Served(None, None, pictures)
        require_extra("torch", "train")
        from hashcade.learn import Hasher, model_fingerprint

        fingerprint = model_fingerprint(path)
        if before is not None and before.fingerprint == fingerprint:
            return _Served(before.hasher, fingerprint, pictures)
        hasher = Hasher.load(path)
        _refuse_unfit(path, hasher, state.index)
        return _Served(hasher, fingerprint, pictures)

    def now(self) -> Snapshot:
        """The table as it is now. Take it once per request."""
        durable, served = self.durable, self._served
        epoch, state = durable.epoch, durable.state
        table = HashTable.from_parts(served.hasher, state.index, state.catalog)
        return Snapshot(table, durable, epoch, served.pictures)

    def close(self) -> None:
        """Finish what was begun, save, and release the table."""
        self._slow_pool.shutdown(cancel_futures=True)
        self._search_pool.shutdown(cancel_futures=True)
        self.durable.close()

    # -- running things ----------------------------------------------------------------------------

    async def search_thread(self, deadline: float, work: Callable[[], T]) -> T:
        """Run a search, or something as short, in a thread; 504 when it is too late."""
        return await _before(deadline, self._search_pool.submit(work))

    async def slow_thread(
        self, deadline: float, work: Callable[[], T], *, finish: bool = False
    ) -> T:
        """Run what decodes or encodes, one after the other.

        With ``finish``, for what changes something, it is waited for once it has begun.
        """
        return await _before(deadline, self._slow_pool.submit(work), finish)

    async def change(
        self, deadline: float, begin: Callable[[], Future[npt.NDArray[np.int64]]]
    ) -> npt.NDArray[np.int64]:
        """Make a change, and return when it is on disk."""
        with errors_as_answers():
            future = begin()
        return await _before(deadline, future, finish=True)

    # -- encoding: in the slow thread, as a reload, so that model and index fit together -----------

    def encode_image(self, data: bytes) -> tuple[Snapshot, Encoded]:
        """Encode an uploaded image."""
        now = self.now()
        size = self.image_size(now)
        with errors_as_answers():
            pixels = read_image(data, size=size, max_pixels=self.settings.max_pixels)
            return now, now.table.encode(pixels[None])

    def encode_items(self, items: npt.ArrayLike) -> tuple[Snapshot, Encoded]:
        """Encode embeddings."""
        now = self.now()
        hasher = now.table.hasher
        if hasher is None:
            raise HTTPException(422, "one of bucket_ids and scores must be given: no model")
        if hasher.config_.takes_images:
            raise HTTPException(422, "the model takes images: give bucket_ids or scores")
        with errors_as_answers():
            return now, now.table.encode(items)

    def encode_item(self, item_id: int) -> tuple[Snapshot, Encoded]:
        """An item of the table as a query, with scores if the model can be asked about it."""
        now = self.now()
        item = find_item(now, item_id)
        vectors, buckets = item.vector[None], np.asarray(item.bucket_ids, dtype=np.int64)[None]
        hasher = now.table.hasher
        asked: Encoded | None = None
        if hasher is not None and hasher.config_.vectors_are_items:
            asked = hasher.encode(vectors)
        elif hasher is not None and hasher.config_.takes_images and now.pictures is not None:
            with contextlib.suppress(DataError):  # the picture is gone or damaged, the item is not
                pixels = now.pictures.pixels(item_id, self.image_size(now))
                asked = None if pixels is None else hasher.encode(pixels[None])
        if asked is None:
            return now, Encoded(vectors, buckets, None, by_path=False)
        return now, Encoded(vectors, buckets, asked.scores, asked.by_path)

    @staticmethod
    def image_size(now: Snapshot) -> tuple[int, int]:
        """Height and width of the images that the model takes; 409 if it takes none."""
        hasher = now.table.hasher
        if hasher is None:
            raise HTTPException(409, "there is no model: images cannot be encoded")
        if not hasher.config_.takes_images:
            size = hasher.config_.item_shape[0]
            raise HTTPException(409, f"the model takes embeddings of size {size}, not images")
        height, width = hasher.config_.item_shape[:2]
        return height, width

    # -- a new table -------------------------------------------------------------------------------

    def reload_soon(self) -> Future[bool]:
        """Reload in the thread in which that is done."""
        return self._slow_pool.submit(self.reload)

    def reload(self) -> bool:
        """Take over what stands at the path of the table now; pictures are read again.

        False if index and model are those that are served. Runs in the slow thread: nothing is
        encoded meanwhile, everything else goes on.
        """
        old, before = self.durable, self._served
        if self.settings.table.resolve() == old.path:
            opened: list[_Served] = []
            if old.reload(lambda state: opened.append(self._open_rest(old.path, state, before))):
                self._served = opened[0]
                return True
            self._served = self._open_rest(old.path, old.state, before)
            if self._served.hasher is before.hasher:
                return False
            old.epoch += 1  # what the model before it encoded is not to be added any more
            return True
        durable = self._open_durable()  # the path leads elsewhere: another table was linked there
        try:
            served = self._open_rest(durable.path, durable.state)
        except BaseException:
            durable.close()
            raise
        self.durable, self._served = durable, served
        old.close()  # its changes are saved where they were made
        return True


# -- items -----------------------------------------------------------------------------------------


def find_item(now: Snapshot, item_id: int) -> Item:
    """An item of the table, or 404."""
    try:
        return now.table[item_id]
    except KeyError as error:
        raise HTTPException(404, str(error.args[0])) from None


def briefs(
    now: Snapshot, ids: Iterable[int], labels: Iterable[Label | None]
) -> list[dict[str, Any]]:
    """Items for a list: id, label, name, and whether there is a picture."""
    names, pictures = now.table.catalog.names, now.pictures
    return [
        {
            "id": item,
            "label": label,
            "name": names.get(item),
            "picture": pictures is not None and item in pictures,
        }
        for item, label in zip(ids, labels, strict=True)
    ]


def bucket_briefs(now: Snapshot, bucket_id: int, **part: int) -> list[dict[str, Any]]:
    """Some items of a bucket, for a list."""
    ids, codes = now.table.index.bucket(bucket_id, **part)
    labels = [None] * len(ids) if codes is None else now.table.catalog.labels(codes).tolist()
    return briefs(now, ids.tolist(), labels)


# -- errors and threads ----------------------------------------------------------------------------


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
    except StorageError as error:
        raise HTTPException(503, str(error)) from None


async def _before(deadline: float, future: Future[T], finish: bool = False) -> T:
    """Wait for a thread until the deadline.

    What has not begun by then never will. With ``finish``, what has begun is waited for: it must
    not be said of a change that it failed while it is being made.
    """
    loop = asyncio.get_running_loop()
    waiting = asyncio.wrap_future(future)
    with errors_as_answers():
        if finish:
            done, _ = await asyncio.wait([waiting], timeout=max(deadline - loop.time(), 0.0))
            if done or not future.cancel():
                return await waiting
            waiting.cancel()
        else:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    return await waiting
        raise HTTPException(504, "the deadline has passed, nothing was done")


def _refuse_unfit(path: Path, hasher: Hasher, index: HashIndex) -> None:
    """Raise ``ConfigError`` unless the index can have been filled with this hasher.

    A first call finds out what the vectors look like, and pays for what first calls pay.
    """
    if hasher.shape_ != index.shape:
        raise ConfigError(f"{path} has {hasher.shape_}, the index has {index.shape}")
    config = hasher.config_
    item = np.zeros((1, *config.item_shape), np.uint8 if config.takes_images else np.float32)
    dim = hasher.encode(item).vectors.shape[1]
    if dim != index.dim:
        raise ConfigError(f"{path} makes vectors of dim {dim}, the index has dim {index.dim}")
