"""A table that grows every day: each batch is on disk when its call returns.

Run it with ``python examples/growing_table.py``; it needs the extra ``train`` and leaves
``news.table`` in the working directory. The embeddings are drawn here; take your own.
"""

import numpy as np

from hashcade import HashTable

rng = np.random.default_rng(0)
TOPICS = {name: rng.normal(size=64) for name in ("sport", "science", "music", "travel")}


def articles(day, topics, n=50):
    """The articles of a day: embeddings, topics, and what we want to have back."""
    labels = [topics[row % len(topics)] for row in range(n)]
    X = np.array([TOPICS[label] for label in labels]) + 0.7 * rng.normal(size=(n, 64))
    payload = [{"day": day, "title": f"{label} {day}.{row}"} for row, label in enumerate(labels)]
    return X.astype(np.float32), labels, payload


# Once: learn from what there is.
X, y, payload = articles(0, ["sport", "science"], n=300)
HashTable(width=8, steps=60).fit(X, y, payload=payload).save("news.table")

# Every day: open the table, add the articles of the day, close it. A process that is killed
# loses nothing that was added, and others can search meanwhile.
for day in range(1, 8):
    with HashTable.open("news.table") as table:
        X, y, payload = articles(day, ["sport", "science"])
        table.add(X, labels=y, payload=payload)
print(len(HashTable.load("news.table")))  # 650

# A reader, here or in another process, sees the last commit before it was opened.
reader = HashTable.open("news.table", read_only=True)
with HashTable.open("news.table") as table:
    # A topic that the table does not have is an error, unless it is meant.
    X, y, payload = articles(8, ["sport", "music"])
    try:
        table.add(X, labels=y, payload=payload)
    except ValueError as error:
        print("music" in str(error), len(table))  # True 650
    table.add(X, labels=y, payload=payload, new_labels=True)

    # Some articles have no topic: they go where the network puts them.
    X, y, payload = articles(9, ["music"], n=4)
    ids = table.add(X, payload=payload)
    print(table[ids[0]].label, table[ids[0]].payload)  # None {'day': 9, 'title': 'music 9.0'}

    # What is old goes.
    print(table.remove(where={"day": {"<": 3}}), len(table))  # 400 304
print(len(reader), reader.refresh(), len(reader))  # 650 True 304
reader.close()

# Opened again, all of it is there.
with HashTable.open("news.table", read_only=True) as table:
    query, _, _ = articles(10, ["music"], n=1)
    best = table.search(query, 3, where={"day": 8})[0]
    print([match.label for match in best])  # ['music', 'music', 'music']
