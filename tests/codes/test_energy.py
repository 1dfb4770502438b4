import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hashcade import code_energy


def naive_energy(codes, scores, groups, alpha, beta):
    """Equation 5, read aloud: a loop over classes, and one over ordered pairs of classes."""
    terms = [-scores[p][s] for p in range(len(codes)) for s in range(len(codes[p])) if codes[p][s]]
    for p in range(len(codes)):
        for q in range(len(codes)):
            if p == q:
                continue
            shared = sum(bool(a and b) for a, b in zip(codes[p], codes[q], strict=True))
            terms.append(beta * shared)
            if groups is not None and groups[p] == groups[q]:
                terms.append(alpha * shared)
    return math.fsum(terms)


@st.composite
def problems(draw):
    n_classes, width = draw(st.integers(0, 6)), draw(st.integers(1, 5))
    scores = draw(hnp.arrays(float, (n_classes, width), elements=st.floats(-10, 10)))
    codes = draw(hnp.arrays(bool, (n_classes, width)))
    groups = draw(st.none() | hnp.arrays(np.int64, n_classes, elements=st.integers(-2, 2)))
    alpha, beta = draw(st.floats(0, 100)), draw(st.floats(0, 100))
    return codes, scores, groups, alpha, beta


@given(problems())
def test_energy_equals_the_loop_over_ordered_pairs(problem):
    codes, scores, groups, alpha, beta = problem
    energy = code_energy(
        codes, scores, sibling_groups=groups, sibling_penalty=alpha, collision_penalty=beta
    )
    assert energy == pytest.approx(naive_energy(*problem), rel=1e-12, abs=1e-12)


def test_a_colliding_pair_pays_twice_and_siblings_pay_both():
    codes = [[1, 0], [1, 0]]
    scores = [[1.0, 0.0], [2.0, 0.0]]
    penalties = {"sibling_penalty": 100.0, "collision_penalty": 0.5}
    assert code_energy(codes, scores) == -3.0
    assert code_energy(codes, scores, **penalties) == -3.0 + 1.0
    assert code_energy(codes, scores, sibling_groups=[0, 1], **penalties) == -2.0
    assert code_energy(codes, scores, sibling_groups=[7, 7], **penalties) == -2.0 + 200.0


def test_sum_has_no_intermediate_rounding():
    # Added up in order, the small scores vanish beside the large one.
    scores = np.array([[1e16, 1.0, 1.0, -1e16]])
    assert code_energy(np.ones((1, 4), dtype=bool), scores) == -2.0


def test_partial_sums_may_leave_the_range_of_floats():
    scores = np.array([[1e308, 1e308, 1e308, -1e308, -1e308, -1e308, 2.0]])
    codes = np.ones((1, 7), dtype=bool)
    assert code_energy(codes, scores) == -2.0
    assert code_energy(codes[:, :3], scores[:, :3]) == -math.inf
    # The pair term alone is infinite, the energy is not.
    colliding = code_energy(np.ones((2, 1)), [[1e308], [1e308]], collision_penalty=1e308)
    assert colliding == 0.0


def test_no_classes_have_no_energy():
    energy = code_energy(np.zeros((0, 3), dtype=bool), np.zeros((0, 3)), sibling_groups=[])
    assert energy == 0.0
    assert math.copysign(1, energy) == 1.0


def test_input_is_not_changed():
    codes, scores = np.eye(3, dtype=bool), np.arange(9.0).reshape(3, 3)
    codes.flags.writeable = scores.flags.writeable = False
    assert code_energy(codes, scores, sibling_groups=(0, 0, 1), sibling_penalty=1) == -12.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sibling_penalty": -1.0}, "sibling_penalty=-1.0 must be finite and >= 0"),
        ({"collision_penalty": math.nan}, "collision_penalty=nan must be finite and >= 0"),
        ({"sibling_groups": [0, 1, 2]}, "sibling_groups has 3 entries, class_scores has 2"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        code_energy(np.eye(2, dtype=bool), np.eye(2), **settings)
