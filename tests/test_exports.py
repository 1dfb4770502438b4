import inspect
import sys

import pytest

import hashcade
import hashcade.baselines
import hashcade.codes
import hashcade.data
import hashcade.evaluate
import hashcade.index
import hashcade.learn
import hashcade.neighbors
import hashcade.report
import hashcade.reproduce
import hashcade.serve
from hashcade._lazy import lazy_names

CODES = [
    "CodeShape",
    "code_energy",
    "expected_speedup",
    "relabel_by_code",
    "solve_cascade",
    "solve_level",
]
DATA = [
    "LabelledItems",
    "PlainItems",
    "augment",
    "centre_pixels",
    "download_cifar100",
    "encode_labels",
    "has_labels",
    "imagenet_split",
    "imagenet_split_classes",
    "load",
    "load_cifar100",
    "load_image_folder",
    "load_imagenet32",
    "load_items",
    "load_npy",
    "load_npz",
    "load_parquet",
    "per_pixel_mean",
    "read_image",
]
INDEX = ["HashIndex", "SearchResult"]  # at the top as well
STORED = ["Origin", "model_fingerprint", "read_origin", "write_origin"]
LEARN = [
    "MLP",
    "NIN",
    "ClassSampler",
    "Hasher",
    "StrideNet",
    "efficientnet_features",
    "hash_npairs_loss",
    "hash_triplet_loss",
    "npairs_loss",
    "triplet_loss",
]
BASELINES = [
    "DCH",
    "LSH",
    "METHODS",
    "VQ",
    "Baseline",
    "Exhaustive",
    "Threshold",
    "cauchy_cross_entropy",
    "cauchy_quantization",
    "flat",
    "make_method",
    "ours",
    "ours_codebook",
    "ours_without_remapping",
]
EVALUATE = [
    "ClassFigures",
    "Evaluation",
    "bucket_nmi",
    "evaluate_hasher",
    "evaluate_paper",
    "evaluate_search",
    "exact_search",
    "mean_average_precision",
    "per_class",
    "precision_at",
    "recall_at",
    "speedup_factor",
]
REPORT = [
    "ResultRow",
    "RowKey",
    "SiblingFigures",
    "Table",
    "draw_tree",
    "nmi_table",
    "paper_figures",
    "paper_solver_seconds",
    "plot_ablation",
    "plot_occupancy",
    "plot_precision_speedup",
    "plot_solver_seconds",
    "search_table",
    "sibling_figures",
]
REPRODUCE = ["EXPERIMENTS", "PRESETS", "Reproduction", "reproduce"]
SERVE = ["Client", "ServeSettings", "ServiceError", "create_app", "run"]
ERRORS = [
    "ConfigError",
    "CorruptIndexError",
    "DataError",
    "HashcadeError",
    "IncompatibleFormatError",
    "IndexLockedError",
    "NotFittedError",
    "StorageError",
]


def test_exported_names_are_exactly_these():
    assert sorted(hashcade.__all__) == sorted([*CODES, *INDEX, "Hasher", *ERRORS, "__version__"])
    assert sorted(hashcade.codes.__all__) == sorted(CODES)
    assert sorted(hashcade.data.__all__) == sorted(DATA)
    assert sorted(hashcade.index.__all__) == sorted([*INDEX, *STORED])
    assert sorted(hashcade.learn.__all__) == sorted(LEARN)
    assert hashcade.neighbors.__all__ == ["HashNeighborsTransformer"]
    assert sorted(hashcade.baselines.__all__) == sorted(BASELINES)
    assert sorted(hashcade.evaluate.__all__) == sorted(EVALUATE)
    assert sorted(hashcade.report.__all__) == sorted(REPORT)
    assert sorted(hashcade.reproduce.__all__) == sorted(REPRODUCE)
    assert sorted(hashcade.serve.__all__) == sorted(SERVE)


@pytest.mark.parametrize(
    "package",
    [
        hashcade,
        hashcade.baselines,
        hashcade.codes,
        hashcade.data,
        hashcade.evaluate,
        hashcade.index,
        hashcade.learn,
        hashcade.report,
        hashcade.reproduce,
        hashcade.serve,
    ],
    ids=lambda m: m.__name__,
)
def test_dir_shows_the_exported_names(package):
    assert set(package.__all__) <= set(dir(package))


@pytest.mark.parametrize("name", [*CODES, *INDEX])
def test_both_packages_export_the_same_object(name):
    package = hashcade.codes if name in CODES else hashcade.index
    assert getattr(hashcade, name) is getattr(package, name)


@pytest.mark.parametrize("name", [*CODES, *INDEX, *ERRORS])
def test_exported_names_can_be_imported_and_are_documented(name):
    value = getattr(hashcade, name)
    assert value.__name__ == name
    assert inspect.getdoc(value)


@pytest.mark.parametrize(
    ("package", "name"),
    [
        *((hashcade.data, name) for name in DATA),
        *((hashcade.learn, name) for name in LEARN),
        *((hashcade.report, name) for name in REPORT),
        (hashcade.reproduce, "Reproduction"),
        *((hashcade.baselines, name) for name in BASELINES if name != "METHODS"),
        *((hashcade.evaluate, name) for name in EVALUATE),
        *((hashcade.serve, name) for name in SERVE),
    ],
)
def test_names_of_other_packages_can_be_imported_and_are_documented(package, name):
    value = getattr(package, name)
    assert value.__name__ == name
    assert inspect.getdoc(value)


def test_settings_of_the_contract_are_keyword_only():
    def parameters(function):
        return [(p.name, p.kind.name, p.default) for p in function.parameters.values()]

    penalties = [
        ("sibling_groups", "KEYWORD_ONLY", None),
        ("sibling_penalty", "KEYWORD_ONLY", 0.0),
        ("collision_penalty", "KEYWORD_ONLY", 0.0),
    ]
    position = "POSITIONAL_OR_KEYWORD"
    empty = inspect.Parameter.empty
    assert parameters(inspect.signature(hashcade.code_energy)) == [
        ("class_codes", position, empty),
        ("class_scores", position, empty),
        *penalties,
    ]
    assert parameters(inspect.signature(hashcade.solve_level)) == [
        ("class_scores", position, empty),
        ("sparsity", "KEYWORD_ONLY", 1),
        *penalties,
    ]
    assert parameters(inspect.signature(hashcade.solve_cascade)) == [
        ("class_scores", position, empty),
        ("shape", position, empty),
        ("sibling_penalty", "KEYWORD_ONLY", empty),
        ("collision_penalty", "KEYWORD_ONLY", empty),
    ]


def test_unknown_names_are_missed_as_usual():
    with pytest.raises(AttributeError, match="module 'hashcade' has no attribute 'Nonsense'"):
        _ = hashcade.Nonsense
    assert not hasattr(hashcade.codes, "_no_such_thing")


def test_a_lazy_name_is_looked_up_once(monkeypatch):
    module = type(sys)("lazy_example")
    monkeypatch.setitem(sys.modules, "lazy_example", module)
    module.__getattr__, _ = lazy_names("lazy_example", {"sqrt": "math"})
    import math

    assert module.sqrt is math.sqrt
    assert vars(module)["sqrt"] is math.sqrt
