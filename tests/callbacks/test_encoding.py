import dataclasses

import hypothesis
import keras
import ml_dtypes
import numpy as np
import pytest
from hypothesis import strategies as st

from idmatters_tf.callbacks._encoding import NotPlainData, Snapshot, read

LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
KEYS = st.integers() | st.text()


def write(folder, value):
    Snapshot(value).write(folder)


def nested(inner):
    return st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(KEYS, inner) | st.sets(KEYS)


def same(one, other):
    """Return True if two values are equal in type and bits, at any depth."""
    assert type(one) is type(other)
    if isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for each, its in zip(one, other, strict=True):
            same(each, its)
    elif isinstance(one, dict):
        same(list(one.items()), list(other.items()))
    elif isinstance(one, (np.ndarray, np.generic)):
        assert (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    else:
        assert repr(one) == repr(other) if isinstance(one, float) else one == other


@hypothesis.settings(max_examples=20, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
@hypothesis.given(st.recursive(LEAVES, nested, max_leaves=8))
def test_plain_data_is_restored(tmp_path, value):
    write(tmp_path, value)
    same(value, read(tmp_path))


@pytest.mark.parametrize("dtype", ["float32", "float16", ml_dtypes.bfloat16, "int8", "uint64", "bool", "complex128"])
def test_arrays_are_restored(tmp_path, dtype):
    array = np.arange(6).reshape(2, 3).astype(dtype)
    value = {"arrays": [array, array[:0], array.T[1], np.array(1, dtype)], "number": array[1, 2]}
    write(tmp_path, value)
    same(value, read(tmp_path))


def test_tensors_are_restored(tmp_path):
    write(tmp_path, keras.ops.ones((2,)))
    found = read(tmp_path)
    assert keras.ops.is_tensor(found)
    np.testing.assert_array_equal(found, [1, 1])


@dataclasses.dataclass
class Foreign:
    number: int


@pytest.mark.parametrize("value", [object(), Foreign(1), [{"a": object}], np.array([None]), 1 + 2j])
def test_anything_else_is_refused(tmp_path, value):
    with pytest.raises(NotPlainData):
        write(tmp_path, value)


def test_files_cannot_instantiate_foreign_classes(tmp_path):
    write(tmp_path, None)
    (tmp_path / "state.json").write_text('{"dataclass": ["tests.callbacks.test_encoding", "Foreign"], "fields": null}')
    with pytest.raises(ValueError, match="not a dataclass of idmatters_tf"):
        read(tmp_path)
