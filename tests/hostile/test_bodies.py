"""Bodies: JSON that is long, deep, dense or wrong, many of them at once."""

import gc
import json
import tracemalloc

import numpy as np
import pytest

from hashcade.serve import schemas
from hashcade.serve.json_body import Axis, BodyError, Numbers, read_json
from tests.hostile import attackers
from tests.hostile.services import Attacked
from tests.serve.factories import make_table

BIG = 16 << 20
BOMBS = pytest.mark.promise("H2", "JSON bombs of every kind, 16 MB, up to 64 at once")


@pytest.fixture(scope="module")
def attacked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bodies")
    service = Attacked(make_table(folder / "table"), folder / "log")
    yield service
    assert service.stop() == 0


def check_bombs_are_refused(attacked, kinds, n, size, p99, cases):
    cases.add(len(kinds) * n)
    outcome = attacked.under("bombs", kinds=kinds, n=n, size=size)
    outcome.check(bodies=True, p99=p99)
    for kind, statuses in outcome.results[0].items():
        assert set(statuses) <= {408, 413, 422, 429}, (kind, statuses)
    assert "hashcade_body_bytes 0.0" in attacked.get("/metrics")[1]
    assert "hashcade_requests_active 0.0" in attacked.get("/metrics")[1]


@pytest.mark.alone
@BOMBS
def test_every_bomb_is_refused(attacked, cases):
    check_bombs_are_refused(attacked, attackers.KINDS, 1, BIG, 1.0, cases)


@BOMBS
@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.parametrize("kind", attackers.KINDS)
def test_sixty_four_bombs_at_once(attacked, kind, cases):
    check_bombs_are_refused(attacked, [kind], 64, BIG, 0.1, cases)


# -- the reader itself -----------------------------------------------------------------------------

HARMLESS = ("payload of text", "payload of escapes")  # long, and valid
ROWS = Axis("queries", 1024, "max_batch")
ARRAYS = {
    "vectors": Numbers("f", (ROWS, Axis("numbers", 2048, "dim"))),
    "bucket_ids": Numbers("i", (ROWS, Axis("bucket_ids", 4096, "max_probe"))),
    "scores": Numbers("f", (ROWS, Axis("levels", 2, "depth"), Axis("slots", 4, "width"))),
}


LENGTH = 1 << 20  # of a body: as much as may be in it beside arrays


def read(body, model=schemas.AddRequest):
    return read_json(body, model, ARRAYS, max_rest=LENGTH, max_values=50_000)


def memory_of(work):
    gc.collect()
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.promise("H2", "memory for a body, beside the body itself")
@pytest.mark.parametrize("kind", attackers.KINDS)
def test_a_body_takes_at_most_three_times_its_length(kind):
    path, body = attackers.bomb(kind, LENGTH)
    model = schemas.AddRequest if path == "/v1/items" else schemas.SearchRequest

    def try_it():
        if kind in HARMLESS:
            read(body, model)
        else:
            with pytest.raises(BodyError, match=r"^.{10,300}$"):
                read(body, model)

    memory = memory_of(try_it)
    assert memory < 3 * len(body), f"{kind}: {memory / len(body):.1f} times {len(body)} bytes"


@pytest.mark.promise("H2", "memory for a body, beside the body itself")
@pytest.mark.parametrize("number", ["1", "0.125", "0.30000001192092896"])
def test_so_does_one_that_is_right(number):
    row = ",".join([number] * 2048)
    body = ('{"vectors":[' + ",".join([f"[{row}]"] * 256) + "]}").encode()
    memory = memory_of(lambda: read(body))
    assert memory < 3 * len(body), f"{memory / len(body):.1f} times"
    assert np.array_equal(read(body).vectors, np.full((256, 2048), np.float32(number)))


@pytest.mark.promise("H2", "JSON as Python reads it, and JSON that is none")
def test_what_is_read_is_what_python_reads(cases):
    rng = np.random.default_rng(0)
    for number in range(300):
        cases.add()
        n = int(rng.integers(1, 5))
        given = {
            "vectors": (rng.normal(size=(n, 3)) * 10.0 ** rng.integers(-30, 30)).tolist(),
            "bucket_ids": rng.integers(0, 2**62, (n, 2)).tolist() if number % 2 else None,
            "names": ['a"]},{["\\', "é\u2028", None, "\t"][:n] + ["x"] * (n - 4),
            "payload": [{"vectors": [[1]], "a": {"b": [1, {"c": "]"}]}}] * n,
            "labels": [None, 1, "x", -5][:n] + [0] * (n - 4),
            "replace": bool(number % 3),
        }
        keys = rng.permutation(list(given))
        text = json.dumps({key: given[key] for key in keys}, indent=[None, 1, "\t"][number % 3])
        made = read(text.encode())
        for key, value in given.items():
            if key in ("vectors", "bucket_ids") and value is not None:
                dtype = np.float32 if key == "vectors" else np.int64
                assert np.array_equal(getattr(made, key), np.array(value, dtype))
            else:
                assert getattr(made, key) == value
        for end in rng.integers(0, len(text), 5).tolist():  # cut off
            with pytest.raises(BodyError):
                read(text[:end].encode())
            changed = bytearray(text.encode())
            changed[min(end, len(changed) - 1)] = int(rng.integers(0, 256))
            try:
                expected = json.loads(changed)
            except (ValueError, UnicodeDecodeError):
                with pytest.raises(BodyError):
                    read(changed)
            else:
                assert isinstance(expected, dict)


@pytest.mark.promise("H2", "JSON as Python reads it, and JSON that is none")
@pytest.mark.parametrize(
    "text",
    [
        "", "{", "}", "null", "[]", "{}x", '{"vectors"}', '{"vectors":}', '{"vectors":null}',
        '{,"vectors":[[1]]}', '{"vectors":[[1]]]}', '{"vectors":[[1],]}', '{"vectors":[[1,]]}',
        '{"vectors":[[1] [2]]}', '{"vectors":[[1]}', '{"vectors":[["1"]]}', '{"vectors":[[true]]}',
        '{"vectors":[[null]]}', '{"vectors":[[NaN]]}', '{"vectors":[[1e999]]}', '{"vectors":[1]}',
        '{"vectors":[[01]]}', '{"vectors":[[.5]]}', '{"vectors":[[1.]]}', '{"vectors":[[0x1]]}',
        '{"vectors":[[1],[1,2]]}', '{"vectors":[[[1]]]}', '{"vectors":1}', '{"vectors":"x"}',
        "{'vectors':[[1]]}",
        *(
            '{"vectors":[[1]]' + rest
            for rest in (
                ",}", ',"vectors":[[1]]}', ',"bucket_ids":[[-1]]}', ',"bucket_ids":[[1.5]]}',
                ',"bucket_ids":[[9223372036854775808]]}', ',"names":[1]}', ',"names":"a"}',
                ',"replace":1}', ',"x":1}', ',"n\\u0061mes":[1]}', ' "names":[]}', ",names:[]}",
                ',"payload":[{"a":[}]}', ',"payload":[{"a":1]}]}', ',"labels":[0]//}',
            )
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_in_one_line(text, cases):
    cases.add()
    with pytest.raises(BodyError) as caught:
        read(text.encode())
    assert "\n" not in str(caught.value)
