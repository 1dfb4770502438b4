"""Random changes of bytes, JSON and arrays, of which the mutators of all formats are made."""

import copy
import json

import numpy as np

NUMBERS = [
    0, 1, 2, 3, 4, 7, 8, 15, 16, 17, 63, 64, 65, 127, 128, 255, 256, 257, 1000, 2**15, 2**16 - 1,
    2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64,
]  # fmt: skip
FLOATS = [0.0, -0.0, 1.0, 1e-45, 1e-30, 1e19, 1e30, 3e38, np.inf, np.nan]
VALUES = [
    None, True, False, "", "x", "../x", "\x00", "é" * 50, [], {}, [0], {"a": 1}, 0.5, -0.5, 1e308,
    float("nan"), float("inf"), [[[]]], "9" * 30,
]  # fmt: skip


class WrongAnswerError(Exception):
    """What was accepted gave another answer than its content does."""


def number(rng, near=None):
    kind = rng.random()
    if near is not None and kind < 0.4:
        return near + rng.choice([-2, -1, 1, 2, 64])
    return rng.choice(NUMBERS) * (1 if kind < 0.8 else -1)


def mutated_bytes(rng, data, least=1):
    """Bytes with a few changes."""
    data = bytearray(data)
    for _ in range(rng.choice([least, 1, 1, 2, 4])):
        at = rng.randrange(len(data) + 1)
        kind = rng.randrange(9)
        if not data or kind == 0:
            data[at:at] = rng.randbytes(rng.choice([1, 2, 8, 64]))
        elif kind <= 2:
            data[at % len(data)] ^= 1 << rng.randrange(8)
        elif kind == 3:
            data[at % len(data)] = rng.choice([0, 1, 127, 128, 255])
        elif kind == 4:
            size, order = rng.choice([2, 4, 8]), rng.choice(["little", "big"])
            value = (number(rng) % (1 << 8 * size)).to_bytes(size, order)
            data[at : at + size] = value[: max(0, len(data) - at)]
        elif kind == 5:
            del data[at : at + rng.choice([1, 4, 100, 5000])]
        elif kind == 6:
            other, size = rng.randrange(len(data)), rng.choice([4, 8, 64, 512])
            data[at : at + size] = data[other : other + size]
        elif kind == 7:
            data[at : at + rng.choice([8, 64, 1000])] = bytes(rng.choice([8, 64, 1000]))
        elif rng.random() < 0.3:
            del data[at:]
    return bytes(data)


def places(value, path=()):
    """All places in a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in items:
        yield (*path, key)
        if isinstance(inner, dict | list):
            yield from places(inner, (*path, key))


def mutate_json(rng, value):
    """Change a JSON value in place, at a few places."""
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        choices = list(places(value))
        if not choices:
            return
        *path, key = rng.choice(choices)
        holder = value
        for part in path:
            holder = holder[part]
        old, kind = holder[key], rng.random()
        if kind < 0.08:
            del holder[key]
        elif kind < 0.12 and isinstance(holder, list):
            holder.append(json.loads(json.dumps(old)))
        elif kind < 0.2:
            *other, other_key = rng.choice(choices)
            source = value
            for part in other:
                source = source[part] if isinstance(source, dict | list) else value
            if isinstance(source, dict | list):
                try:
                    holder[key] = json.loads(json.dumps(source[other_key]))
                except (LookupError, TypeError):
                    holder[key] = None
        elif isinstance(old, int) and not isinstance(old, bool) and kind < 0.85:
            holder[key] = number(rng, old)
        elif isinstance(old, float) and kind < 0.85:
            holder[key] = rng.choice([*FLOATS, -old, old / 2, old * 1.001])
        else:
            holder[key] = copy.deepcopy(rng.choice(VALUES))  # it may be changed later


def mutate_array(rng, array):
    """Change a few values of an array in place."""
    flat = array.reshape(-1)
    for _ in range(rng.choice([1, 1, 2, 5])):
        at, other = rng.randrange(len(flat)), rng.randrange(len(flat))
        kind = rng.random()
        if kind < 0.25:
            flat[at] = flat[other]
        elif kind < 0.4:
            flat[at], flat[other] = flat[other], flat[at]
        elif array.dtype.kind == "f":
            flat[at] = rng.choice([*FLOATS, -flat[at], flat[at] * 2, rng.gauss(0, 1)])
        else:
            info = np.iinfo(array.dtype)
            flat[at] = min(max(number(rng, int(flat[at])), info.min), info.max)
