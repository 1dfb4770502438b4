"""The solver of one level: exact, for every kind of problem, and deterministic."""

from concurrent.futures import ThreadPoolExecutor
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks._paper_network import PaperNetwork
from hashcade import code_energy, solve_level


def brute_force_energy(scores, **problem):
    """Least energy over all codes there are."""
    sparsity = problem.pop("sparsity")
    n_classes, width = scores.shape
    rows = []
    for slots in combinations(range(width), sparsity):
        row = np.zeros(width, bool)
        row[list(slots)] = True
        rows.append(row)
    return min(
        code_energy(np.array(codes).reshape(n_classes, width), scores, **problem)
        for codes in product(rows, repeat=n_classes)
    )


def solved_energy(scores, **problem):
    codes = solve_level(scores, **problem)
    assert codes.dtype == bool
    assert codes.shape == np.shape(scores)
    sparsity = problem.pop("sparsity")
    assert (codes.sum(axis=1) == sparsity).all()
    return code_energy(codes, scores, **problem)


@st.composite
def problems(draw, max_classes=40, max_width=20):
    """Level problems of all kinds: ties, any groups, penalties from nothing to crushing."""
    n_classes = draw(st.integers(1, max_classes))
    width = draw(st.integers(1, max_width))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    kind = draw(st.sampled_from(["normal", "unit", "ties", "equal", "clustered"]))
    scores = rng.normal(size=(n_classes, width))
    if kind == "unit":
        scores /= np.linalg.norm(scores, axis=1, keepdims=True)
    elif kind == "ties":
        scores = np.round(scores)
    elif kind == "equal":
        scores[:] = scores[0, 0]
    elif kind == "clustered":  # nearly the same classes, as siblings tend to be
        scores = scores[rng.integers(0, 1 + n_classes // 4, n_classes)]
        scores = scores + 1e-3 * rng.normal(size=scores.shape)
    penalty = st.sampled_from([0.0, 1e-6, 0.01, 0.05, 0.5, 3.0, 100.0])
    n_groups = draw(st.integers(1, n_classes))
    return scores, {
        "sparsity": draw(st.integers(1, width)),
        "sibling_groups": rng.integers(-n_groups, 0, n_classes),
        "sibling_penalty": draw(penalty),
        "collision_penalty": draw(penalty),
    }


# ------------------------------------------------------------------------------- exactness


@pytest.mark.parametrize(
    ("n_classes", "width"),
    [*product(range(1, 5), range(1, 6)), *product([5], range(1, 5)),
     pytest.param(5, 5, marks=pytest.mark.slow)],
)  # fmt: skip
def test_small_problems_reach_the_energy_of_brute_force(n_classes, width):
    rng = np.random.default_rng(100 * n_classes + width)
    for sparsity in range(1, width + 1):
        # All codes of 5 classes over 5 slots are 10**5; where there are that many, fewer trials.
        n_codes = len(list(combinations(range(width), sparsity))) ** n_classes
        for trial in range(1 if n_codes > 2000 else 4):
            scores = (
                rng.normal(size=(n_classes, width))
                if trial % 2
                else rng.integers(-1, 2, (n_classes, width)).astype(float)
            )
            problem = {
                "sparsity": sparsity,
                "sibling_groups": rng.integers(0, 1 + n_classes // 2, n_classes),
                "sibling_penalty": rng.choice([0.0, 0.1, 1.0, 100.0]),
                "collision_penalty": rng.choice([0.0, 0.1, 1.0]),
            }
            expected = brute_force_energy(scores, **problem)
            assert solved_energy(scores, **problem) == pytest.approx(expected, rel=1e-12, abs=1e-12)


@given(problems())
@settings(deadline=None)
def test_never_worse_than_the_papers_network_and_equal_to_it(problem):
    scores, settings_ = problem
    assert_equals_reference(scores, settings_)


@pytest.mark.slow
@given(problems(max_classes=130, max_width=40))
@settings(deadline=None, max_examples=3000)
def test_thousands_of_larger_problems_equal_the_papers_network(problem):
    scores, settings_ = problem
    assert_equals_reference(scores, settings_)


def assert_equals_reference(scores, problem):
    network = PaperNetwork(scores, **problem)
    network.solve()
    energy_of = {k: v for k, v in problem.items() if k != "sparsity"}
    expected = code_energy(network.codes(), scores, **energy_of)
    energy = solved_energy(scores, **problem)
    magnitude = max(abs(expected), np.abs(scores).sum(), 1.0)
    assert energy <= expected + 1e-12 * magnitude
    # The peer's costs are whole multiples of 1 / scale; all its units may be off by half a step.
    rounding = scores.shape[0] * problem["sparsity"] / network.scale
    assert energy == pytest.approx(expected, abs=1e-9 * magnitude + rounding)


@pytest.mark.parametrize("sparsity", [1, 2, 4])
@pytest.mark.parametrize(("n_classes", "width"), [(300, 16), (200, 64), (64, 128), (128, 32)])
def test_problems_of_real_size_equal_the_papers_network(n_classes, width, sparsity):
    rng = np.random.default_rng(n_classes + width)
    first = rng.normal(size=(n_classes, width)) / np.sqrt(width)
    groups = solve_level(first, collision_penalty=0.05).argmax(axis=1)
    scores = rng.normal(size=(n_classes, width)) / np.sqrt(width)
    for sibling_penalty, collision_penalty in [(50.0, 0.05), (50.0, 0.5), (0.1, 0.02), (0.01, 0.0)]:
        assert_equals_reference(
            scores,
            {
                "sparsity": sparsity,
                "sibling_groups": groups,
                "sibling_penalty": sibling_penalty,
                "collision_penalty": collision_penalty,
            },
        )


# ------------------------------------------------------------------------------ properties


@given(problems(), st.integers(0, 2**32))
@settings(deadline=None)
def test_permuting_classes_and_slots_does_not_change_the_energy(problem, seed):
    scores, settings_ = problem
    rng = np.random.default_rng(seed)
    classes = rng.permutation(scores.shape[0])
    slots = rng.permutation(scores.shape[1])
    permuted = {**settings_, "sibling_groups": settings_["sibling_groups"][classes]}
    energy = solved_energy(scores, **settings_)
    permuted_energy = solved_energy(scores[classes][:, slots], **permuted)
    magnitude = max(abs(energy), np.abs(scores).sum(), 1.0)
    assert permuted_energy == pytest.approx(energy, abs=1e-12 * magnitude)


@given(problems())
@settings(deadline=None)
def test_equal_input_gives_equal_output(problem):
    scores, settings_ = problem
    codes = solve_level(scores, **settings_)
    np.testing.assert_array_equal(codes, solve_level(scores.copy(), **settings_))


@given(problems())
@settings(deadline=None)
def test_the_input_is_not_changed(problem):
    scores, settings_ = problem
    before, groups = scores.copy(), settings_["sibling_groups"].copy()
    solve_level(scores, **settings_)
    np.testing.assert_array_equal(scores, before)
    np.testing.assert_array_equal(settings_["sibling_groups"], groups)


@given(problems())
@settings(deadline=None)
def test_group_numbers_are_only_names(problem):
    scores, settings_ = problem
    codes = solve_level(scores, **settings_)
    renamed = {**settings_, "sibling_groups": settings_["sibling_groups"] * 3 + 10**12}
    np.testing.assert_array_equal(codes, solve_level(scores, **renamed))


def test_without_penalties_every_class_takes_its_best_slots():
    scores = np.random.default_rng(0).normal(size=(50, 12))
    codes = solve_level(scores, sparsity=3)
    expected = np.zeros_like(codes)
    np.put_along_axis(expected, np.argsort(-scores, axis=1)[:, :3], True, axis=1)
    np.testing.assert_array_equal(codes, expected)


def test_a_huge_collision_penalty_spreads_the_classes_evenly():
    scores = np.random.default_rng(0).normal(size=(96, 16))
    counts = solve_level(scores, sparsity=2, collision_penalty=1e4).sum(axis=0)
    assert (counts == 12).all()


def test_a_huge_sibling_penalty_parts_siblings_while_there_are_slots():
    scores = np.random.default_rng(0).normal(size=(60, 8))
    groups = np.arange(60) % 10  # 6 siblings each
    codes = solve_level(scores, sibling_groups=groups, sibling_penalty=1e6)
    for group in range(10):
        assert codes[groups == group].sum(axis=0).max() == 1


def test_penalties_far_apart_are_both_respected():
    rng = np.random.default_rng(3)
    scores = 1e-3 * rng.normal(size=(80, 16))
    problem = {
        "sparsity": 2,
        "sibling_groups": np.arange(80) % 9,
        "sibling_penalty": 1e3,
        "collision_penalty": 1e-4,
    }
    assert_equals_reference(scores, problem)


def test_threads_do_not_share_their_scratch_room():
    rng = np.random.default_rng(5)
    problems = [rng.normal(size=(40 + 7 * i, 24)) for i in range(12)]
    expected = [solve_level(p, sparsity=2, collision_penalty=0.2) for p in problems]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            codes = pool.map(lambda p: solve_level(p, sparsity=2, collision_penalty=0.2), problems)
            for ours, theirs in zip(codes, expected, strict=True):
                np.testing.assert_array_equal(ours, theirs)


def test_torch_like_lists_and_float32_are_accepted():
    scores = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
    expected = solve_level(scores.astype(np.float64), collision_penalty=0.3)
    np.testing.assert_array_equal(solve_level(scores, collision_penalty=0.3), expected)
    np.testing.assert_array_equal(solve_level(scores.tolist(), collision_penalty=0.3), expected)
    strided = np.asfortranarray(scores)
    np.testing.assert_array_equal(solve_level(strided, collision_penalty=0.3), expected)


# ------------------------------------------------------------------------- limits, bad input


def test_no_classes_give_an_empty_result():
    assert solve_level(np.empty((0, 5)), sparsity=2, collision_penalty=1.0).shape == (0, 5)
    assert solve_level(np.empty((0, 5)), sibling_groups=[]).shape == (0, 5)


def test_a_single_slot_and_a_single_class():
    assert solve_level([[1.0], [2.0], [3.0]], collision_penalty=9.0).all()
    assert solve_level([[0.1, 0.9, 0.5]], sparsity=2).tolist() == [[False, True, True]]


@pytest.mark.parametrize(
    ("scores", "problem", "message"),
    [
        ([[0.0, 1.0]] * 3 + [[np.nan, 0.0]] + [[np.inf, 0.0]], {}, r"rows 3, 4$"),
        ([1.0, 2.0], {}, r"shape \(2,\), must be \(n_classes, width\)"),
        (np.empty((3, 0)), {}, r"width >= 1"),
        ([[1.0, 2.0], [3.0]], {}, "rectangular"),
        ([["a", "b"]], {}, "dtype"),
        (np.zeros((2, 4)), {"sparsity": 5}, "sparsity=5 must be <= width=4"),
        (np.zeros((2, 4)), {"sparsity": 0}, "sparsity=0 must be >= 1"),
        (np.zeros((2, 4)), {"sparsity": 1.5}, "sparsity=1.5 must be an integer"),
        (np.zeros((2, 4)), {"sibling_penalty": -1.0}, "sibling_penalty=-1.0 must be finite"),
        (np.zeros((2, 4)), {"collision_penalty": np.inf}, "collision_penalty=inf must be finite"),
        (np.zeros((2, 4)), {"collision_penalty": np.nan}, "collision_penalty=nan must be finite"),
        (np.zeros((2, 4)), {"sibling_groups": [0, 1, 1]}, "3 entries, class_scores has 2 classes"),
        (np.zeros((2, 4)), {"sibling_groups": [0.5, 1.0]}, "must be integers"),
    ],
)
def test_bad_input_is_refused_with_both_sides_named(scores, problem, message):
    with pytest.raises(ValueError, match=message):
        solve_level(scores, **problem)
