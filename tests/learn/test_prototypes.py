"""Codes propose, prototypes decide: who goes where, and how prototypes are trained."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F  # noqa: N812

from hashcade import CodeShape, Hasher
from hashcade.learn import config as config_module
from hashcade.learn import encoder, prototypes
from hashcade.learn.assignment import Outputs, PartAssignment
from hashcade.learn.config import resolve
from hashcade.learn.encoder import PrototypeAssignment
from hashcade.learn.model import new_model
from hashcade.learn.prototypes import (
    CodesStage,
    PrototypeStage,
    RowAdam,
    additive_codes,
    code_sums,
    sampled_classes,
)
from hashcade.learn.training_data import TrainingData
from tests.learn.factories import QUICK, blobs

# ------------------------------------------------------------------------------ who goes where


@st.composite
def tables(draw):
    """A shape, codes that may be shared, prototypes, and items with many ties."""
    depth, width = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    shape = CodeShape(width=width, depth=depth, sparsity=draw(st.integers(1, min(width, 2))))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    upper = rng.integers(0, width ** (depth - 1), size=draw(st.integers(1, 9)))
    last = np.array([rng.permutation(width)[: shape.sparsity] for _ in upper])
    codebook = np.sort(upper[:, None] * width + last, axis=1)
    # Small integers: sums and distances are exact, so that the oracle sees the same ties.
    centres = rng.integers(-2, 3, size=(len(codebook), 3)).astype(np.float32)
    n_items = draw(st.integers(1, 6))
    scores = rng.integers(-2, 3, size=(n_items, depth, width)).astype(np.float32)
    points = rng.integers(-2, 3, size=(n_items, 3)).astype(np.float32)
    return shape, codebook, centres, scores, points


def nearest_classes(point, centres, classes):
    """The classes by the distance of their prototypes, of equal ones the lower first."""
    return sorted(classes, key=lambda c: (np.square(point - centres[c]).sum(), c))


def expected_buckets(table, shortlist, n_probe):
    """By the nearest prototypes of the ``shortlist`` groups whose means are nearest."""
    shape, codebook, centres, _, points = table
    levels = next((k for k in range(1, shape.depth) if shape.width**k >= len(codebook) ** 0.5), 0)
    groups = codebook[:, 0] // shape.width ** (shape.depth - levels)
    names = np.unique(groups)
    means = np.array([centres[groups == name].mean(axis=0, dtype=np.float64) for name in names])
    means = means.astype(np.float32)
    n_classes = min(n_probe, len(codebook))
    shortlist = max(shortlist, 24 * n_classes * len(names) // len(codebook))
    rows = []
    for point in points:
        near = names[nearest_classes(point, means, range(len(names)))[:shortlist]]
        classes = np.flatnonzero(np.isin(groups, near)).tolist()
        ranked = nearest_classes(point, centres, classes)[:n_classes]
        ranked += ranked[-1:] * (n_classes - len(ranked))
        rows.append(codebook[ranked].ravel())
    return np.array(rows)


def in_groups(shape, codebook, centres, shortlist):
    """An assignment by groups also if prototypes are few."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoder, "FEW_PROTOTYPES", 0)
        return PrototypeAssignment(codebook, centres, shape, shortlist)


@given(tables(), st.integers(1, 4), st.integers(1, 10))
def test_in_the_nearest_groups_of_codes_the_nearest_prototype_decides(table, shortlist, n_probe):
    shape, codebook, centres, scores, points = table
    outputs = Outputs(points, scores, points)
    found = in_groups(shape, codebook, centres, shortlist)(outputs, n_probe)
    np.testing.assert_array_equal(found, expected_buckets(table, shortlist, n_probe))
    assert found.dtype == np.int64


@given(tables(), st.integers(1, 10))
def test_with_all_groups_it_is_the_nearest_prototype_of_all(table, n_probe):
    shape, codebook, centres, scores, points = table
    ranked = [nearest_classes(point, centres, range(len(centres)))[:n_probe] for point in points]
    expected = codebook[np.array(ranked)].reshape(len(points), -1)
    for assign in (
        in_groups(shape, codebook, centres, shape.n_buckets),
        PrototypeAssignment(codebook, centres, shape, 1),  # few prototypes: all are compared
    ):
        found = assign(Outputs(points, scores, points), n_probe)
        np.testing.assert_array_equal(found, expected)


@given(tables(), st.data())
def test_classes_are_decided_first_and_then_their_parts(table, data):
    _, _, centres, _, points = table
    sizes = data.draw(st.lists(st.integers(1, 4), min_size=len(centres), max_size=len(centres)))
    class_of_part = np.repeat(np.arange(len(centres)), sizes)
    rng = np.random.default_rng(sum(sizes))
    parts = rng.integers(-2, 3, size=(len(class_of_part), 5)).astype(np.float32)
    vectors = rng.integers(-2, 3, size=(len(points), 5)).astype(np.float32)
    shape = CodeShape(width=len(centres), depth=1)
    classes = PrototypeAssignment(np.arange(len(centres))[:, None], centres, shape, 1)
    codebook = 10 * np.arange(len(class_of_part))[:, None]
    assign = PartAssignment(codebook, parts, classes, class_of_part)
    n_probe = data.draw(st.integers(1, len(parts) + 1))
    found = assign(Outputs(vectors, None, points), n_probe)
    for point, vector, row in zip(points, vectors, found, strict=True):
        ranked = [
            part
            for number in nearest_classes(point, centres, range(len(centres)))
            for part in nearest_classes(vector, parts, np.flatnonzero(class_of_part == number))
        ]
        assert row.tolist() == [10 * part for part in ranked[:n_probe]]


# ------------------------------------------------------------------------------------- training

N_CLASSES = 6


@pytest.fixture
def stages(monkeypatch):
    """The two stages of a new model of six classes, of which a step compares all, or draws one."""
    settings = Hasher(width=4, sparsity=2, hidden_size=8, embedding_size=5, mixup=0.0).get_params()
    config = resolve(settings, n_classes=N_CLASSES, n_items=60, item_shape=(8,))
    items, labels = blobs(n_classes=N_CLASSES, per_class=10)
    rows = np.arange(len(labels))
    data = TrainingData(torch.from_numpy(items), labels, rows, rows[:0])

    def make(n_random):
        monkeypatch.setattr(prototypes, "_RANDOM_CLASSES", n_random)
        model = new_model(config)
        made = []
        for kind, stage_config in zip((PrototypeStage, CodesStage), config.stages, strict=True):
            stage = kind(stage_config, model, data)
            stage.start()
            made.append(stage)
        return *made, data.items, torch.from_numpy(labels)

    return make


def loss_and_gradients(stage, items, labels):
    stage.model.zero_grad()
    loss = stage.loss(
        stage._points(items) if type(stage) is PrototypeStage else stage.outputs(items), labels
    )
    loss.backward()
    named = stage.model.named_parameters()
    return loss, {name: w.grad.to_dense() for name, w in named if w.grad is not None}


@pytest.mark.parametrize("number", [0, 1], ids=["prototype", "codes"])
def test_where_all_classes_are_in_the_batch_drawing_changes_nothing(stages, number):
    results = []
    for n_random in (2048, 1):
        made = stages(n_random)
        assert made[number]._samples == (n_random == 1)
        results.append(loss_and_gradients(made[number], *made[2:]))
    (loss, gradients), (drawn_loss, drawn_gradients) = results
    torch.testing.assert_close(drawn_loss, loss)
    assert gradients.keys() == drawn_gradients.keys()
    assert ("prototypes" in gradients) == (number == 0)
    for name, gradient in gradients.items():
        torch.testing.assert_close(drawn_gradients[name], gradient, msg=name)


def test_the_loss_is_cross_entropy_of_cosines_over_the_classes_of_the_batch_and_drawn_ones(stages):
    stage, _, items, labels = stages(2)
    with torch.no_grad():
        stage.model.prototypes.mul_(torch.linspace(0.5, 3.0, N_CLASSES)[:, None])  # of any length
    items, labels = items[:20], labels[:20]  # of classes 0 and 1
    torch.manual_seed(3)
    drawn = sorted({0, 1, *torch.randint(N_CLASSES, (2,)).tolist()})
    points = stage._points(items)
    cosines = F.cosine_similarity(points[:, None], stage.model.prototypes[drawn], dim=2)
    torch.manual_seed(3)
    expected = F.cross_entropy(stage.config.sharpness * cosines, labels)
    torch.testing.assert_close(stage.loss(points, labels), expected)


@pytest.mark.parametrize("n_random", [2048, 2], ids=["all", "drawn"])
def test_in_a_balanced_loss_sizes_of_classes_are_added_to_the_cosines(stages, n_random):
    stage, _, items, _ = stages(n_random)
    labels = torch.from_numpy(np.repeat(np.arange(N_CLASSES), [30, 20, 6, 2, 1, 1]))
    stage.config = replace(stage.config, balanced=True)
    stage.data = replace(stage.data, labels=labels.numpy())
    points, sizes = stage._points(items), torch.tensor([30.0, 20.0, 6.0, 2.0, 1.0, 1.0])
    cosines = F.cosine_similarity(points[:, None], stage.model.prototypes, dim=2)
    expected = F.cross_entropy(stage.config.sharpness * cosines + sizes.log(), labels)
    torch.testing.assert_close(stage.loss(points, labels), expected)


def test_with_balanced_classes_a_rare_one_is_found_where_it_overlaps_a_frequent_one():
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1], [1000, 40])
    X = (rng.normal(size=(len(y), 4)) + 1.6 * y[:, None] * np.eye(4)[0]).astype(np.float32)
    rare = (rng.normal(size=(500, 4)) + 1.6 * np.eye(4)[0]).astype(np.float32)
    found = {}
    for class_weight in (None, "balanced"):
        hasher = Hasher(**QUICK | {"steps": 300}, class_weight=class_weight).fit(X, y)
        found[class_weight] = (hasher.transform(rare) == hasher.codebook_[1]).mean()
        # The boundary is half way with equal classes: 79 % on the right side of it.
    assert found[None] < 0.4
    assert 0.65 < found["balanced"] < 0.92


def test_class_weight_is_checked():
    X, y = blobs()
    with pytest.raises(ValueError, match="class_weight='even' must be None or 'balanced'"):
        Hasher(class_weight="even").fit(X, y)
    with pytest.raises(ValueError, match="'balanced' needs assignment='prototype': batches of"):
        Hasher(class_weight="balanced", assignment="path").fit(X, y)


def test_mixed_items_have_mixed_labels(stages):
    stage, _, items, labels = stages(2048)
    plain, stage.config = stage.config, replace(stage.config, mixup=0.4)
    torch.manual_seed(0)
    points = stage.outputs(items)
    share, others = float(stage._weight), stage._others
    assert 0.0 < share < 1.0
    assert sorted(others.tolist()) == list(range(len(items)))
    torch.testing.assert_close(points, stage._points(share * items + (1 - share) * items[others]))
    mixed = stage.loss(points, labels)
    stage.config = plain
    own, other = stage.loss(points, labels), stage.loss(points, labels[others])
    torch.testing.assert_close(mixed, share * own + (1 - share) * other)


@given(st.integers(1, 50), st.integers(1, 20), st.integers(0, 2**31))
def test_drawn_classes_contain_those_of_the_batch(n_classes, n_items, seed):
    torch.manual_seed(seed)
    labels = torch.randint(n_classes, (n_items,))
    classes, places = sampled_classes(labels, n_classes)
    assert classes.tolist() == sorted(set(classes.tolist()))
    assert 0 <= classes[0] <= classes[-1] < n_classes
    assert torch.equal(classes[places], labels)


def test_few_prototypes_start_apart(stages):
    prototypes = stages(2048)[0].model.prototypes[:5].detach()  # of five numbers, so many fit
    gaps = torch.cdist(prototypes, prototypes)[~torch.eye(5, dtype=torch.bool)]
    assert gaps.min() > 0.7
    whole = new_model(resolve(Hasher().get_params(), 50, 500, (8,))).prototypes.detach()
    torch.testing.assert_close(whole @ whole.T, torch.eye(50))


def test_many_prototypes_start_as_directions_of_class_means(stages, monkeypatch):
    monkeypatch.setattr(config_module, "_FEW_CLASSES", N_CLASSES - 1)
    stage, _, items, labels = stages(2048)
    stage.start()
    points = stage._points(items).detach()
    for label in range(N_CLASSES):
        mean = F.normalize(points[labels == label].mean(dim=0), dim=0)
        torch.testing.assert_close(stage.model.prototypes[label].detach(), mean)


def test_scores_start_so_that_their_sums_are_about_the_products_with_the_prototypes():
    rng = np.random.default_rng(0)
    centres = F.normalize(torch.from_numpy(rng.normal(size=(40, 6)).astype(np.float32)), dim=1)
    penalties = {"sibling_penalty": 50.0, "collision_penalty": 0.05}
    shape = CodeShape(width=16, depth=2)
    book, slots = additive_codes(centres, shape, penalties)
    assert (book.shape, slots.shape) == ((40, 1), (2, 16, 6))
    assert len(np.unique(book)) == 40  # there is room: no two classes share a code
    paths = torch.from_numpy(shape.paths(book.ravel()))
    sums = slots[0, paths[:, 0]] + slots[1, paths[:, 1]]
    error = (sums - centres).square().sum(dim=1).mean()
    assert error < 0.5 * centres.var(dim=0, correction=0).sum()  # far nearer than their mean


def test_codes_solved_in_blocks_differ_and_fit_about_as_well(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    centres = F.normalize(torch.randn(600, 8, generator=generator), dim=1)
    shape = CodeShape(width=32, depth=2)
    penalties = {"sibling_penalty": 50.0, "collision_penalty": 0.05}
    left = {}
    for block in (1 << 23, 100 * 32):  # all at once, and a hundred classes
        monkeypatch.setattr(prototypes, "_BLOCK", block)
        book, slots = additive_codes(centres, shape, penalties)
        assert len(np.unique(book)) == 600
        first, second = torch.from_numpy(shape.paths(book.ravel())).T
        sums = slots[0][first] + slots[1][second]
        left[block] = float((centres - sums).square().sum())
    whole, blocks = left.values()
    assert blocks < 1.2 * whole


@given(st.integers(0, 2**31), st.integers(1, 3), st.integers(1, 2))
def test_sums_of_codes_equal_their_definition(seed, depth, sparsity):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(4, depth, 5, generator=generator)
    slots = torch.randint(5, (depth, 7, sparsity), generator=generator)
    sums = code_sums(scores, slots)
    for item in range(4):
        for code in range(7):
            terms = [scores[item, level, slots[level, code]].mean() for level in range(depth)]
            torch.testing.assert_close(sums[item, code], sum(terms))


# ------------------------------------------------------------------------------------ optimizer


def steps_of(kind, matrix, batches, rates):
    """Rows after steps of an optimizer that sees, at each, the gradients of some rows."""
    matrix = torch.nn.Parameter(matrix.clone())
    optimizer = kind([matrix], lr=1.0)
    for (rows, targets), rate in zip(batches, rates, strict=True):
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        found = F.embedding(rows, matrix, sparse=kind is RowAdam)
        (found - targets).pow(3).abs().sum().backward()
        optimizer.step()
    return matrix.detach()


def test_rows_touched_at_every_step_move_as_by_adam_and_others_stay():
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(9, 4, generator=generator)
    rows = torch.tensor([1, 4, 7])
    batches = [(rows, torch.randn(3, 4, generator=generator)) for _ in range(6)]
    rates = [0.1, 0.2, 0.3, 0.2, 0.1, 0.05]
    ours, adam = (steps_of(kind, matrix, batches, rates) for kind in (RowAdam, torch.optim.Adam))
    torch.testing.assert_close(ours[rows], adam[rows])
    others = [0, 2, 3, 5, 6, 8]
    assert torch.equal(ours[others], matrix[others])


def test_a_row_counts_its_own_steps():
    generator = torch.Generator().manual_seed(1)
    matrix = torch.randn(3, 4, generator=generator)
    targets = torch.randn(6, 1, 4, generator=generator)
    touched = [[0], [0, 2], [0], [0, 2], [2, 0], [0]]  # in any order
    batches = [
        (torch.tensor(rows), targets[step].expand(len(rows), 4))
        for step, rows in enumerate(touched)
    ]
    ours = steps_of(RowAdam, matrix, batches, [0.1] * 6)
    alone = [(torch.tensor([0]), targets[step]) for step in (1, 3, 4)]  # as if there were no others
    torch.testing.assert_close(ours[2], steps_of(torch.optim.Adam, matrix[2:], alone, [0.1] * 3)[0])
    assert torch.equal(ours[1], matrix[1])


# ---------------------------------------------------------------------------------- the estimator


@pytest.mark.parametrize("sampled", [False, True])
def test_training_learns_and_is_reproducible_bit_for_bit(monkeypatch, sampled):
    if sampled:
        monkeypatch.setattr(prototypes, "_RANDOM_CLASSES", 4)
    X, y = blobs(n_classes=20, per_class=12, noise=0.5)
    settings = {**QUICK, "width": 8, "steps": 60, "sparsity": 2}
    one, two = (Hasher(**settings).fit(X, y) for _ in range(2))
    assert one._weights.keys() == two._weights.keys()
    for name, value in one._weights.items():
        np.testing.assert_array_equal(two._weights[name], value, err_msg=name)
    own = one.codebook_[np.searchsorted(one.classes_, y)]
    assert (np.sort(one.transform(X)) == np.sort(own)).all(axis=1).mean() > 0.95
    assert one.prototypes_.shape == (20, 128)
    np.testing.assert_allclose(np.linalg.norm(one.prototypes_, axis=1), 1.0, rtol=1e-6)
    assert one.validation_["precision_at_1"] > 95.0


def test_items_go_to_the_code_of_the_nearest_prototype():
    X, y = blobs(n_classes=9, noise=2.0)
    hasher = Hasher(**QUICK).fit(X, y)
    gaps = np.square(hasher.embed(X)[:, None] - hasher.prototypes_).sum(axis=2)
    np.testing.assert_array_equal(hasher.transform(X), hasher.codebook_[gaps.argmin(axis=1)])
    assert len(np.unique(hasher.codebook_)) == 9
