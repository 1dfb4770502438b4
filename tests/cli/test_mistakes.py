"""Common mistakes: each is reported in one line that says what is wrong and what to do."""

import os
import shutil
import socket
import textwrap
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from cli_factories import make_embeddings, make_photos, make_query

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
def misspelt_verb(sample):
    return ["serch", sample.table, "query.jpg"]


@mistake("No such option: --widht", "see: hashcade train --help")
def misspelt_option(sample):
    return ["train", sample.data, "-o", "model", "--widht", "8"]


@mistake("Missing option '--output'", "see: hashcade train --help")
def no_output(sample):
    return ["train", sample.data]


@mistake("Missing argument 'QUERY'", "see: hashcade search --help")
def no_query(sample):
    return ["search", sample.table]


@mistake("Invalid value for '--depth'", "valid integer", "see: hashcade train --help")
def word_for_a_number(sample):
    return ["train", sample.data, "-o", "model", "--depth", "two"]


@mistake("Missing argument 'DATA...'", "see: hashcade build --help")
def build_without_data(sample):
    return ["build", sample.model, "-o", "table"]


@mistake("--set rates=0.1: unknown setting; use NAME=VALUE with one of width, depth, ")
def unknown_setting(sample):
    return ["train", sample.data, "-o", "model", "--set", "rates=0.1"]


@mistake("sparsity=5 must be <= width=4")
def more_buckets_per_item_than_slots(sample):
    return ["train", sample.data, "-o", "model", "--width", "4", "--sparsity", "5"]


@mistake("y has 6 classes, must be <= n_buckets = width**depth = 2**2 = 4")
def more_classes_than_buckets(sample):
    return ["train", sample.data, "-o", "model", "--width", "2"]


@mistake("--image-size=huge must be one number or HEIGHTxWIDTH, at least 8")
def image_size_in_words(sample):
    return ["train", sample.data, "-o", "model", "--image-size", "huge"]


@mistake("vectors.npy has embeddings; leave out --backbone=nin, which is for images")
def network_for_embeddings(sample):
    return ["train", sample.data, "-o", "model", "--backbone", "nin"]


@mistake("device='abacus' cannot be used")
def unknown_device(sample):
    return ["train", sample.data, "-o", "model", "--device", "abacus"]


# -- data ------------------------------------------------------------------------------------


@mistake("nowhere does not exist; check the path")
def missing_file(sample):
    return ["train", "nowhere", "-o", "model"]


@mistake("empty must be a folder of images with one sub-folder per class")
def empty_folder(sample):
    os.mkdir("empty")
    return ["train", "empty", "-o", "model"]


@mistake("no images in moss; looked for files ending in .bmp")
def class_without_images(sample):
    make_photos_here()
    os.mkdir("photos/moss")
    return ["train", "photos", "-o", "model"]


@mistake("photos/leaf/01.png cannot be read as BMP, ", "; remove it, or skip ", "(--skip-bad)")
def image_that_is_no_image(sample):
    make_photos_here()
    with open("photos/leaf/01.png", "w") as file:
        file.write("I am text.")
    return ["train", "photos", "-o", "model"]


@mistake("photos has the splits test, train; choose one with ", "(--split)")
def folders_of_parts(sample):
    make_photos_here("photos/train")
    make_photos_here("photos/test")
    return ["train", "photos", "-o", "model"]


@mistake("notes.txt is of no known kind: must be ", "a file ending in .npy .npz .parquet .pq")
def file_of_another_kind(sample):
    with open("notes.txt", "w") as file:
        file.write("nothing")
    return ["train", "notes.txt", "-o", "model"]


@mistake("there is no alone_labels.npy or alone_labels.txt beside it; name a file ", "(--labels)")
def no_labels(sample):
    save("alone", sample.X)
    return ["train", "alone.npy", "-o", "model"]


@mistake("few.npy: there are 300 items and 299 labels")
def labels_missing_at_the_end(sample):
    save("few", sample.X, sample.y[:-1])
    return ["train", "few.npy", "-o", "model"]


@mistake("holes.npy: items has NaN or values beyond float32 in row 17")
def not_a_number(sample):
    X = sample.X.copy()
    X[17, 3] = np.nan
    save("holes", X, sample.y)
    return ["train", "holes.npy", "-o", "model"]


@mistake("y has one class only ('same'), must have at least 2; give items of more classes")
def one_class_only(sample):
    save("same", sample.X, np.array(["same"] * len(sample.X)))
    return ["train", "same.npy", "-o", "model"]


@mistake("objects.npy holds pickled objects, or is not a numpy file")
def pickled_objects(sample):
    np.save("objects.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    np.save("objects_labels.npy", np.array([0]))
    return ["train", "objects.npy", "-o", "model"]


@mistake("cut.npy is damaged, or not a numpy file")
def half_a_file(sample):
    save("cut", sample.X, sample.y)
    os.truncate("cut.npy", 1000)
    return ["train", "cut.npy", "-o", "model"]


@mistake("has the keys a, b; looked for X and y", "; name others with ", "(--items, --labels)")
def other_keys(sample):
    np.savez("pair.npz", a=sample.X, b=sample.y)
    return ["train", "pair.npz", "-o", "model"]


@mistake("has the columns clip, kind; looked for embedding; name another ", "(--items)")
def other_columns(sample):
    table = pyarrow.table({"clip": list(sample.X), "kind": sample.y})
    pyarrow.parquet.write_table(table, "pairs.parquet")
    return ["train", "pairs.parquet", "-o", "model"]


@mistake("labels='kind' is for npz, parquet, npy; photos is of the kind folder")
def labels_for_a_folder(sample):
    make_photos_here()
    return ["train", "photos", "--labels", "kind", "-o", "model"]


@mistake("photos has 3 images but no sub-folders: no labels; put the images of each class into a")
def photos_without_folders(sample):
    make_photos_here()
    os.rename("photos/leaf", "flat")
    shutil.rmtree("photos")
    os.rename("flat", "photos")
    return ["fit", "photos", "-o", "table"]


@mistake("pair.npz has no key 'foo'; it has the keys a, b")
def items_that_are_not_there(sample):
    np.savez("pair.npz", a=sample.X, b=sample.y)
    return ["train", "pair.npz", "--items", "foo", "-o", "model"]


@mistake("query.jpg is one image", "; give the folder of all images, with one sub-folder per class")
def one_image_to_learn_from(sample):
    make_query("query.jpg")
    return ["fit", "query.jpg", "-o", "table"]


@mistake("--features=encoder.onnx and --from-scratch exclude each other")
def features_and_none(sample):
    make_photos_here()
    return ["fit", "photos", "--features", "encoder.onnx", "--from-scratch", "-o", "table"]


@mistake("features='resnet' must be 'efficientnet-lite0', a file ending in .onnx or a torch.nn")
def unknown_features(sample):
    make_photos_here()
    return ["fit", "photos", "--features", "resnet", "-o", "table"]


@mistake("encoder.onnx does not exist; check the path")
def features_that_are_not_there(sample):
    make_photos_here()
    return ["fit", "photos", "--features", "encoder.onnx", "-o", "table"]


@mistake("encoder.onnx cannot be read as ONNX (")
def features_that_are_no_network(sample):
    make_photos_here()
    Path("encoder.onnx").write_bytes(b"I am text.")
    return ["fit", "photos", "--features", "encoder.onnx", "-o", "table"]


@mistake("vectors.npy has embeddings; leave out --from-scratch, which is for images")
def embeddings_from_scratch(sample):
    return ["fit", sample.data, "--from-scratch", "-o", "table"]


@mistake("--base-steps=5 is for training from scratch; add --from-scratch, or leave it out")
def base_steps_for_features(sample):
    make_photos_here()
    return ["fit", "photos", "--base-steps", "5", "-o", "table"]


@mistake("--budget=soon must be a time such as 90s, 5m or 1h30m")
def budget_in_words(sample):
    return ["fit", sample.data, "--budget", "soon", "-o", "table"]


# -- the service ---------------------------------------------------------------------------------


@mistake("cannot listen on 127.0.0.1 port ", "choose another with --port")
def port_taken(sample):
    sample.socket = socket.create_server(("127.0.0.1", 0))
    return ["serve", sample.table, "--port", sample.socket.getsockname()[1]]


@mistake("host=0.0.0.0 can be reached from other machines, so a token is needed; set")
def no_token_for_other_machines(sample):
    return ["serve", sample.table, "--host", "0.0.0.0", "--port", "0"]


@mistake(" is not a hashcade table: ", "; make a table with: hashcade fit DATA -o TABLE")
def serve_a_model(sample):
    return ["serve", sample.model]


# -- models and tables -----------------------------------------------------------------------


@mistake("taken exists; replace it with --force, or choose another path")
def output_exists(sample):
    shutil.copytree(sample.model, "taken")
    return ["train", sample.data, "-o", "taken"]


@mistake("codes.npz exists; replace it with --force, or choose another path")
def codes_exist(sample):
    Path("codes.npz").write_bytes(b"mine")
    return [
        "encode",
        sample.model,
        "no-such-data",
        "-o",
        "codes.npz",
    ]  # refused before data are read


@mistake("mine exists and is not a model; choose another path")
def output_is_something_else(sample):
    os.mkdir("mine")
    with open("mine/diary.txt", "w") as file:
        file.write("private")
    return ["train", sample.data, "-o", "mine", "--force"]


@mistake("file is not a directory; choose another path")
def output_below_a_file(sample):
    with open("file", "w") as file:
        file.write("x")
    return ["build", sample.model, sample.data, "-o", "file/table"]


@mistake(" is not a hashcade model", "; make a model with: hashcade train")
def no_model(sample):
    os.mkdir("nothing")
    return ["build", "nothing", sample.data, "-o", "table"]


@mistake("nothing is not a hashcade table: ", "; make a table with: hashcade fit DATA -o TABLE")
def no_table(sample):
    os.mkdir("nothing")
    save("query", sample.X[:1])
    return ["search", "nothing", "query.npy"]


@mistake("has embeddings of 7 numbers, ", "was trained on embeddings of 16 numbers; give data of")
def wrong_dimension(sample):
    save("short", sample.X[:2, :7])
    return ["search", sample.table, "short.npy"]


@mistake("query.jpg has images, ", "was trained on embeddings of 16 numbers; give data of")
def image_for_embeddings(sample):
    make_query("query.jpg")
    return ["search", sample.table, "query.jpg"]


@mistake("photos has images, ", "model was trained on embeddings of 16 numbers; give data of")
def photos_for_a_model_of_embeddings(sample):
    make_photos_here()
    return ["build", sample.model, "photos", "-o", "table"]


@mistake("place='somewhere' must be one of 'label', 'network'")
def unknown_place(sample):
    return ["build", sample.model, sample.data, "-o", "table", "--place", "somewhere", "--quiet"]


@mistake("--database-split=train is for other items; add --database-items, or leave it out")
def split_of_no_database(sample):
    return ["evaluate", sample.table, sample.data, "--database-split", "train"]


@mistake("codes.npz was made with another model: it has the fingerprint 0123", "; give the right")
def codes_of_another_model(sample):
    codes = {"bucket_ids": [[0]], "vectors": [[0.0]], "shape": [4, 2, 1], "data": "data"}
    np.savez("codes.npz", **codes, model_fingerprint="0123")
    return ["build", sample.model, "codes.npz", "-o", "table"]


@mistake(" and ", "table have no class in common; check --labels")
def other_classes(sample):
    np.savez("other.npz", X=sample.X[:9], y=np.array(["x", "y", "z"] * 3))
    return ["evaluate", sample.table, "other.npz"]


@mistake("--no-labels and --labels=kinds.npy exclude each other")
def labels_and_none(sample):
    return ["fit", sample.data, "--no-labels", "--labels", "kinds.npy", "-o", "table"]


@mistake("metric='l1' must be one of 'euclidean', 'inner_product', 'cosine'")
def unknown_metric(sample):
    return ["build", sample.model, sample.data, "-o", "table", "--metric", "l1", "--quiet"]


@mistake("labels has 'gnu', which the table does not have", "--new-labels")
def add_an_unknown_label(sample):
    shutil.copytree(sample.table, "table")
    np.save("more.npy", sample.X[:1])
    Path("more_labels.txt").write_text("gnu\n")
    return ["add", "table", "more.npy", "--quiet"]


@mistake("id 9000 ", "not in the table")
def remove_what_is_not_there(sample):
    shutil.copytree(sample.table, "table")
    return ["remove", "table", 9000]


@mistake("table/index/segment-", " is damaged")
def damaged_index(sample):
    shutil.copytree(sample.table, "table")
    (segment,) = (name for name in os.listdir("table/index") if name.startswith("segment-"))
    with open(f"table/index/{segment}", "r+b") as file:
        content = bytearray(file.read())
        file.seek(0)
        file.write(bytes(byte ^ 1 for byte in content[:20000]) + content[20000:])
    save("query", sample.X)
    return ["search", "table", "query.npy"]


@mistake("model.safetensors is damaged", "; make it again, or restore a copy")
def damaged_model(sample):
    shutil.copytree(sample.model, "model")
    with open("model/model.safetensors", "ab") as file:
        file.write(b"x")
    return ["build", "model", sample.data, "-o", "table"]


def make_photos_here(folder="photos"):
    make_photos(Path(folder), per_class=3)


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_reported_in_one_line(name, command, sample, cwd):
    set_up, parts = MISTAKES[name]
    arguments = set_up(sample)
    before = sorted(path for path in cwd.rglob("*"))
    done = command(*arguments)
    if hasattr(sample, "socket"):
        sample.__dict__.pop("socket").close()
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
    assert sorted(path for path in cwd.rglob("*")) == before  # nothing is left behind


def test_there_are_at_least_thirty():
    assert len(MISTAKES) >= 30


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
    shadows.mkdir()
    (shadows / "sitecustomize.py").write_text(
        textwrap.dedent(f"""
            import sys
            from importlib.machinery import PathFinder
            class Without(PathFinder):
                @classmethod
                def find_spec(cls, name, path=None, target=None):
                    return None if name == {module!r} else PathFinder.find_spec(name, path, target)
            sys.meta_path[sys.meta_path.index(PathFinder)] = Without
        """)
    )
    done = installed("train", file, "-o", "model", code=2, shadows=shadows)
    assert done.stderr == (
        f"hashcade: {module} is not installed; run: pip install 'hashcade[{extra}]'\n"
    )


def test_all_that_is_missing_is_named_at_once(command, cwd, monkeypatch):
    make_photos_here()
    monkeypatch.setattr("hashcade._extras.find_spec", lambda name: None)
    assert command("train", "photos", "-o", "model").err == (
        "hashcade: torch and PIL are not installed; run: pip install 'hashcade[train,images]'\n"
    )
    assert "pip install 'hashcade[demo]'" in command("demo").err


@pytest.mark.parametrize("verb", ["fit", "build"])
def test_a_full_disk_leaves_nothing_behind(installed, sample, verb):
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
    fit, build = ["fit", sample.data, "--steps", 2], ["build", sample.model, sample.data]
    arguments = fit if verb == "fit" else build
    done = installed(*arguments, "--quiet", "-o", "out", code=2, shadows=shadows)
    assert "No space left on device; free some space, or write elsewhere" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert list(installed.cwd.iterdir()) == []


def test_an_internal_error_is_told_from_a_mistake(command, sample, monkeypatch):
    def broken(*arguments, **options):
        raise ZeroDivisionError("oops")

    monkeypatch.setattr("hashcade.cli.inspect._inspect_table", broken)
    done = command("inspect", sample.table)
    assert done.code == 1
    assert done.err == (
        "hashcade: internal error (please report it): ZeroDivisionError: oops; HASHCADE_DEBUG=1 "
        "shows where\n"
    )
    monkeypatch.setenv("HASHCADE_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        command("inspect", sample.table)
