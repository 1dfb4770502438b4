import hashlib
import io
import tarfile

import pytest

from experiments.datasets.files import md5_of, read_checked, unpack
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


def test_a_wrong_checksum_is_reported_first():
    with pytest.raises(DataError, match="md5 is"):
        read_checked(io.BytesIO(CONTENT[1:]), fails, name="x", md5=MD5)
    for md5 in (MD5, None):
        with pytest.raises(DataError, match="of no known kind"):
            read_checked(io.BytesIO(CONTENT), fails, name="x", md5=md5)


def test_the_checksum_of_a_file(tmp_path):
    (tmp_path / "a").write_bytes(CONTENT)
    assert md5_of(tmp_path / "a") == MD5


# -- archives --------------------------------------------------------------------------------------


def archive_of(path, *members):
    """A tar archive of (name, content) pairs; instead of content a member may have a type."""
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members:
            member = tarfile.TarInfo(name)
            if content in (tarfile.DIRTYPE, tarfile.SYMTYPE):
                member.type, member.linkname = content, "/etc/hostname"
                tar.addfile(member)
            else:
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return path


def test_an_archive_is_unpacked_without_links(tmp_path):
    archive = archive_of(tmp_path / "a.tgz", ("set", tarfile.DIRTYPE), ("set/data", CONTENT),
                         ("set/deep/names", b"a"), ("set/link", tarfile.SYMTYPE))  # fmt: skip
    unpack(archive, tmp_path / "out")
    files = sorted(str(f.relative_to(tmp_path / "out")) for f in (tmp_path / "out").rglob("*"))
    assert files == ["set", "set/data", "set/deep", "set/deep/names"]
    assert (tmp_path / "out" / "set" / "data").read_bytes() == CONTENT


@pytest.mark.parametrize("name", ["../outside", "/outside", "set/../../outside"])
def test_a_path_out_of_the_archive_is_refused_and_leaves_nothing(tmp_path, name):
    archive = archive_of(tmp_path / "a.tgz", ("set/data", b"x"), (name, b"bad"))
    with pytest.raises(DataError, match="leads out of the archive"):
        unpack(archive, tmp_path / "deep" / "out")
    assert sorted(f.name for f in tmp_path.rglob("*") if f.is_file()) == ["a.tgz"]


def test_a_damaged_archive_leaves_nothing(tmp_path):
    archive = archive_of(tmp_path / "a.tgz", ("set/data", CONTENT))
    archive.write_bytes(archive.read_bytes()[:200])
    with pytest.raises(DataError, match="cannot be unpacked"):
        unpack(archive, tmp_path / "out")
    assert [f.name for f in tmp_path.iterdir()] == ["a.tgz"]
