"""Common mistakes: each is answered by one line that says what is wrong and what to do."""

import json
import os
import shutil
import socket
import textwrap
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from worlds_of_cli import make_embeddings, make_photos, make_query

MISTAKES = {}


def mistake(*parts):
    """Register a mistake: a function that sets it up and gives the command; what is said."""

    def register(function):
        MISTAKES[function.__name__] = (function, parts)
        return function

    return register


def save(name, X, y=None):
    np.save(f"{name}.npy", X)
    if y is not None:
        np.save(f"{name}_labels.npy", y)


# -- the command itself ----------------------------------------------------------------------


@mistake("No such command 'serch'", "Did you mean 'search'", "see: hashcade --help")
def misspelt_verb(made):
    return ["serch", made.index, "query.jpg"]


@mistake("No such option: --widht", "see: hashcade train --help")
def misspelt_option(made):
    return ["train", made.data, "-o", "model", "--widht", "8"]


@mistake("Missing option '--output'", "see: hashcade train --help")
def no_output(made):
    return ["train", made.data]


@mistake("Missing argument 'QUERY'", "see: hashcade search --help")
def no_query(made):
    return ["search", made.index]


@mistake("Invalid value for '--depth'", "valid integer", "see: hashcade train --help")
def word_for_a_number(made):
    return ["train", made.data, "-o", "model", "--depth", "two"]


@mistake("DATA is missing: ", "alone is no file made by hashcade encode")
def build_without_data(made):
    return ["build", made.model, "-o", "index"]


@mistake("--set rates: no such setting; there are width, depth, ")
def unknown_setting(made):
    return ["train", made.data, "-o", "model", "--set", "rates=0.1"]


@mistake("sparsity=5 must be <= width=4")
def more_buckets_per_item_than_slots(made):
    return ["train", made.data, "-o", "model", "--width", "4", "--sparsity", "5"]


@mistake("y has 6 classes, must be <= n_buckets = width**depth = 2**2 = 4")
def more_classes_than_buckets(made):
    return ["train", made.data, "-o", "model", "--width", "2"]


@mistake("--image-size=huge must be one number or HEIGHTxWIDTH, 8 at least")
def image_size_in_words(made):
    return ["train", made.data, "-o", "model", "--image-size", "huge"]


@mistake("--backbone=nin is for images, ", "vectors.npy has embeddings")
def network_for_embeddings(made):
    return ["train", made.data, "-o", "model", "--backbone", "nin"]


@mistake("device='abacus' cannot be used")
def unknown_device(made):
    return ["train", made.data, "-o", "model", "--device", "abacus"]


# -- data ------------------------------------------------------------------------------------


@mistake("nowhere does not exist; check the path")
def missing_file(made):
    return ["train", "nowhere", "-o", "model"]


@mistake("empty: of no known kind; looked for", "one folder of images per class")
def empty_folder(made):
    os.mkdir("empty")
    return ["train", "empty", "-o", "model"]


@mistake("no images in moss; looked for files ending in .bmp")
def class_without_images(made):
    make_photos_here()
    os.mkdir("photos/moss")
    return ["train", "photos", "-o", "model"]


@mistake(
    "photos/leaf/01.png: not an image that can be read",
    "; remove the file, or pass it over with --skip-bad",
)
def image_that_is_no_image(made):
    make_photos_here()
    with open("photos/leaf/01.png", "w") as file:
        file.write("I am text.")
    return ["train", "photos", "-o", "model"]


@mistake("photos: has the parts test, train; say which with --split")
def folders_of_parts(made):
    make_photos_here("photos/train")
    make_photos_here("photos/test")
    return ["train", "photos", "-o", "model"]


@mistake("notes.txt: of no known kind; looked for a name ending in .npy .npz .parquet .pq")
def file_of_another_kind(made):
    with open("notes.txt", "w") as file:
        file.write("nothing")
    return ["train", "notes.txt", "-o", "model"]


@mistake("looked for alone_labels.npy and alone_labels.txt", "; or name a file with --labels")
def no_labels(made):
    save("alone", made.X)
    return ["train", "alone.npy", "-o", "model"]


@mistake("few.npy: there are 300 items and 299 labels, must be as many")
def labels_missing_at_the_end(made):
    save("few", made.X, made.y[:-1])
    return ["train", "few.npy", "-o", "model"]


@mistake("items has NaN or infinite values in row 17; remove or mend these rows")
def not_a_number(made):
    X = made.X.copy()
    X[17, 3] = np.nan
    save("holes", X, made.y)
    return ["train", "holes.npy", "-o", "model"]


@mistake("y has one class only ('same'), must have at least 2; give items of more classes")
def one_class_only(made):
    save("same", made.X, np.array(["same"] * len(made.X)))
    return ["train", "same.npy", "-o", "model"]


@mistake("holds pickled objects, or is no file of numpy's")
def pickled_objects(made):
    np.save("objects.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    np.save("objects_labels.npy", np.array([0]))
    return ["train", "objects.npy", "-o", "model"]


@mistake("cut.npy: damaged, or no file of numpy's")
def half_a_file(made):
    save("cut", made.X, made.y)
    os.truncate("cut.npy", 1000)
    return ["train", "cut.npy", "-o", "model"]


@mistake("has the keys a, b; looked for X and y", "; name others with --items, --labels")
def other_keys(made):
    np.savez("pair.npz", a=made.X, b=made.y)
    return ["train", "pair.npz", "-o", "model"]


@mistake("has the columns clip, kind; looked for embedding; name another with --items")
def other_columns(made):
    table = pyarrow.table({"clip": list(made.X), "kind": made.y})
    pyarrow.parquet.write_table(table, "pairs.parquet")
    return ["train", "pairs.parquet", "-o", "model"]


@mistake("--labels=kind is for arrays and Parquet, photos is neither")
def labels_for_a_folder(made):
    make_photos_here()
    return ["train", "photos", "--labels", "kind", "-o", "model"]


# -- experiments and the service ----------------------------------------------------------------


@mistake("experiment='cifar10' must be one of cifar100, ")
def unknown_experiment(made):
    return ["reproduce", "cifar10", "--preset", "smoke"]


@mistake("cannot listen on 127.0.0.1 port ", "choose another with --port")
def port_taken(made):
    made.socket = socket.create_server(("127.0.0.1", 0))
    return ["serve", made.index, "--port", made.socket.getsockname()[1]]


@mistake("host=0.0.0.0 can be reached from other machines, so a token is needed: set")
def no_token_for_other_machines(made):
    return ["serve", made.index, "--host", "0.0.0.0", "--port", "0"]


@mistake("holds no index", "; make an index with: hashcade build MODEL DATA -o INDEX")
def serve_a_model(made):
    return ["serve", made.model]


@mistake("built with ", "model, which is gone; say where: hashcade serve MODEL INDEX", "--no-model")
def serve_without_the_model_that_is_gone(made):
    return ["serve", *model_is_gone(made)[1:2], "--port", "0"]


@mistake("was built with another model: ", "; give the right one with hashcade serve MODEL INDEX")
def serve_with_another_model(made):
    *_, other = index_of_another_model(made)
    return ["serve", other, made.index, "--port", "0"]


@mistake("--no-model and the model ", " were given, must be one of them")
def serve_with_and_without_a_model(made):
    return ["serve", made.model, made.index, "--no-model", "--port", "0"]


# -- models and indexes ----------------------------------------------------------------------


@mistake("taken exists; replace it with --force, or choose another place")
def output_exists(made):
    shutil.copytree(made.model, "taken")
    return ["train", made.data, "-o", "taken"]


@mistake("codes.npz exists; replace it with --force, or choose another place")
def codes_exist(made):
    Path("codes.npz").write_bytes(b"mine")
    return ["encode", made.model, "no-such-data", "-o", "codes.npz"]  # refused before data are read


@mistake("mine exists and is not a model; choose another place")
def output_is_something_else(made):
    os.mkdir("mine")
    with open("mine/diary.txt", "w") as file:
        file.write("private")
    return ["train", made.data, "-o", "mine", "--force"]


@mistake("Not a directory")
def output_below_a_file(made):
    with open("file", "w") as file:
        file.write("x")
    return ["build", made.model, made.data, "-o", "file/index"]


@mistake(" is no hashcade model: config.json is missing; make a model with: hashcade train")
def no_model(made):
    os.mkdir("nothing")
    return ["build", "nothing", made.data, "-o", "index"]


@mistake("nothing holds no index", "; make an index with: hashcade build MODEL DATA -o INDEX")
def no_index(made):
    os.mkdir("nothing")
    save("query", made.X[:1])
    return ["search", "nothing", "query.npy"]


@mistake("has embeddings of 7 numbers, ", "was trained on embeddings of 16 numbers; give data of")
def wrong_dimension(made):
    save("short", made.X[:2, :7])
    return ["search", made.index, "short.npy"]


@mistake("has images of ", "was trained on embeddings of 16 numbers")
def image_for_embeddings(made):
    make_query("query.jpg")
    return ["search", made.index, "query.jpg"]


@mistake("was built with another model: it has the fingerprint ", "other has ", "--model")
def index_of_another_model(made):
    shutil.copytree(made.model, "other")
    config = json.loads(Path("other/config.json").read_text())
    config["plan"]["hidden_size"] += 1  # another network: another model
    with open("other/config.json", "w") as file:
        json.dump(config, file)
    save("query", made.X[:1])
    return ["search", made.index, "query.npy", "--model", "other"]


@mistake("was built with ", "model, which is gone; say where: --model")
def model_is_gone(made):
    shutil.copytree(made.index, "index")
    origin = json.loads(Path("index/origin.json").read_text())
    origin["model"] = {"relative": "../gone/model", "absolute": "/gone/model"}
    with open("index/origin.json", "w") as file:
        json.dump(origin, file)
    save("query", made.X[:1])
    return ["search", "index", "query.npy"]


@mistake("index/segment-", "; make it again, or restore a copy")
def damaged_index(made):
    shutil.copytree(made.index, "index")
    shutil.copytree(made.model, "model")
    (segment,) = (name for name in os.listdir("index") if name.startswith("segment-"))
    with open(f"index/{segment}", "r+b") as file:
        content = bytearray(file.read())
        file.seek(0)
        file.write(bytes(byte ^ 1 for byte in content[:20000]) + content[20000:])
    save("query", made.X)
    return ["search", "index", "query.npy"]


@mistake("model.safetensors is damaged", "; make it again, or restore a copy")
def damaged_model(made):
    shutil.copytree(made.model, "model")
    with open("model/model.safetensors", "ab") as file:
        file.write(b"x")
    return ["build", "model", made.data, "-o", "index"]


def make_photos_here(folder="photos"):
    make_photos(Path(folder), per_class=3)


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_answered_by_one_line(name, command, made, here):
    set_up, parts = MISTAKES[name]
    arguments = set_up(made)
    before = sorted(path for path in here.rglob("*"))
    done = command(*arguments)
    if hasattr(made, "socket"):
        made.__dict__.pop("socket").close()
    assert done.code == 2
    assert done.out == ""
    lines = done.err.splitlines()
    message = lines[-1]
    assert message.startswith("hashcade: ")
    # A line before it may say what was read; the error itself is one line.
    assert [line for line in lines if line.startswith("hashcade: ")] == [message]
    at = 0
    for part in parts:
        assert part in message[at:], message
        at = message.index(part, at) + len(part)
    assert sorted(path for path in here.rglob("*")) == before  # nothing is left behind


def test_there_are_at_least_twenty():
    assert len(MISTAKES) >= 20


# -- what needs a process of its own ---------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "extra", "file"),
    [("torch", "train", "few.npz"), ("PIL", "images", "photos"), ("pyarrow", "parquet", "f.pq")],
)
def test_a_missing_extra_is_one_line_with_the_command_to_run(installed, module, extra, file):
    X, y = make_embeddings(40)
    np.savez(installed.cwd / "few.npz", X=X, y=y)
    make_photos(installed.cwd / "photos", per_class=2)
    (installed.cwd / "f.pq").write_bytes(b"PAR1")
    shadows = installed.home / "shadows"
    (shadows / module).mkdir(parents=True)
    # Stands before the real package, and is missed as if it were not there.
    (shadows / module / "__init__.py").write_text(
        f"raise ModuleNotFoundError('No module named {module}', name={module!r})"
    )
    done = installed("train", file, "-o", "model", code=2, PYTHONPATH=str(shadows))
    assert done.stderr == (
        f"hashcade: {module} is not installed; run: pip install 'hashcade[{extra}]'\n"
    )


def test_all_that_is_missing_is_named_at_once(command, here, monkeypatch):
    make_photos_here()
    monkeypatch.setattr("hashcade._extras.find_spec", lambda name: None)
    assert command("train", "photos", "-o", "model").err == (
        "hashcade: torch and PIL are not installed; run: pip install 'hashcade[train,images]'\n"
    )
    assert "pip install 'hashcade[demo]'" in command("demo").err


@pytest.mark.parametrize("verb", ["train", "build"])
def test_a_full_disk_leaves_nothing_behind(installed, made, verb):
    shadows = installed.home / "shadows"
    shadows.mkdir()
    (shadows / "sitecustomize.py").write_text(
        textwrap.dedent("""
            import errno, os
            def full(handle):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync = full
        """)
    )
    arguments = ["train", made.data, "--steps", 2] if verb == "train" else None
    arguments = arguments or ["build", made.model, made.data]
    done = installed(*arguments, "--quiet", "-o", "out", code=2, PYTHONPATH=str(shadows))
    assert "No space left on device; make room, or write elsewhere with -o" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert list(installed.cwd.iterdir()) == []


def test_a_mistake_inside_is_told_from_one_outside(command, made, monkeypatch):
    def broken(*arguments, **options):
        raise ZeroDivisionError("oops")

    monkeypatch.setattr("hashcade.cli._inspect._inspect_index", broken)
    done = command("inspect", made.index)
    assert done.code == 1
    assert done.err == (
        "hashcade: a mistake inside hashcade (ZeroDivisionError: oops); HASHCADE_DEBUG=1 shows "
        "where\n"
    )
    monkeypatch.setenv("HASHCADE_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        command("inspect", made.index)
