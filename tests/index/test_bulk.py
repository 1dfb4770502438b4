"""Checksums of parts put together."""

import zlib

from hypothesis import given
from hypothesis import strategies as st

from hashcade.index.checksums import crc32_combine


@given(st.binary(max_size=3000), st.binary(max_size=3000))
def test_the_checksum_of_two_parts(first, second):
    combined = crc32_combine(zlib.crc32(first), zlib.crc32(second), len(second))
    assert combined == zlib.crc32(first + second)
