"""Sentences with payload and filters: find what means the same, among those that may be found.

Run it with ``python examples/sentences.py``; it needs the extra ``train``. The embeddings are drawn
here, a direction for each intent and much noise; take those of your own sentence encoder.
"""

import numpy as np

from hashcade import HashTable

INTENTS = {
    "balance": ("how much money do I have", "what is in my account"),
    "transfer": ("send 20 euros to Ann", "move money to my savings"),
    "lost card": ("I cannot find my card", "my card was stolen"),
    "weather": ("will it rain today", "how warm is it outside"),
    "alarm": ("wake me up at seven", "set an alarm for noon"),
}
rng = np.random.default_rng(0)
directions = dict(zip(INTENTS, rng.normal(size=(len(INTENTS), 96)), strict=True))


def embed(intents):
    """What a sentence encoder would give, with unit length."""
    vectors = np.array([directions[intent] for intent in intents])
    vectors += 1.5 * rng.normal(size=vectors.shape)
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


# 1,000 sentences: an id, the intent as the label, and what we want to have back as payload.
intents = [name for name in INTENTS for _ in range(200)]
payload = [
    {
        "text": INTENTS[intent][row % 2],
        "language": ("en", "de", "fr")[row % 3],
        "year": 2015 + row % 10,
    }
    for row, intent in enumerate(intents)
]
ids = [f"s{row:03d}" for row in range(len(intents))]

# Only the direction of such vectors has a meaning: cosine.
table = HashTable(metric="cosine", steps=60)
table.fit(embed(intents), intents, ids=ids, payload=payload)
query = embed(["lost card"])

best = table.search(query, 3)[0][0]
print(best.label, sorted(best.payload))  # lost card ['language', 'text', 'year']

# Filters are dicts: fields are joined by and, a list is one of several.
where = {"language": ["de", "fr"], "year": {">=": 2020, "<": 2023}}
matches = table.search(query, 5, where=where)
print(table.count(where), len(matches[0]), bool(matches.exact[0]))  # 200 5 True
print({match.payload["language"] for match in matches[0]} <= {"de", "fr"})  # True
print({match.label for match in matches[0]})  # {'lost card'}

# A filter may be on the label or the id as well, and may leave out what it names.
others = table.search(query, 3, where={"not": {"label": "lost card"}})
print("lost card" in {match.label for match in others[0]})  # False

# Filters on a field of large tables are faster with an index of it.
table.create_index("year")
print(table.remove(where={"year": {"<": 2017}}), len(table))  # 200 800

# Items by their ids: look at one, replace it.
sentence = table["s405"]
print(sentence.label, sentence.payload["text"])  # lost card my card was stolen
table.upsert(["s405"], query, labels=["lost card"], payload=[{"text": "where is my card?"}])
print(table.search(query, 1)[0][0].payload)  # {'text': 'where is my card?'}

table.save("sentences.table")
print(len(HashTable.load("sentences.table")))  # 800
