"""Public functions with arguments of any scale, type and shape: a correct result, or a ValueError that names one."""

import dataclasses
import inspect
import warnings

import numpy as np
import pytest

from idmatters_tf import linear

RNG = np.random.default_rng(0)
A = 0.1 * RNG.normal(size=(3, 2, 2))
W = A[:, None].copy()
X, Y = RNG.normal(size=(2, 2, 5))
R = np.array([[1.5, 0.4], [-0.3, 0.8]])
DEFINITE = np.diag([1.5, 0.7])
S = np.array([[2.0, 0.3], [0.3, 0.5]])
MOMENTS = {"W": W, "sxx": S, "syx": R @ S}
FLOW = {"rtol": 1e-8, "atol": 1e-10, "max_evaluations": 2000}

CASES = {
    "augment": {"R": R},
    "balance_defects": {"W": W},
    "balancedness": {"W": W},
    "certificates": {"W": W, "sxx": np.eye(2), "syx": DEFINITE, "learning_rate": 0.01},
    "compose": {"A": A},
    "descent_against_flow": {
        **MOMENTS,
        "learning_rate": 0.01,
        "steps": 4,
        "record_every": 2,
        "tolerance": 0.1,
        "max_evaluations": 2000,
    },
    "dominance_factors": {"norms": np.array([0.1, 0.2])},
    "excess_risk": MOMENTS,
    "factorization_bounds": {"R": R, "depth": 3},
    "factorize": {"R": R, "depth": 3, "method": "polar", "on_negative_determinant": "raise"},
    "flip_sign": {"R": np.diag([1.0, 2.0, 3.0])},
    "gradient_descent": {
        **MOMENTS,
        "W": W[None],
        "learning_rates": 0.01,
        "steps": 3,
        "weight_decay": 0.0,
        "record_every": 1,
    },
    "gradient_dominance": {"A": A, "R": R, "covariance": S},
    "gradient_flow": {**MOMENTS, "times": np.array([0.0, 0.1, 0.2]), **FLOW},
    "identity_start_barrier": {"R": DEFINITE, "depth": 3, "learning_rate": 0.01},
    "initial_weights": {"kind": "xavier", "units": 2, "shortcut_depth": 1, "dim": 2, "seed": 0, "networks": 2},
    "layer_norms": {"A": A},
    "least_squares_optimum": {"X": X, "Y": Y},
    "normal_form": {"N": np.array([[1.0, -2.0], [2.0, 1.0]])},
    "operator_angle": {"R": R},
    "population_risk": {"A": A, "R": R, "covariance": S, "noise_variance": 1.0},
    "positivity": {"M": R},
    "principal_components": {"X": X, "components": 2, "method": "svd"},
    "project_to_positive": {"M": R, "gamma": 0.1},
    "projected_descent": {
        "W": np.eye(2) + A,
        "sxx": np.eye(2),
        "syx": DEFINITE,
        "learning_rate": 0.01,
        "steps": 3,
        "gamma": 0.1,
    },
    "risk_gradient": {"A": A, "R": R, "covariance": S},
    "scalar_recursions": {"eigenvalues": np.array([1.5, 0.7]), "depth": 3, "learning_rate": 0.01, "steps": 4},
    "scale_to_smallest_gamma": {"R": R},
    "sharpness": MOMENTS,
    "shortcut_compose": {"W": W},
    "shortcut_gradient": MOMENTS,
    "shortcut_hessian": MOMENTS,
    "shortcut_risk": {**MOMENTS, "syy_trace": 3.0},
    "sufficient_statistics": {"X": X, "Y": Y},
    "tensor_norm": {"A": A},
    "whiten": {"X": X, "components": 2, "method": "svd"},
    "zero_hessian_spectrum": {"units": 2, "n": 1, "sxx": S, "syx": R, "slope": 1.0},
    "zero_stationary_order": {"shortcut_depth": 2, "sxx": S, "syx": R},
}
# Results that are documented to be NaN after a divergence, or infinite.
NOT_ALWAYS_FINITE = {
    "certificates",
    "descent_against_flow",
    "gradient_descent",
    "projected_descent",
    "scalar_recursions",
}
# Arguments with the default None.
OPTIONAL = {"covariance", "sxx", "components", "networks", "gamma"}

# Numbers of either sign.
SIGNED = {("zero_hessian_spectrum", "slope"), ("project_to_positive", "gamma")}

SCALES = [float(f"1e{exponent}") for exponent in (-308, -300, -200, -160, -100, 100, 160, 200, 300, 307)]


def first_entry(value):
    def changed(array):
        array = array.copy()
        array.flat[0] = value
        return array

    return changed


WRONG_ARRAYS = {
    "NaN": first_entry(np.nan),
    "infinite": first_entry(np.inf),
    "infinite in float64": lambda array: np.full(array.shape, np.longdouble("1e4000")),
    "text": lambda array: np.full(array.shape, "a"),
    "objects": lambda array: np.full(array.shape, object()),
    "complex": lambda array: array + 1j,
    "long integers": lambda array: np.full(array.shape, 10**400, dtype=object),
    "ragged": lambda array: [[1.0, 2.0], [3.0]],
    "a dict": lambda array: {},
    "no axes": lambda array: 1.0,
    "nothing": lambda array: None,
    "empty rows": lambda array: array[..., :0],
}
FINE_ARRAYS = {
    "integers": lambda array: np.round(array).astype(int),
    "short floats": lambda array: array.astype(np.float16),
    "zeros": np.zeros_like,
    **{f"times {scale}": (lambda array, scale=scale: array * scale) for scale in SCALES},
}
WRONG_NUMBERS = [np.nan, np.inf, -1, "a", None, 1j, 10**400, -0.5, object(), [[1.0]]]
FINE_NUMBERS = [0, 0.0, 1, 2, np.int64(2), np.float32(0.5), 1e-300, 1e300]


def leaves(result):
    if dataclasses.is_dataclass(result):
        result = tuple(getattr(result, field.name) for field in dataclasses.fields(result))
    if isinstance(result, dict):
        result = tuple(result.values())
    if isinstance(result, tuple):
        return [leaf for part in result for leaf in leaves(part)]
    return [np.asarray(result)] if isinstance(result, (float, np.ndarray)) else []


def outcome(name, arguments):
    """Return None for a finite result, or the message of a ValueError, and fail otherwise."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            result = getattr(linear, name)(**arguments)
        except ValueError as error:
            if not str(error).startswith(("Argument", "The flow could not be followed")):
                pytest.fail(f"{name}({arguments}): {error}")
            return str(error)
    if name not in NOT_ALWAYS_FINITE:
        assert all(np.isfinite(leaf).all() for leaf in leaves(result)), arguments
    return None


def test_every_function_has_a_case():
    functions = {name for name in linear.__all__ if inspect.isfunction(getattr(linear, name))}
    # The arguments are those of gradient_descent, in dicts.
    assert functions - {"sweep"} == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_arrays(name):
    for argument, array in CASES[name].items():
        if not isinstance(array, np.ndarray):
            continue
        assert outcome(name, CASES[name]) is None
        for kind, changed in WRONG_ARRAYS.items():
            if (kind == "nothing" and argument in OPTIONAL) or (kind == "no axes" and name == "gradient_descent"):
                continue
            message = outcome(name, {**CASES[name], argument: changed(array)})
            assert message is not None, (argument, kind)
            assert f"`{argument}`" in message, (argument, kind, message)
        for changed in FINE_ARRAYS.values():
            outcome(name, {**CASES[name], argument: changed(array)})


@pytest.mark.parametrize("name", CASES)
def test_numbers(name):
    for argument, number in CASES[name].items():
        if isinstance(number, np.ndarray):
            continue
        for wrong in WRONG_NUMBERS:
            if (wrong is None and argument in OPTIONAL) or (wrong in (-1, -0.5) and (name, argument) in SIGNED):
                continue
            if isinstance(number, int) and isinstance(wrong, int) and wrong > 0:
                # An unlimited size, seed or limit.
                continue
            message = outcome(name, {**CASES[name], argument: wrong})
            assert message is not None, (argument, wrong)
            assert f"`{argument}`" in message, (argument, wrong, message)
        if isinstance(number, float):
            for fine in FINE_NUMBERS:
                outcome(name, {**CASES[name], argument: fine})


# Results of functions that are homogeneous: (function of the scale, degree).
HOMOGENEOUS = {
    "population_risk": (lambda s: linear.population_risk(A, R, s * S, 0.0), 1),
    "risk_gradient": (lambda s: linear.risk_gradient(A, R, s * S), 1),
    "gradient_dominance": (lambda s: linear.gradient_dominance(A, R, s * S).excess_risk, 1),
    "excess_risk": (lambda s: linear.excess_risk(W, s * S, s * R), 1),
    "shortcut_risk": (lambda s: linear.shortcut_risk(W, s * S, s * R, 3.0 * s), 1),
    "shortcut_gradient": (lambda s: linear.shortcut_gradient(W, s * S, s * R), 1),
    "shortcut_hessian": (lambda s: linear.shortcut_hessian(W, s * S, s * R), 1),
    "sharpness": (lambda s: linear.sharpness(W, s * S, s * R), 1),
    "zero_hessian_spectrum, dense": (lambda s: linear.zero_hessian_spectrum(2, 1, s * S, s * R), 1),
    "zero_hessian_spectrum": (lambda s: linear.zero_hessian_spectrum(3, 1, s * S, s * DEFINITE), 1),
    "zero_stationary_order": (lambda s: linear.zero_stationary_order(2, s * S, s * S), 0),
    "least_squares_optimum": (lambda s: linear.least_squares_optimum(s * X, s * Y)[0], 0),
    "whiten": (lambda s: linear.whiten(s * X).coordinates, 0),
    "whiten, covariance": (lambda s: linear.whiten(s * X, method="covariance").coordinates, 0),
    "whiten, transform": (lambda s: linear.whiten(s * X).transform, -1),
    "whiten, mean": (lambda s: linear.whiten(s * X).mean, 1),
    "principal_components": (lambda s: linear.principal_components(s * X).coordinates, 1),
    "normal_form": (lambda s: linear.normal_form(s * CASES["normal_form"]["N"]).blocks, 1),
    "operator_angle": (lambda s: linear.operator_angle(s * R), 0),
    "project_to_positive": (lambda s: linear.project_to_positive(s * R, s), 1),
    "positivity": (lambda s: linear.positivity(s * R), 1),
    "scale_to_smallest_gamma": (lambda s: linear.scale_to_smallest_gamma(s * R).scaled, 0),
    "identity_start_barrier": (lambda s: linear.identity_start_barrier(s * np.diag([1.0, -1.0]), 2, 0.0) ** 0.5, 1),
    "layer_norms": (lambda s: linear.layer_norms(s * A), 1),
    "balancedness": (lambda s: linear.balancedness(s * W, shortcut=False) ** 0.5, 1),
    "gradient_flow": (lambda s: linear.gradient_flow(W, s * S, s * R, np.array([0.0, 1.0]) / s).weights, 0),
}


@pytest.mark.parametrize("name", HOMOGENEOUS)
@pytest.mark.parametrize("exponent", [-980, 980])
def test_scales(name, exponent):
    function, degree = HOMOGENEOUS[name]
    if name in ("identity_start_barrier", "balancedness", "gradient_dominance", "least_squares_optimum"):
        # Results proportional to the square of the scale.
        exponent //= 2
    found = np.ldexp(function(2.0**exponent), -degree * exponent)
    np.testing.assert_allclose(found, function(1.0), rtol=1e-12, atol=1e-14)


def test_flow_raises_if_it_requires_more_gradients():
    arguments = {**MOMENTS, "times": np.array([1e100]), "max_evaluations": 500}
    with pytest.raises(
        ValueError, match="`max_evaluations` must be large enough.*max_evaluations=500, used up at time"
    ):
        linear.gradient_flow(**arguments)
    # The exact number of evaluations is sufficient.
    needed = linear.gradient_flow(**MOMENTS, times=np.array([1.0])).evaluations
    linear.gradient_flow(**MOMENTS, times=np.array([1.0]), max_evaluations=needed)
    with pytest.raises(ValueError, match="max_evaluations"):
        linear.gradient_flow(**MOMENTS, times=np.array([1.0]), max_evaluations=needed - 1)


def test_times_may_repeat():
    once = linear.gradient_flow(**MOMENTS, times=np.array([0.0, 0.5]))
    twice = linear.gradient_flow(**MOMENTS, times=np.array([0.0, 0.0, 0.5, 0.5]))
    np.testing.assert_array_equal(twice.weights, once.weights[[0, 0, 1, 1]])
    assert (linear.descent_against_flow(**MOMENTS, learning_rate=0.0, steps=3).distance == 0).all()
    # The start takes no evaluations for any flow.
    start = linear.gradient_flow(W, S, 1e59 * R @ S, np.zeros(2))
    assert start.evaluations < 100
    np.testing.assert_array_equal(start.weights, [W, W])


CERTIFICATE = linear.Certificate("balanced", True, "", "run", 0.5, 1.0)
UNIT = np.eye(2)
TURN = np.array([[0.0, -1.0], [1.0, 0.0]])
LAYERS = np.zeros((1, 1, 2, 2))
ERRORS = [
    (lambda: linear.compose(np.ones((1, 2, 3))), "`A` must have shape .*pad with zeros to make it square"),
    (lambda: linear.compose([[[np.nan]]]), "`A` must be finite. Received: 1 of 1 entries"),
    (lambda: linear.compose([[[1j]]]), "`A` must be real. Received: dtype complex128"),
    (lambda: linear.compose([[["a"]]]), "`A` must hold real numbers"),
    (lambda: linear.layer_norms(1.0), r"`A` must have shape \(..., d, d\)"),
    (lambda: linear.initial_weights("he", 1, 1, 2), "`kind` must be one of"),
    (lambda: linear.initial_weights("zero-asymmetric", 5, 2, 3, shortcut=True), "shortcut=True. Pass shortcut=False"),
    (lambda: linear.population_risk([[1.0, 0.0]], [[1.0]]), r"`A` must have shape \(depth, 1, 1\)"),
    (lambda: linear.population_risk(A, R, [[1.0, 2.0], [0.0, 1.0]]), "`covariance` must be symmetric.*Pass X @ X.T"),
    (lambda: linear.population_risk(A, R, [[1.0, 2.0], [2.0, 1.0]]), "eigenvalue -1"),
    (lambda: linear.population_risk(A, R, None, -1.0), "`noise_variance` must be a finite number of 0 or more"),
    (lambda: linear.dominance_factors(0.5), r"`norms` must have shape \(..., depth\)"),
    (lambda: linear.dominance_factors([1.0]), r"`norms` must be in \[0, 1\)"),
    (lambda: linear.factorize(R, 0), "`depth` must be a positive integer. Received: depth=0"),
    (
        lambda: linear.factorize(R, 4, "best"),
        "`method` must be one of 'polar', 'paper', 'log', 'psd'. Received",
    ),
    (lambda: linear.factorize(R, 4, "polar", "flip"), "`on_negative_determinant` must be 'raise' or 'augment'"),
    (lambda: linear.factorize(R, 4, "paper"), "`depth` must be 5 or more with method='paper'"),
    (lambda: linear.factorize(np.diag([-1.0, -2.0]), 4, "log"), "no negative eigenvalues with method='log'.*'polar'"),
    (lambda: linear.factorize(TURN, 4, "psd"), "symmetric positive definite with method='psd'"),
    (lambda: linear.factorize(-UNIT, 4, "psd"), "symmetric positive definite"),
    (lambda: linear.factorize([[1.0, 2.0], [2.0, 4.0]], 5), "non-singular.*norm 1 or more"),
    (lambda: linear.factorization_bounds([[0.0]], 5), "non-singular.*norm 1 or more"),
    (lambda: linear.flip_sign(UNIT), "odd dimension.*Use `augment`"),
    (lambda: linear.normal_form([[0.0, 1.0], [0.0, 0.0]]), "`N` must be normal.*scipy.linalg.schur"),
    (lambda: linear.shortcut_hessian(LAYERS, np.eye(3), UNIT), r"`sxx` must have shape \(2, 2\)"),
    (lambda: linear.ShortcutHessian(LAYERS, -UNIT, UNIT), "`sxx` must be positive semidefinite"),
    (lambda: linear.zero_hessian_spectrum(0, 2, UNIT, UNIT), "`units` must be a positive integer"),
    (lambda: linear.zero_hessian_spectrum(1, 1, UNIT, UNIT, slope=0.5), "`slope` is for n = 2"),
    (lambda: linear.least_squares_optimum(X, Y[:, :4]), r"shapes \(2, 5\) and \(2, 4\)"),
    (lambda: linear.whiten(np.outer([1.0, 2.0], np.arange(5.0)), 2), "at most the rank .*, 1. Received: components=2"),
    (lambda: linear.whiten(np.outer([1.0, 2.0], np.arange(5.0)), 2, "covariance"), "at most the rank"),
    (lambda: linear.whiten(np.ones((2, 5))), "at most the rank of the centered data, 0"),
    (lambda: linear.whiten(X, 1, method="pca"), "must be 'svd' or 'covariance'"),
    (lambda: linear.gradient_descent(W[None], S, R @ S, [0.1, 0.2], 3), "0 or more, or one for each of the 1 networks"),
    (lambda: linear.excess_risk(LAYERS, np.diag([1.0, 0.0]), UNIT), "`syx` must have rows in the range of `sxx`"),
    (lambda: linear.gradient_flow(**MOMENTS, times=[-1.0]), "`times` must be ascending"),
    (lambda: linear.gradient_flow(**MOMENTS, times=[1.0, 0.5]), "`times` must be ascending"),
    (lambda: linear.identity_start_barrier([[0.0, 1.0], [0.0, 0.0]], 2, 0.1), "must be symmetric"),
    (lambda: linear.projected_descent(UNIT[None], S, R @ S, 0.1, 5, 0.0), "`gamma` must be positive"),
    (lambda: linear.projected_descent(UNIT[None], S, R @ S, 0.1, 5, 0.1, False), "`balance` must be True with `gamma`"),
    (lambda: linear.certificates(np.zeros((2, 2, 2, 2)), UNIT, R, 0.1), "n = 1 with shortcuts"),
    (lambda: linear.certificates(np.full((4, 1, 1, 1), 1e100), [[1.0]], [[1.0]], 0.1), "its result within float64"),
    (lambda: CERTIFICATE.steps(1.0, np.nan), "`goal` must be a finite number of 0 or more"),
    (lambda: CERTIFICATE.steps("1", 1.0), "`start` must be a finite number of 0 or more"),
]


@pytest.mark.parametrize(("call", "message"), ERRORS, ids=[message for _, message in ERRORS])
def test_errors_name_the_argument_and_the_remedy(call, message):
    with pytest.raises(ValueError, match=message):
        call()
