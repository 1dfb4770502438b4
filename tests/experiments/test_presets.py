"""Presets that take hours: their first steps run, and their settings are what they claim."""

import pickle
import shutil
import tarfile

import numpy as np
import pytest
import torch

from experiments import base_network as base_module
from experiments import run as run_module
from experiments.__main__ import run
from experiments.baselines import DCH
from experiments.datasets import Dataset, load_dataset
from experiments.jobs import SEARCHED, Job, search_jobs
from experiments.paper import paper_rows
from experiments.presets import PRESETS, make_recipe
from hashcade import Hasher
from hashcade.data import LabelledItems
from hashcade.errors import DataError


def small_images(n_classes, per_class, seed):
    """Images whose colour tells their class."""
    rng = np.random.default_rng(seed)
    colours = np.random.default_rng(99).integers(40, 215, (n_classes, 1, 1, 3))
    labels = np.repeat(np.arange(n_classes), per_class)
    noise = rng.integers(-40, 41, (len(labels), 32, 32, 3))
    images = np.clip(colours[labels] + noise, 0, 255).astype(np.uint8)
    names = tuple(f"class {c}" for c in range(n_classes))
    return LabelledItems(images, labels, names, source="small")


@pytest.fixture
def imagenet_folder(tmp_path):
    """Eight classes in the official format of ImageNet 32×32."""
    folder = tmp_path / "imagenet32"
    folder.mkdir()
    names = [f"train_data_batch_{number}" for number in range(1, 11)]
    for number, name in enumerate([*names, "val_data"]):
        part = small_images(8, 3, number)
        planes = part.items.transpose(0, 3, 1, 2).reshape(len(part), -1)
        batch = {"data": planes, "labels": (part.labels + 1).tolist()}
        (folder / name).write_bytes(pickle.dumps(batch))
    lines = [f"n0000000{c} {c + 1} class_{c}" for c in range(8)]
    (folder / "map_clsloc.txt").write_text("\n".join(lines) + "\n")
    return tmp_path


@pytest.mark.parametrize(
    ("preset", "network"),
    [
        pytest.param("paper", "nin", marks=pytest.mark.slow),
        pytest.param("cpu", "stride", marks=pytest.mark.slow),
        ("scratch", "fast"),
    ],
)
def test_first_steps_on_cifar100(tmp_path, monkeypatch, preset, network):
    dataset = Dataset("Cifar-100", "", small_images(4, 10, 0), small_images(4, 5, 1),
                  groups=np.repeat([0, 0, 1, 1], 5))  # fmt: skip
    monkeypatch.setattr(run_module, "load_dataset", lambda *_: dataset)
    only = ["metric", "ours", "npairs", "k0", "k1"]
    outcome = run("cifar100", preset, output=tmp_path / "out", work=tmp_path / "work", only=only,
                     max_steps=2, verbose=False)  # fmt: skip
    ours = [row for row in outcome.rows if row.key.method == "ours" and not row.key.variant]
    assert [row.key.database for row in ours] == ["test", "train"]
    for row in ours:
        assert row.settings["base"]["backbone"] == network
        assert row.settings["base"]["base_steps"] == row.settings["method"]["steps"] == 2
        assert (row.settings["method"]["width"], row.settings["method"]["depth"]) == (32, 2)
    text = outcome.page.read_text()
    assert "cut to 2 steps" in text
    assert (tmp_path / "out" / f"cifar100-{preset}-tree.png").is_file()
    assert "sibling classes share a coarse class" in text


def test_end_to_end_the_network_is_trained_through_the_solver(tmp_path, monkeypatch):
    dataset = Dataset("Cifar-100", "", small_images(4, 10, 0), small_images(4, 5, 1))
    monkeypatch.setattr(run_module, "load_dataset", lambda *_: dataset)
    work, only = tmp_path / "work", ["ours", "ours-end-to-end", "npairs", "k1"]
    outcome = run("cifar100", "scratch", output=tmp_path / "out", work=work, only=only,
                  max_steps=2, verbose=False)  # fmt: skip
    backbones = {row.key.method: row.settings["method"].get("backbone") for row in outcome.rows}
    assert backbones == {"ours": None, "ours-end-to-end": "fast"}
    warmed_up = list((work / "models").glob("warmup-*"))
    assert len([path for path in warmed_up if path.is_dir()]) == 1
    (whole,) = (Hasher.load(path) for path in (work / "models").glob("ours-end-to-end-*")
                if path.is_dir())  # fmt: skip
    trained = whole._model().state_dict()
    assert any(
        not torch.equal(trained[f"hash_{name}"], weights)
        for name, weights in whole._model().base.named_parameters(prefix="base")
    )


def test_first_steps_on_features_of_images_and_their_mirror_images(tmp_path, monkeypatch):
    asked = []

    def features(images, *, image_size, mirror=False, cache, verbose):
        asked.append((len(images), mirror))
        pixels = images[:, ::8, ::8].reshape(len(images), -1) / 255
        return (pixels[:, ::-1] if mirror else pixels).astype(np.float16)

    dataset = Dataset("Cifar-100", "", small_images(4, 10, 0), small_images(4, 5, 1))
    monkeypatch.setattr(run_module, "load_dataset", lambda *_: dataset)
    monkeypatch.setattr(base_module, "efficientnet_features", features)
    only = ["metric", "ours+", "npairs", "k0", "k2"]
    outcome = run("cifar100", "transfer", output=tmp_path / "out", work=tmp_path / "work",
                     only=only, max_steps=2, verbose=False)  # fmt: skip
    assert asked == [(40, False), (20, False), (40, True), (20, True)]
    assert {row.key.method for row in outcome.rows} == {"metric", "ours+"}
    assert all(row.settings["features"]["mirror"] for row in outcome.rows)


def test_imagenet_reads_the_official_files_and_says_that_it_is_a_sample(imagenet_folder, tmp_path):
    outcome = run("imagenet", "cpu", output=tmp_path / "out", work=tmp_path / "work", max_steps=1,
                     data=imagenet_folder, only=["metric", "triplet"], verbose=False)  # fmt: skip
    (row,) = outcome.rows
    assert (row.key.database, row.settings["data"]["n_train"]) == ("val", 240)
    text = outcome.page.read_text()
    assert outcome.page.name == "imagenet-sample-cpu.md"
    assert "A sample, not ImageNet: 8 classes, 240 training images" in text


def test_the_split_learns_from_other_classes_than_it_asks_with(imagenet_folder, tmp_path):
    dataset = load_dataset("imagenet-split", "cpu", imagenet_folder, tmp_path / "work")
    assert dataset.train.class_names == ("class_0", "class_2", "class_4", "class_6")
    assert dataset.test.class_names == ("class_1", "class_3", "class_5", "class_7")
    assert np.bincount(dataset.train.labels).tolist() == [30] * 4
    assert np.bincount(dataset.test.labels).tolist() == [3] * 4
    assert dataset.is_sample
    assert "the other 4 classes" in dataset.note
    with pytest.raises(DataError, match="has neither val_data"):
        load_dataset("imagenet", "cpu", tmp_path / "work", tmp_path / "work")


def test_the_paper_preset_is_the_papers():
    npairs = make_recipe("cifar100", "paper", "npairs", is_sample=False)
    assert (npairs.width, npairs.base["embedding_size"], npairs.learned["steps"]) == (
        32,
        64,
        70_000,
    )
    assert npairs.base["classes_per_batch"] * npairs.base["items_per_class"] == 128
    triplet = make_recipe("cifar100", "paper", "triplet", is_sample=False)
    assert (triplet.width, triplet.base["embedding_size"]) == (128, 256)
    imagenet = make_recipe("imagenet", "paper", "npairs", is_sample=False)
    batch = imagenet.base["classes_per_batch"] * imagenet.base["items_per_class"]
    assert (imagenet.width, imagenet.learned["steps"], batch) == (512, 15_000, 1024)
    assert (imagenet.learned["base_learning_rate"], imagenet.learned["schedule"]) == (0.0, 6_000)
    split = make_recipe("imagenet-split", "paper", "triplet", is_sample=False)
    assert (split.width, split.learned["steps"], split.learned["schedule"]) == (64, 50_000, 40_000)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("experiment", SEARCHED)
def test_settings_are_those_that_the_methods_know(experiment, preset):
    """A misspelled setting would show only hours later."""
    settings_of_hasher = set(Hasher().get_params())
    for loss in SEARCHED[experiment][3]:
        recipe = make_recipe(experiment, preset, loss, is_sample=True)
        assert set(recipe.base_settings(loss, 0)) <= settings_of_hasher
        for method in ("flat", "ours-r", "ours", "ours+"):
            assert set(recipe.method_settings(method, loss, {})) <= settings_of_hasher
        assert set(recipe.method_settings("dch", loss, {})) <= set(vars(DCH()))


def test_every_row_of_the_papers_tables_is_there():
    for experiment, (_, _, databases, losses) in SEARCHED.items():
        all_jobs = list(search_jobs(experiment, seeds=[0], points=0))
        jobs = {(j.loss, d, j.method, j.sparsity) for j in all_jobs for d in databases}
        assert {key[1:] for key in paper_rows() if key[0] == experiment} <= jobs
        assert len(losses) == len({job[0] for job in jobs})


def test_names_of_variants():
    job = Job(method="ours+", loss="npairs", sparsity=1, seed=0, databases=("test",),
              change={"n_codes": 200}, probes=(2,))  # fmt: skip
    assert job.variants() == [("n_codes=200", 1), ("n_codes=200,n_probe=2", 2)]
    assert Job(method="ours", loss="npairs", sparsity=1, seed=0, databases=("test",),
               probes=(3,)).variants() == [("", 1), ("n_probe=3", 3)]  # fmt: skip


def test_cifar100_is_read_from_its_archive(cifar, tmp_path, monkeypatch):
    md5 = dict.fromkeys(("train", "test", "meta"))
    monkeypatch.setattr("experiments.datasets.cifar100.MD5", md5)
    cifar.write_pickles(tmp_path / "cifar-100-python")
    with tarfile.open(tmp_path / "cifar-100-python.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "cifar-100-python", "cifar-100-python")
    shutil.rmtree(tmp_path / "cifar-100-python")
    for _ in range(2):  # unpacked once
        dataset = load_dataset("cifar100", "cpu", tmp_path, tmp_path / "work")
        assert (len(dataset.train), len(dataset.test)) == (6, 4)
        assert dataset.groups.tolist() == cifar.coarse["test"]
        assert dataset.test.labels.tolist() == cifar.fine["test"]
    assert dataset.identity["n_classes"] == 3
