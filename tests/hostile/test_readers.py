"""Files of strangers that are no files, expand without end, or have names that give orders."""

import io
import json
import os
import shutil
import socket
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from hashcade import DataError, Hasher, HashIndex, HashTable, StorageError
from hashcade.data import (
    IMAGE_FORMATS,
    list_image_folder,
    load,
    load_image_folder,
    load_items,
    load_npz,
    read_image,
    read_npy,
    read_npz,
)
from tests.hostile.child import in_child
from tests.store.factories import make_table

MODEL = Path(__file__).parents[1] / "learn" / "golden" / "model"


def refused(function, *arguments):
    """The error of a call, which must come at once."""
    try:
        function(*arguments)
    except (StorageError, DataError) as error:
        return str(error)
    return None


def put_in_place(path, kind):
    """Something that is no file, in the place of one."""
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        here = os.getcwd()
        os.chdir(path.parent)  # names of sockets are short
        try:
            with socket.socket(socket.AF_UNIX) as server:
                server.bind(path.name)
        finally:
            os.chdir(here)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()


def table_with_model(path):
    make_table(path)
    shutil.copytree(MODEL, path / "model")
    return path


@pytest.mark.promise("L", "pipe, device, socket or directory in the place of a file")
@pytest.mark.parametrize("kind", ["pipe", "device", "socket", "directory"])
def test_only_regular_files_are_opened(tmp_path, kind, cases):
    table = table_with_model(tmp_path / "table")
    files = [p.relative_to(table) for p in table.rglob("*") if p.is_file() and p.name != "lock"]
    assert len(files) == 5  # database, manifest and segment, config and weights
    for number, name in enumerate(files):
        copy = tmp_path / f"copy{number}"
        shutil.copytree(table, copy)
        put_in_place(copy / name, kind)
        outcome, said = in_child(refused, HashTable.load, copy, seconds=30, more_memory=1 << 30)
        assert (outcome, bool(said)) == ("done", True), (name, outcome, said)
        cases.add()
    for suffix, reader in {
        ".npy": load_items, ".npz": load_items, ".parquet": load_items, ".png": read_image,
        "_labels.txt": lambda path: load(tmp_path / "x.npy", labels=path),
    }.items():  # fmt: skip
        np.save(tmp_path / "x.npy", np.zeros((3, 2)))
        path = tmp_path / f"data-{kind}{suffix}"
        put_in_place(path, kind)
        outcome, said = in_child(refused, reader, path, seconds=30, more_memory=1 << 30)
        assert (outcome, bool(said)) == ("done", True), (suffix, outcome, said)
        cases.add()


@pytest.mark.promise("L", "links in a table that lead out of it")
def test_links_in_a_table_are_refused(tmp_path, cases):
    """What is written to must be the table's own; a link to a whole table is a name for it."""
    table = make_table(tmp_path / "table")
    (tmp_path / "name").symlink_to(table)
    HashTable.load(tmp_path / "name").close()
    for name in ("items.db", "index", "index/manifest.json"):
        copy = tmp_path / name.replace("/", "-")
        shutil.copytree(table, copy)
        elsewhere = tmp_path / f"elsewhere-{copy.name}"
        os.rename(copy / name, elsewhere)
        (copy / name).symlink_to(elsewhere)
        with pytest.raises(StorageError, match="link"):
            HashTable.load(copy)
        cases.add()
    (table / "index" / "lock").unlink()
    (table / "index" / "lock").symlink_to(tmp_path / "made elsewhere")
    with pytest.raises(StorageError):
        HashTable.open(table)
    assert not (tmp_path / "made elsewhere").exists()


# -- models ----


def with_config(folder, change):
    shutil.copytree(MODEL, folder)
    config = json.loads((folder / "config.json").read_text())
    change(config["resolved"], config)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def setting(*path_and_value):
    *path, name, value = path_and_value

    def change(resolved, config):
        place = resolved
        for key in path:
            place = place[key]
        place[name] = value

    return change


def image_model(resolved, config):
    """An image network, which torch would make room for before it sees the weights."""
    resolved |= {"item_shape": [40000, 40000, 3], "backbone": "nin", "embedding_size": 10**6}


def wide_image_model(resolved, config):
    resolved |= {"item_shape": [32, 32, 3], "backbone": "nin", "hidden_size": 10**9}


def photos_of_any_size(resolved, config):
    resolved["features"] = {
        "name": "efficientnet-lite0", "sha256": "", "image_size": [10**6, 10**6], "pixels": "raw",
        "size": resolved["item_shape"][0],
    }  # fmt: skip


def class_twice(resolved, config):
    config["classes"] = [config["classes"][0]] * len(config["classes"])


def one_class_more(resolved, config):
    config["classes"].append(10**6)


CONFIGS = {
    "width": setting("shape", "width", 10**9), "depth": setting("shape", "depth", 10**9),
    "no depth": setting("shape", "depth", 0), "item_shape": setting("item_shape", [10**12]),
    "item_shape of none": setting("item_shape", []), "hidden_size": setting("hidden_size", 10**12),
    "hidden_size negative": setting("hidden_size", -1), "n_codes": setting("n_codes", 10**12),
    "point_size": setting("point_size", 10**12), "shortlist 0": setting("shortlist", 0),
    "shortlist negative": setting("shortlist", -(10**9)), "rerank": setting("rerank", "x"),
    "image model": image_model,
    "hidden layer of an image model": wide_image_model, "photos": photos_of_any_size,
    "class twice": class_twice, "one class more": one_class_more,
    "text for a number": setting("hidden_size", "16"),
}  # fmt: skip


def ask_model(path):
    hasher = Hasher.load(path)
    hasher.encode(np.ones((2, *hasher.item_shape), np.float32), n_probe=3)


@pytest.mark.promise("L", "config.json asks for memory that the weights do not have")
@pytest.mark.parametrize("attack", CONFIGS)
def test_a_config_chooses_no_memory(tmp_path, attack, cases):
    import torch  # noqa: F401  loaded before the limit

    ask_model(MODEL)
    folder = with_config(tmp_path / "model", CONFIGS[attack])
    outcome, said = in_child(refused, ask_model, folder, seconds=30, more_memory=512 << 20)
    assert outcome == "done", (outcome, said)
    assert said
    cases.add()


# -- bombs ----


def bomb(path, n_bytes):
    """Zeros in an ``.npz`` file: a thousandth of their size."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f4", "fortran_order": False, "shape": (n_bytes // 400, 100)}
    )
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("X.npy", "w", force_zip64=True) as file,
    ):
        file.write(header.getvalue())
        for _ in range(n_bytes >> 20):
            file.write(bytes(1 << 20))
    return path


@pytest.mark.promise("L", "an .npz or Parquet file of 1 MB that expands to gigabytes")
def test_a_small_npz_does_not_expand_to_gigabytes(tmp_path, monkeypatch, cases):
    path = bomb(tmp_path / "bomb.npz", 400 << 20)
    assert path.stat().st_size < 1 << 20
    for reader in (load_items, load_npz, read_npz):
        with pytest.raises(DataError, match=r"expands to 4\d\d,\d\d\d,\d\d\d, must be") as caught:
            reader(path)
        assert "HASHCADE_MAX_EXPANDED=" in caught.value.hint
        cases.add()
    monkeypatch.setenv("HASHCADE_MAX_EXPANDED", str(1 << 30))
    assert read_npz(path)["X"].shape[1] == 100


@pytest.mark.promise("L", "an .npz or Parquet file of 1 MB that expands to gigabytes")
def test_a_header_chooses_no_memory(tmp_path, cases):
    for shape in ((10**9, 100), (2**40, 2**40), (2**62, 4)):
        content = io.BytesIO()
        header = {"descr": "<f4", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(content, header)
        content.write(bytes(400))
        npy, npz = tmp_path / "a.npy", tmp_path / "a.npz"
        npy.write_bytes(content.getvalue())
        with zipfile.ZipFile(npz, "w") as archive:
            archive.writestr("X.npy", content.getvalue())
        for reader, path in ((read_npy, npy), (read_npz, npz), (load_items, npz)):
            with pytest.raises(DataError, match=r"takes \d+ bytes, there are"):
                reader(path)
            cases.add()


@pytest.mark.promise("L", "an .npz or Parquet file of 1 MB that expands to gigabytes")
def test_a_small_parquet_file_does_not_expand_to_gigabytes(tmp_path, cases):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "bomb.parquet"
    values = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(1 << 20, np.float32)), 1 << 10)
    batch = pa.table({"embedding": values})
    with parquet.ParquetWriter(path, batch.schema, compression="zstd") as writer:
        for _ in range(100):
            writer.write_table(batch)
    assert path.stat().st_size < 1 << 20
    outcome, said = in_child(refused, load_items, path, seconds=60)
    assert outcome == "done"
    assert "expands to 4" in said
    cases.add()


# -- images ----


@pytest.mark.promise("M1", "PostScript under the name .png, in the library and the service")
def test_there_is_one_list_of_image_formats(tmp_path, monkeypatch, cases):
    """No PostScript, which Pillow hands to another program; whatever its name."""
    from PIL import EpsImagePlugin, Image

    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", None)  # would fail the call
    file = io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, "EPS")
    assert Image.open(io.BytesIO(file.getvalue())).format == "EPS"
    folder = tmp_path / "photos" / "class"
    folder.mkdir(parents=True)
    (folder / "a.png").write_bytes(file.getvalue())
    Image.new("RGB", (8, 8)).save(folder / "b.png")
    with pytest.raises(DataError, match="cannot be read as BMP"):
        load_image_folder(tmp_path / "photos")
    for source in (folder / "a.png", file.getvalue(), io.BytesIO(file.getvalue())):
        with pytest.raises(DataError, match="cannot be read as BMP"):
            read_image(source)
        cases.add()
    assert set(IMAGE_FORMATS) == {"BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP"}


@pytest.mark.promise("M1", "every place that decodes an image names the formats it takes")
def test_no_other_code_decodes_images(cases):
    """``Image.open`` without a list would take them all."""
    import ast

    import hashcade

    calls = 0
    for file in Path(hashcade.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            is_open = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            if is_open and node.func.attr == "open" and ast.unparse(node.func.value) in (
                "pillow", "Image", "image_module", "PIL.Image",
            ):  # fmt: skip
                calls += 1
                assert any(keyword.arg == "formats" for keyword in node.keywords), file
    assert calls == 2
    cases.add(calls)


@pytest.mark.promise("M7", "16-bit grey PNG: the service sees what the build saw")
def test_sixteen_bits_of_grey_are_scaled_everywhere(tmp_path, cases):
    """Files and bytes, which the service gets, go through one decoder."""
    from PIL import Image

    grey = (np.arange(64, dtype=np.uint16) * 1000).reshape(8, 8)
    Image.fromarray(grey).save(tmp_path / "a.png")
    expected = np.repeat((grey >> 8).astype(np.uint8)[:, :, None], 3, axis=2)
    for source in (tmp_path / "a.png", (tmp_path / "a.png").read_bytes()):
        np.testing.assert_array_equal(read_image(source), expected)
        cases.add()


@pytest.mark.promise("M1", "an image of a few bytes with a billion pixels")
def test_pixels_are_counted_before_they_are_decoded(tmp_path, cases):
    import struct
    import zlib

    def chunk(kind, data):
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 100_000, 100_000, 8, 2, 0, 0, 0))
    data = b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(bytes(1000)))
    with pytest.raises(DataError, match="pixels"):
        read_image(data + chunk(b"IEND", b""))
    cases.add()


# -- names ----


@pytest.mark.promise("M9", "a file or folder whose name is not UTF-8")
def test_a_name_that_is_not_text_is_named_at_once(tmp_path, cases):
    from PIL import Image

    root = tmp_path / "photos"
    bad = os.fsencode(root) + b"/cat/\xff.png"
    (root / "cat").mkdir(parents=True)
    Image.new("RGB", (4, 4)).save(root / "cat" / "good.png")
    shutil.copy(root / "cat" / "good.png", bad)
    for reader in (load_image_folder, load_items):
        with pytest.raises(DataError, match=r"udcff.png' has a name that is not UTF-8"):
            reader(root)
        items = reader(root, on_error="skip")
        assert items.names == ("cat/good.png",)
        assert len(items) == len(items.names) == 1
        assert len(items.skipped) == 1
        cases.add()
    os.mkdir(os.fsencode(root) + b"/dog\xff")
    shutil.copy(root / "cat" / "good.png", os.fsencode(root) + b"/dog\xff/1.png")
    with pytest.raises(DataError, match="not UTF-8"):
        list_image_folder(root)
    cases.add()


NASTY = "a\x1b]0;owned\x07\x1b[2J\x9b31m\u202eevil\r\nb\x7f"


@pytest.mark.promise("L", "terminal escapes in names, labels and payload")
def test_escapes_are_shown_and_not_obeyed(tmp_path, cases):
    """Every command that prints what a table or a folder holds."""
    from hashcade.store import Catalog

    table = HashTable.from_parts(Hasher.load(MODEL), _empty(), Catalog())
    X = np.zeros((3, table.hasher.item_shape[0]), np.float32)
    encoded = table.encode(X)
    table.add(
        encoded, ids=[NASTY, NASTY + "2", NASTY + "3"], labels=[NASTY] * 3, names=[NASTY] * 3,
        payload=[{NASTY: NASTY}] * 3, new_labels=True,
    )  # fmt: skip
    table.save(tmp_path / "table")
    table.close()
    folder = tmp_path / NASTY.replace("/", "-")
    folder.mkdir()
    np.save(folder / "q.npy", X)
    broken = tmp_path / ("broken" + NASTY)
    shutil.copytree(tmp_path / "table", broken)
    (broken / "index" / "manifest.json").write_text("x")
    commands = [
        ("inspect", tmp_path / "table"),
        ("inspect", tmp_path / "table", "--json"),
        ("search", tmp_path / "table", folder / "q.npy"),
        ("search", tmp_path / "table", folder / "q.npy", "--json"),
        ("verify", broken),
        ("verify", broken, "--json"),
        ("remove", tmp_path / "table", NASTY + "7"),
        ("inspect", folder),
        (NASTY,),
    ]
    script = "import sys\nfrom hashcade.cli import main\nsys.exit(main())"
    printed = 0
    for arguments in commands:
        done = subprocess.run(
            [sys.executable, "-c", script, *map(str, arguments)], capture_output=True, check=False,
            timeout=120,
        )  # fmt: skip
        text = (done.stdout + done.stderr).decode()
        odd = {c for c in text if not c.isprintable() and c != "\n"}
        assert not odd, (arguments, odd, text[:500])
        printed += "owned" in text
        if "--json" in arguments:
            json.loads(done.stdout)
        cases.add()
    assert printed >= 8


def _empty():
    hasher = Hasher.load(MODEL)
    return HashIndex.build(
        np.empty((0, hasher.shape_.sparsity), int), np.empty((0, hasher.config_.vector_size)),
        labels=[], shape=hasher.shape_,
    )  # fmt: skip
