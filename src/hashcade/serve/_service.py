"""What the routes work with: the index, the model, the pictures, and the threads they run in."""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from starlette.exceptions import HTTPException

from hashcade.errors import CorruptIndexError, DataError, StorageError
from hashcade.index._index import HashIndex
from hashcade.index._origin import model_fingerprint, read_origin
from hashcade.serve._encoder import Encoder
from hashcade.serve._live import BusyError, LiveIndex, ReadOnlyError
from hashcade.serve._metrics import Metrics
from hashcade.serve._pictures import Pictures, decode_image, folder_of_origin, read_names
from hashcade.serve._settings import ServeSettings

log = logging.getLogger("hashcade.serve")
T = TypeVar("T")
_SHORT = 1 << 24  # numbers read by a search; the library begins to use threads there


class Encoded(NamedTuple):
    """Items as the model sees them, and the index that they can be looked for in."""

    live: LiveIndex
    table: HashIndex
    epoch: int
    by_path: bool  # see Encoder
    vectors: npt.NDArray[np.float32]
    scores: npt.NDArray[np.float32]
    bucket_ids: npt.NDArray[np.int64]

    def where(self, n_probe: int | None) -> dict[str, Any]:
        """Where to search for the items."""
        return where_to_look(self.by_path, n_probe, self.scores, self.bucket_ids)


def where_to_look(
    by_path: bool,
    n_probe: int | None,
    scores: npt.NDArray[np.float32] | None,
    bucket_ids: npt.NDArray[np.int64],
) -> dict[str, Any]:
    """Where a search looks: in the buckets that an item has, or in the ``n_probe`` best.

    The buckets of a code book are not those of the best slots, so scores alone do not name them.
    """
    if scores is not None and (by_path or n_probe is not None):
        return {"scores": scores}
    return {"bucket_ids": bucket_ids}


class _ServedWith(NamedTuple):
    """What is served along with an index."""

    encoder: Encoder | None
    pictures: Pictures | None
    names: list[str] | None


def found(index: HashIndex, item_id: int) -> dict[str, Any]:
    """Return an item, or answer 404."""
    try:
        return index.item(item_id)
    except ValueError as error:
        raise HTTPException(404, str(error)) from None


class Service:
    """A running service. Made by :func:`create_app`; closed when the application stops."""

    def __init__(self, settings: ServeSettings) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.under_way: Callable[[], int] = lambda: 2  # told by the gate when there is one
        self._search_pool = ThreadPoolExecutor(settings.n_threads, "hashcade-search")
        self._slow_pool = ThreadPoolExecutor(1, "hashcade-encode")  # torch, Pillow: one at a time
        self.live = self._opened_live()
        try:
            self._take(self._opened(self.live.path, self.live.index))
            _warm_up(self.live.index)
        except BaseException:
            self.live.close()
            raise
        gauges: dict[str, tuple[str, Callable[[], float]]] = {
            "items": ("Items in the index", lambda: len(self.index)),
            "unsaved_changes": ("Changes in the journal alone", lambda: self.live.unsaved),
            "index_saves": ("Times the index was saved", lambda: self.live.n_folds),
        }
        for name, (text, value) in gauges.items():
            self.metrics.gauge(f"hashcade_{name}", text, value)

    def _opened_live(self) -> LiveIndex:
        live = LiveIndex(
            self.settings.index,
            read_only=self.settings.read_only,
            fold_bytes=self.settings.fold_bytes,
            fold_seconds=self.settings.fold_seconds,
        )
        live.on_commit = self.metrics.committed
        return live

    def _opened(
        self, directory: Path, index: HashIndex, known: Encoder | None = None
    ) -> _ServedWith:
        """Open what goes with an index. ``known`` is served on if it is the model still."""
        settings = self.settings
        origin = read_origin(directory)
        encoder = None
        if settings.model is not None:
            if origin is not None:
                origin.check_model(settings.model)
            if known is not None and known.fingerprint == model_fingerprint(settings.model):
                encoder = known
            else:
                encoder = Encoder(settings.model, index)
        place = settings.pictures
        if place is None and settings.own_pictures and origin is not None:
            place = folder_of_origin(origin)
        pictures = None if place is None else Pictures(place, max_pixels=settings.max_pixels)
        # Labels are numbers of the data that the index was built from, which may have had other
        # classes than the model was trained on.
        names = None
        if settings.names is not None:
            names = read_names(settings.names)
        elif origin is not None and origin.class_names:
            names = [str(name) for name in origin.class_names]
        elif pictures is not None and pictures.class_names is not None:
            names = pictures.class_names
        elif encoder is not None:
            names = encoder.class_names
        return _ServedWith(encoder, pictures, names)

    def _take(self, opened: _ServedWith) -> None:
        self.encoder, self.pictures, self._names = opened

    @property
    def index(self) -> HashIndex:
        """The index as it is now. Take it once per request."""
        return self.live.index

    def close(self) -> None:
        """Finish what was begun, save, and give everything back."""
        self._slow_pool.shutdown(cancel_futures=True)
        self._search_pool.shutdown(cancel_futures=True)
        self.live.close()

    # -- running things ------------------------------------------------------------------------

    async def search_thread(self, deadline: float, work: Callable[[], T]) -> T:
        """Run a search, or something as short, in a thread; 504 when it is too late."""
        return await _before(deadline, self._search_pool.submit(work))

    def is_short(self, index: HashIndex, n_visits: int) -> bool:
        """Whether a search is done sooner than another thread has taken it over.

        Only when nobody else waits: then the loop has nothing to do but this.
        """
        if self.under_way() > 1:
            return False
        live = index._snapshot.directory.live
        mean = index._snapshot.__dict__.get("mean_visited")
        if mean is None:  # entries in the bucket of an entry, on average
            mean = float((live.astype(np.float64) ** 2).sum() / max(live.sum(), 1))
            index._snapshot.__dict__["mean_visited"] = mean
        return bool(n_visits * mean * index.dim < _SHORT)

    async def slow_thread(
        self, deadline: float, work: Callable[[], T], *, finish: bool = False
    ) -> T:
        """Run what decodes or encodes, one after the other.

        With ``finish``, for what changes something, it is waited for once it has begun.
        """
        return await _before(deadline, self._slow_pool.submit(work), finish)

    def reload_soon(self) -> Future[bool]:
        """Reload in the thread in which that is done."""
        return self._slow_pool.submit(self.reload)

    async def change(
        self, deadline: float, begin: Callable[[], Future[npt.NDArray[np.int64]]]
    ) -> npt.NDArray[np.int64]:
        """Make a change, and return when it is on disk."""
        with errors_as_answers():
            future = begin()
        return await _before(deadline, future, finish=True)

    # -- items -----------------------------------------------------------------------------------

    def label_name(self, label: int) -> str:
        """What a label is called."""
        names = self._names
        return names[label] if names is not None and 0 <= label < len(names) else str(label)

    def briefs(self, ids: Iterable[int], labels: Iterable[int | None]) -> list[dict[str, Any]]:
        """Items for a list: id, label, and whether there is a picture."""
        pictures = self.pictures
        return [
            {"id": item, "label": label, "picture": pictures is not None and item in pictures}
            for item, label in zip(ids, labels, strict=True)
        ]

    def image_encoder(self) -> Encoder:
        """The model, if it takes images; 409 if not."""
        if self.encoder is None:
            raise HTTPException(409, "there is no model: images cannot be encoded")
        if not self.encoder.images:
            size = self.encoder.item_shape[0]
            raise HTTPException(409, f"the model takes embeddings of size {size}, not images")
        return self.encoder

    # These run in the slow thread, as a reload does: what they return fits together.

    def encode_image(self, data: bytes) -> Encoded:
        """Encode an uploaded image."""
        encoder = self.image_encoder()
        height, width = encoder.item_shape[:2]
        try:
            pixels = decode_image(
                io.BytesIO(data), max_pixels=self.settings.max_pixels, size=(height, width)
            )
        except DataError as error:
            raise HTTPException(422, str(error)) from None
        return self._encoded(encoder, pixels[None])

    def encode_items(self, items: npt.ArrayLike) -> Encoded:
        """Encode embeddings."""
        if self.encoder is None:
            raise HTTPException(422, "one of bucket_ids and scores says where to look: no model")
        if self.encoder.images:
            raise HTTPException(422, "the model takes images: give bucket_ids or scores")
        with errors_as_answers():
            return self._encoded(self.encoder, items)

    def _encoded(self, encoder: Encoder, items: npt.ArrayLike) -> Encoded:
        live, by_path = self.live, encoder.by_path
        return Encoded(live, live.index, live.epoch, by_path, *encoder.encode(items))

    def encode_item(
        self, item_id: int
    ) -> tuple[HashIndex, dict[str, Any], npt.NDArray[np.float32] | None, bool]:
        """The index, an item of it, its scores if what the model takes is here, and ``by_path``."""
        index, encoder = self.index, self.encoder
        item = found(index, item_id)
        if encoder is None:
            return index, item, None, True
        scores = None
        if encoder.vectors_are_items:
            scores = encoder.scores(item["vector"][None])
        elif encoder.images and self.pictures is not None:
            height, width = encoder.item_shape[:2]
            with contextlib.suppress(DataError):  # the picture is gone or damaged, the item is not
                pixels = self.pictures.pixels(item_id, (height, width))
                scores = None if pixels is None else encoder.scores(pixels[None])
        return index, item, scores, encoder.by_path

    # -- a new index -------------------------------------------------------------------------------

    def reload(self) -> bool:
        """Take over what stands at the paths of the settings now.

        False if index and model are those that are served; pictures and names are read again.

        Runs in the slow thread: nothing is encoded meanwhile, everything else goes on.
        """
        old = self.live
        if self.settings.index.resolve() == old.path:
            made: list[_ServedWith] = []
            if old.reload(lambda index: made.append(self._opened(old.path, index))):
                self._take(made[0])
                return True
            before = self.encoder
            self._take(self._opened(old.path, old.index, before))
            if self.encoder is before:
                return False
            old.epoch += 1  # what the model before it encoded is not to be added any more
            return True
        live = self._opened_live()  # the path leads elsewhere: another directory was linked there
        try:
            opened = self._opened(live.path, live.index)
            _warm_up(live.index)
        except BaseException:
            live.close()
            raise
        self.live = live
        self._take(opened)
        old.close()  # its changes are saved where they were made
        return True


class errors_as_answers:  # noqa: N801 - used like a function
    """Context in which errors of the library become answers."""

    def __enter__(self) -> None:
        """Nothing to do."""

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        """Turn what the caller did wrong, or what is wrong here, into a status."""
        if isinstance(error, ValueError):
            raise HTTPException(422, str(error)) from None
        if isinstance(error, ReadOnlyError):
            raise HTTPException(403, str(error)) from None
        if isinstance(error, BusyError):
            raise HTTPException(429, str(error), {"Retry-After": "1"}) from None
        if isinstance(error, CorruptIndexError):
            log.error("the index is damaged: %s", error)
            raise HTTPException(503, "the index is damaged; see the log") from None
        if isinstance(error, StorageError):
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


def _warm_up(served: HashIndex) -> None:
    """Let the kernels be compiled before the first query, not by it.

    On an index of one item: what is served is read, and checked, when it is asked for.
    """
    shape = served.shape
    own = np.zeros((1, shape.sparsity), dtype=np.int64)
    index = HashIndex.build(own, np.zeros((1, 2), dtype=np.float32), shape=shape)
    vectors = np.zeros((2, 2), dtype=np.float32)
    scores = np.zeros((2, shape.depth, shape.width), dtype=np.float32)
    for metric in ("euclidean", "inner_product"):
        for buckets in (np.zeros((2, 1), dtype=np.int64), [[0], [0]]):  # two ways of searching
            index.search(vectors, bucket_ids=buckets, n_neighbors=1, metric=metric)
        index.search(vectors, scores=scores, n_neighbors=1, n_probe=1, metric=metric)
