"""The whole table against a plain dictionary and brute force, done in any order."""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from table_factories import make_items

from hashcade import Hasher, HashTable

X, Y = make_items()
READER = """
import json, sys
from hashcade import HashTable

for line in sys.stdin:
    with HashTable.open(line.strip(), read_only=True) as table:
        items = [table[item] for item in table.ids().tolist()]
        rows = [[i.id, i.label, i.name, i.payload, i.vector.tolist()] for i in items]
    print(json.dumps(rows), flush=True)
"""

labels_of_new = st.sampled_from([None, "ant", "bee", "cat"])
payloads = st.none() | st.fixed_dictionaries(
    {}, optional={"price": st.integers(0, 5) | st.floats(0, 5), "brand": st.sampled_from("ab")}
)
wheres = st.sampled_from([
    {}, {"label": "ant"}, {"label": ["bee", "cat"]}, {"label": None}, {"brand": "a"},
    {"price": {"<": 3}}, {"price": {">=": 1}, "brand": ["a", "b"]}, {"brand": None},
    {"not": {"brand": "a"}}, {"any": [{"price": 2}, {"label": "bee"}]}, {"name": {"!=": None}},
])  # fmt: skip


def matches(item, where):
    """What the filters above mean."""
    payload = item["payload"] or {}
    price, brand = payload.get("price"), payload.get("brand")
    key = next(iter(where), None)
    if where == {"price": {"<": 3}}:
        return price is not None and price < 3
    if "price" in where:
        return price is not None and price >= 1 and brand is not None
    if key == "not":
        return brand != "a"
    if key == "any":
        return price == 2 or item["label"] == "bee"
    if key == "name":
        return item["name"] is not None
    if key == "label":
        wanted = where["label"]
        return item["label"] in (wanted if isinstance(wanted, list) else [wanted])
    return True if key is None else brand == where["brand"]


class Machine(RuleBasedStateMachine):
    hasher = None
    vectors = None
    reader = None

    @initialize(text_ids=st.booleans(), durable=st.booleans())
    def begin(self, text_ids, durable):
        if Machine.hasher is None:
            settings = {"width": 4, "steps": 40, "hidden_size": 8, "verbose": False}
            Machine.hasher = Hasher(**settings).fit(X, Y)
            Machine.vectors = Machine.hasher.embed(X)
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "table"
        self.text_ids, self.model, self.saved, self.next = text_ids, {}, {}, 0
        self.table = HashTable.from_parts(self.hasher)
        self.durable = False
        self.add(3, 0, [None] * 3, [None] * 3, False)
        self.save()
        if durable:
            self.switch()

    def teardown(self):
        if hasattr(self, "table"):
            self.table.close()
            self.folder.cleanup()

    def put(self, ids, rows, labels, payload, upsert):
        names = [f"name {row}" if row % 2 else None for row in rows]
        given = {"labels": labels, "names": names, "payload": payload}
        if upsert:
            self.table.upsert(ids, X[rows], **given)
        else:
            assert list(self.table.add(X[rows], ids=ids, **given)) == ids
        for item, row, label, name, content in zip(ids, rows, labels, names, payload, strict=True):
            self.model[item] = {"row": row, "label": label, "name": name, "payload": content}

    @rule(
        n=st.integers(1, 3), row=st.integers(0, 200), data=st.booleans(),
        labels=st.lists(labels_of_new, min_size=3, max_size=3),
        payload=st.lists(payloads, min_size=3, max_size=3),
    )  # fmt: skip
    def add(self, n, row, labels, payload, data):
        ids = list(range(self.next, self.next + n))
        self.next += n
        ids = [f"key {item}" for item in ids] if self.text_ids else ids
        rows = list(range(row, row + n))
        self.put(ids, rows, labels[:n], payload[:n] if data else [None] * n, upsert=False)

    @precondition(lambda self: self.model)
    @rule(row=st.integers(0, 200), label=labels_of_new, payload=payloads, data=st.data())
    def upsert(self, row, label, payload, data):
        old = data.draw(st.sampled_from(sorted(self.model)))
        new = f"key {self.next}" if self.text_ids else self.next
        self.next += 1
        self.put([old, new], [row, row + 1], [label, "ant"], [payload, None], upsert=True)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def remove(self, data):
        item = data.draw(st.sampled_from(sorted(self.model)))
        assert self.table.remove([item]) == 1
        del self.model[item]
        with pytest.raises(ValueError, match="not in the table"):
            self.table.remove([item])

    @rule(where=wheres.filter(lambda where: where))
    def remove_where(self, where):
        gone = [item for item, value in self.model.items() if matches(value, where)]
        assert self.table.remove(where=where) == len(gone)
        for item in gone:
            del self.model[item]

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def a_bad_change_changes_nothing(self, data):
        item = data.draw(st.sampled_from(sorted(self.model)))
        with pytest.raises(ValueError, match="already in the table"):
            self.table.add(X[:1], ids=[item], labels=["ant"], payload=[{"brand": "z"}])
        with pytest.raises(ValueError, match="'gnu', which the table does not have"):
            self.table.upsert([item], X[:1], labels=["gnu"])
        with pytest.raises(ValueError, match="ids are"):
            self.table.upsert([0] if self.text_ids else ["0"], X[:1])

    @rule(where=st.none() | wheres, query=st.integers(0, 200), n=st.integers(1, 12))
    def search(self, where, query, n):
        found = self.table.search(X[query], n, where=where, n_probe=16)
        inside = {k: v for k, v in self.model.items() if matches(v, where or {})}
        V = self.vectors
        far = {k: float(((V[v["row"]] - V[query]) ** 2).sum()) for k, v in inside.items()}
        best = sorted(far.values())[:n]
        assert len(found[0]) == len(best)
        np.testing.assert_allclose([m.distance**2 for m in found[0]], best, rtol=1e-4, atol=1e-5)
        for match in found[0]:
            expected = inside[match.id]
            got = (match.label, match.name, match.payload)
            assert got == (expected["label"], expected["name"], expected["payload"])
            assert match.distance**2 == pytest.approx(far[match.id], rel=1e-4, abs=1e-5)

    @rule(where=wheres)
    def count(self, where):
        inside = {item for item, value in self.model.items() if matches(value, where)}
        assert set(self.table.ids(where).tolist()) == inside
        assert self.table.count(where) == len(inside)

    @rule(field=st.sampled_from(["brand", "price"]))
    def create_index(self, field):
        self.table.create_index(field)

    @rule()
    def save(self):
        self.table.save(self.path)
        self.saved = dict(self.model)

    @rule()
    def load(self):
        """What was not saved is gone, unless the table is durable."""
        self.table.close()
        if not self.durable:
            self.model = dict(self.saved)
        self.open()

    @rule()
    def switch(self):
        if not self.durable:
            self.save()
        self.table.close()
        self.durable = not self.durable
        self.saved = dict(self.model)
        self.open()

    def open(self):
        self.table = HashTable.open(self.path) if self.durable else HashTable.load(self.path)

    @rule()
    def read_in_another_process(self):
        if Machine.reader is None:
            Machine.reader = subprocess.Popen(
                [sys.executable, "-c", READER], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                text=True,
            )  # fmt: skip
        import json

        print(self.path, file=Machine.reader.stdin, flush=True)
        rows = json.loads(Machine.reader.stdout.readline())
        expected = self.model if self.durable else self.saved
        found = {row[0]: {"label": row[1], "name": row[2], "payload": row[3]} for row in rows}
        assert found == {
            k: {n: v[n] for n in ("label", "name", "payload")} for k, v in expected.items()
        }
        for row in rows:
            np.testing.assert_allclose(row[4], self.vectors[expected[row[0]]["row"]], atol=1e-5)

    @invariant()
    def all_items_are_there(self):
        if hasattr(self, "table"):
            assert len(self.table) == len(self.model)
            for item, value in list(self.model.items())[-3:]:
                got = self.table[item]
                assert (got.label, got.name, got.payload) == (
                    value["label"], value["name"], value["payload"],
                )  # fmt: skip
                assert item in self.table


TestTable = Machine.TestCase
TestTable.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)


@pytest.fixture(scope="module", autouse=True)
def stop_reader():
    yield
    if Machine.reader is not None:
        Machine.reader.communicate(timeout=60)
        Machine.reader = None
