import hashlib
import io

import pytest

from hashcade.data._files import md5_of, read_checked
from hashcade.errors import DataError

CONTENT = bytes(range(256)) * 12_000  # three megabytes: more than is read ahead
MD5 = hashlib.md5(CONTENT).hexdigest()


def first_byte(stream):
    return stream.read(1)


def fails(stream):
    stream.read(1)
    raise DataError("of no known kind")


def test_the_checksum_is_of_the_whole_file_however_little_is_used():
    assert read_checked(io.BytesIO(CONTENT), first_byte, name="x", md5=MD5) == b"\0"
    with pytest.raises(DataError, match=r"^x: md5 is \w{32}, the official file has"):
        read_checked(io.BytesIO(CONTENT[:-1]), first_byte, name="x", md5=MD5)


def test_a_wrong_checksum_is_said_before_what_follows_from_it():
    with pytest.raises(DataError, match="md5 is"):
        read_checked(io.BytesIO(CONTENT[1:]), fails, name="x", md5=MD5)
    for md5 in (MD5, None):
        with pytest.raises(DataError, match="of no known kind"):
            read_checked(io.BytesIO(CONTENT), fails, name="x", md5=md5)


def test_the_checksum_of_a_file(tmp_path):
    (tmp_path / "a").write_bytes(CONTENT)
    assert md5_of(tmp_path / "a") == MD5
