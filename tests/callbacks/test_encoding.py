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


DTYPES = [
    *np.typecodes["All"].replace("O", ""),
    "U3",
    "S2",
    "V5",
    "M8[ns]",
    "m8[s]",
    ">f4",
    "f4,U2,M8[D]",
    [("a", "f4", (2,))],
]
EXTENSIONS = [value for value in vars(ml_dtypes).values() if isinstance(value, type) and issubclass(value, np.generic)]


@pytest.mark.parametrize("dtype", [*DTYPES, *EXTENSIONS], ids=str)
def test_arrays_of_every_type_are_restored(tmp_path, dtype):
    array = np.zeros((2, 3), dtype)
    if not array.dtype.fields:
        array[:] = np.arange(1, 7).reshape(2, 3).astype("int8").astype(array.dtype)
    value = [array, array[:0], array.T[1], array[0, 0], np.array(array[0, 1], array.dtype)]
    write(tmp_path, value)
    for one, other in zip(value, read(tmp_path), strict=True):
        assert isinstance(other, np.ndarray) == isinstance(one, np.ndarray)
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("dtype", ["O", "f4,O", [("a", ml_dtypes.bfloat16)]], ids=str)
def test_arrays_that_cannot_be_read_are_refused(tmp_path, dtype):
    with pytest.raises(NotPlainData, match="an array of the type"):
        write(tmp_path, np.zeros(2, dtype))


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
