"""What the database keeps of changes: those that the index on disk lacks, and answers to them."""

from __future__ import annotations

import json
import time

from hashcade.errors import CorruptIndexError
from hashcade.store.changes import Answer, Change, Key, from_record, to_records
from hashcade.store.rows import row_crc
from hashcade.store.transactions import Transactions

KEPT_ANSWERS, KEPT_SECONDS = 10_000, 86_400  # as many, and as long, as requests may be repeated
_REMOVED = 50  # old answers that go when a new one comes


class ChangeLog(Transactions):
    """Changes until the index has them, and answers to requests that may come again."""

    def log(self, change: Change) -> int:
        """Keep a change until the index is saved, and return its length."""
        records = list(to_records(change)) if self.path is not None else []
        for record in records:
            self._run("INSERT INTO changes(body) VALUES(?)", record)
        return sum(map(len, records))

    @property
    def last_change(self) -> int:
        """Number of the last change that was ever made."""
        rows = self._all("SELECT seq FROM sqlite_sequence WHERE name = 'changes'")
        last = rows[0][0] if rows else 0
        if not isinstance(last, int):
            raise CorruptIndexError(f"{self.path} is damaged: the number of its last change")
        return last

    def changes_after(self, generation: str) -> list[Change] | None:
        """Changes that an index of this generation does not have; None: it is unknown here."""
        rows = self._all("SELECT seq FROM generations WHERE generation = ?", generation)
        if not rows:
            return None
        bodies = self._all("SELECT body FROM changes WHERE seq > ? ORDER BY seq", rows[0][0])
        return [from_record(body) for (body,) in bodies]

    def records_after(self, last: int) -> list[tuple[int, bytes]]:
        """Numbers and records of the changes after number ``last`` that are in the log."""
        return self._all("SELECT seq, body FROM changes WHERE seq > ? ORDER BY seq", last)

    @property
    def lineage(self) -> str | None:
        """What those that follow the changes of this table know it by; None: nobody does."""
        rows = self._all("SELECT value FROM meta WHERE key = 'lineage'")
        return str(rows[0][0]) if rows else None

    def set_lineage(self, lineage: str) -> None:
        """Give the table a name for those that follow its changes; to be committed."""
        self._run("INSERT INTO meta VALUES('lineage', ?)", lineage)

    def forget_changes(self, generation: str, last: int) -> None:
        """Drop what an index that was saved has; to be committed."""
        self._run("DELETE FROM changes WHERE seq <= ?", last)
        self._run("DELETE FROM generations WHERE generation != ?", generation)

    def answer_to(self, key: Key) -> Answer | None:
        """What was answered to a request, if it was made before.

        Raises ``ValueError`` if its key was that of another request.
        """
        query = "SELECT digest, ids, n_items, crc FROM answers WHERE key = ?"
        for digest, ids, n_items, crc in self._all(query, key.text):
            if crc != row_crc(n_items, key.text, digest, ids):
                raise CorruptIndexError(f"{self.path} is damaged: an answer has a wrong checksum")
            if digest != key.digest:
                raise ValueError(f"the key {key.text!r} was used for another request")
            try:
                listed = [each for each in json.loads(ids) if isinstance(each, int | str)]
            except (TypeError, ValueError, RecursionError):
                raise CorruptIndexError(f"{self.path} is damaged: an answer has no ids") from None
            return Answer(listed, n_items)
        return None

    def remember(self, key: Key, answer: Answer) -> None:
        """Keep an answer for a day, until many more have come; to be committed."""
        ids, now = json.dumps(answer.ids, ensure_ascii=False), int(time.time())
        crc = row_crc(answer.n_items, key.text, key.digest, ids)
        insert = (
            "INSERT INTO answers(key, digest, ids, n_items, time, crc) VALUES(?, ?, ?, ?, ?, ?)"
        )
        self._run(insert, key.text, key.digest, ids, answer.n_items, now, crc)
        last = f"(SELECT max(seq) - {KEPT_ANSWERS} FROM answers)"
        old = f"SELECT seq FROM answers WHERE time < ? ORDER BY seq LIMIT {_REMOVED}"
        self._run(f"DELETE FROM answers WHERE seq <= {last}")
        self._run(f"DELETE FROM answers WHERE seq IN ({old})", now - KEPT_SECONDS)
