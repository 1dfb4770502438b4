"""Files as a stranger may write them: anything in them, and every checksum right."""

import json
import zlib

import numpy as np

HEAD = b'{"checksum": "'


def manifest_of(directory):
    """The manifest of an index, to be changed at will."""
    body = json.loads((directory / "manifest.json").read_bytes())
    del body["checksum"]
    return body


def write_manifest(directory, body):
    """Write a manifest with a checksum that is right."""
    text = json.dumps(body, indent=1).encode()
    rest = b'", ' + text[1:].lstrip() + b"\n"
    data = HEAD + b"%08x" % zlib.crc32(rest) + rest
    (directory / "manifest.json").write_bytes(data)


def arrays_of(directory, record):
    """The sections of a segment by name, as arrays that can be written to."""
    data = (directory / record["file"]).read_bytes()
    arrays = {}
    for name, section in record["sections"].items():
        count = int(np.prod(section["shape"], dtype=np.int64))
        array = np.frombuffer(data, section["dtype"], count, section["offset"])
        arrays[name] = array.reshape(section["shape"]).copy()
    return arrays


def write_arrays(directory, record, arrays):
    """Write the sections of a segment, and bring its checksums and sizes up to date."""
    offsets = arrays["offsets"]
    n = len(arrays["ids"])
    blocks = []
    for start, stop in np.clip(np.stack([offsets[:-1], offsets[1:]], 1), 0, n).tolist():
        crc = 0
        for name in ("ids", "items", "labels", "vectors", "codes", "code_bounds"):
            if name in arrays:
                crc = zlib.crc32(np.ascontiguousarray(arrays[name][start:stop]).tobytes(), crc)
        blocks.append(crc)
    arrays["blocks"] = np.array(blocks, "<u4")
    content, at = b"", 0
    for name, array in arrays.items():
        data = array.tobytes()
        data += bytes(-len(data) % 64)
        record["sections"][name] = {
            "offset": at, "bytes": len(data), "dtype": array.dtype.str,
            "shape": list(array.shape), "crc32": zlib.crc32(data),
        }  # fmt: skip
        content += data
        at += len(data)
    (directory / record["file"]).write_bytes(content)
    record["bytes"] = len(content)


def edit(directory, change, segment=0):
    """Change arrays and record of a segment, ``change(arrays, record, manifest)``."""
    body = manifest_of(directory)
    record = body["segments"][segment]
    arrays = arrays_of(directory, record)
    change(arrays, record, body)
    write_arrays(directory, record, arrays)
    write_manifest(directory, body)


def text_checksum(number, words):
    """Checksum of an item in a payload file, in the words of ``store/payload_file.py``."""
    check = number * 0x9E3779B97F4A7C15 % 2**64 ^ len(words)
    for word in words:
        check = (check ^ word) * 0xD6E8FEB86659FD93 % 2**64
        check ^= check >> 32
    return check - 2**64 * (check >= 2**63)
