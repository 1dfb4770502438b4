"""The change log of a table (not yet in the index on disk), and answers by idempotency key."""

from __future__ import annotations

import json
import time

from hashcade.errors import CorruptIndexError
from hashcade.store.changes import Answer, Change, Key, from_record, to_records
from hashcade.store.rows import row_crc
from hashcade.store.transactions import Transactions

MAX_ANSWERS, MAX_ANSWER_SECONDS = 10_000, 86_400  # that can be repeated by key
_MAX_EXPIRED = 50  # deleted per new answer


class ChangeLog(Transactions):
    """Changes that the saved index lacks, and answers to requests that may be retried."""

    def log(self, change: Change) -> int:
        """Append a change, which stays until the index is saved; return its size in bytes."""
        records = list(to_records(change)) if self.path is not None else []
        for record in records:
            self._execute("INSERT INTO changes(body) VALUES(?)", record)
        return sum(map(len, records))

    @property
    def last_change(self) -> int:
        """Number of the last change ever made."""
        rows = self._query("SELECT seq FROM sqlite_sequence WHERE name = 'changes'")
        last = rows[0][0] if rows else 0
        if not isinstance(last, int):
            raise CorruptIndexError(f"{self.path} is damaged: the number of its last change")
        return last

    def changes_after(self, generation: str) -> list[Change] | None:
        """Changes that an index of this generation lacks; None for an unknown generation."""
        rows = self._query("SELECT seq FROM generations WHERE generation = ?", generation)
        if not rows:
            return None
        bodies = self._query("SELECT body FROM changes WHERE seq > ? ORDER BY seq", rows[0][0])
        return [from_record(body) for (body,) in bodies]

    def records_after(self, last: int) -> list[tuple[int, bytes]]:
        """Numbers and records of the changes after number ``last`` that are in the log."""
        return self._query("SELECT seq, body FROM changes WHERE seq > ? ORDER BY seq", last)

    @property
    def lineage(self) -> str | None:
        """Identity of the table for its replicas; None if it was never replicated."""
        rows = self._query("SELECT value FROM meta WHERE key = 'lineage'")
        return str(rows[0][0]) if rows else None

    def set_lineage(self, lineage: str) -> None:
        """Set the identity of the table for its replicas; the caller commits."""
        self._execute("INSERT INTO meta VALUES('lineage', ?)", lineage)

    def forget_changes(self, generation: str, last: int) -> None:
        """Drop the changes that a saved index has; the caller commits."""
        self._execute("DELETE FROM changes WHERE seq <= ?", last)
        self._execute("DELETE FROM generations WHERE generation != ?", generation)

    def answer_to(self, key: Key) -> Answer | None:
        """The answer to an earlier request with this key, or None.

        Raises ``ValueError`` if the key was used for a different request.
        """
        query = "SELECT digest, ids, n_items, crc FROM answers WHERE key = ?"
        for digest, ids, n_items, crc in self._query(query, key.text):
            if crc != row_crc(n_items, key.text, digest, ids):
                raise CorruptIndexError(f"{self.path} is damaged: an answer has a wrong checksum")
            if digest != key.digest:
                raise ValueError(f"the key {key.text!r} was used for another request")
            try:
                item_ids = [item for item in json.loads(ids) if isinstance(item, int | str)]
            except (TypeError, ValueError, RecursionError):
                raise CorruptIndexError(f"{self.path} is damaged: an answer has no ids") from None
            return Answer(item_ids, n_items)
        return None

    def remember(self, key: Key, answer: Answer) -> None:
        """Keep an answer for a day, or until there are too many; the caller commits."""
        ids, now = json.dumps(answer.ids, ensure_ascii=False), int(time.time())
        crc = row_crc(answer.n_items, key.text, key.digest, ids)
        insert = (
            "INSERT INTO answers(key, digest, ids, n_items, time, crc) VALUES(?, ?, ?, ?, ?, ?)"
        )
        self._execute(insert, key.text, key.digest, ids, answer.n_items, now, crc)
        oldest = f"(SELECT max(seq) - {MAX_ANSWERS} FROM answers)"
        expired = f"SELECT seq FROM answers WHERE time < ? ORDER BY seq LIMIT {_MAX_EXPIRED}"
        self._execute(f"DELETE FROM answers WHERE seq <= {oldest}")
        self._execute(f"DELETE FROM answers WHERE seq IN ({expired})", now - MAX_ANSWER_SECONDS)
