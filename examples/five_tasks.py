"""The five tasks of a user on handwritten digits, each in at most three lines.

Run it with ``python examples/five_tasks.py``; it needs the extras ``train`` and ``sklearn``, takes
half a minute, and leaves ``digits.table`` in the working directory.
"""

from sklearn.datasets import load_digits

from hashcade import HashTable

X, y = load_digits(return_X_y=True)  # 1,797 vectors of 64 numbers with labels 0 to 9
X, queries = X[:1500], X[1500:]
y, query_labels = y[:1500], y[1500:]

# -- 1. learn and search
table = HashTable(steps=100).fit(X, y)  # without steps: trains to convergence
matches = table.search(queries, 10)

print(matches.ids.shape, matches.candidates.mean() < 300)  # (297, 10) True

# -- 2. trade speed for precision: more buckets find more, and take longer
quick = table.search(queries, 10, n_probe=1)  # the query's own bucket, the default
thorough = table.search(queries, 10, n_probe=4)

print((quick.candidates <= thorough.candidates).all())  # True

# -- 3. save and load: one directory for model and items
table.save("digits.table")
table = HashTable.load("digits.table")

print(len(table))  # 1500

# -- 4. add later: labels may be missing
ids = table.add(queries[:100], labels=query_labels[:100])
more = table.add(queries[100:])
table.save("digits.table")

print(ids[[0, -1]].tolist(), more[[0, -1]].tolist(), len(table))  # [1500, 1599] [1600, 1796] 1797

# -- 5. show labels with results
for match in table.search(X[0], 3)[0]:
    print(match.id, match.label, f"{match.distance:.1f}")
