import collections
import dataclasses
import datetime
import decimal
import pathlib
import signal
import threading
import types
import uuid

import hypothesis
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
    return st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(KEYS, inner)


@hypothesis.settings(max_examples=20, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
@hypothesis.given(st.recursive(LEAVES, nested, max_leaves=8))
def test_plain_data_is_restored(tmp_path, value):
    write(tmp_path, value)
    # Unlike ==, this distinguishes types and treats NaN as equal to NaN.
    assert repr(read(tmp_path)) == repr(value)


DTYPES = [*np.typecodes["All"].replace("O", "").replace("V", ""), "U3", "S2", "M8[ns]", "m8[s]", ">f4"]
EXTENSIONS = [value for value in vars(ml_dtypes).values() if isinstance(value, type) and issubclass(value, np.generic)]


@pytest.mark.parametrize("dtype", [*DTYPES, *EXTENSIONS], ids=str)
def test_arrays_of_every_type_are_restored(tmp_path, dtype):
    array = np.zeros((2, 3), dtype)
    array[:] = np.arange(1, 7).reshape(2, 3).astype("int8").astype(array.dtype)
    value = [array, array[:0], array.T[1], array[0, 0], np.array(array[0, 1], array.dtype)]
    write(tmp_path, value)
    for one, other in zip(value, read(tmp_path), strict=True):
        assert isinstance(other, np.ndarray) == isinstance(one, np.ndarray)
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        np.testing.assert_array_equal(one, other)


@dataclasses.dataclass(frozen=True)
class Result:
    number: int
    best: np.ndarray


class AverageMeter:
    """Object of a class without a method for saving."""

    __slots__ = ("__dict__", "slot")

    def __init__(self, required):
        self.total, self.slot, self.itself = required, 2, self


class Rows(list):
    """List with an attribute."""

    name = "of the class"


Point = collections.namedtuple("Point", "x y")
PLAIN = [
    [Result(1, np.arange(3)), AverageMeter(0.5), types.SimpleNamespace(a=[1])],
    [Point(1, [2]), collections.Counter("aab"), collections.OrderedDict(b=1, a=2), {1, (2, "c")}, frozenset([3])],
    [collections.defaultdict(list, a=[1]), Rows([1, 2]), bytearray(b"ab"), b"\xff", 2 + 1j, range(1, 9, 2)],
    [datetime.date(2016, 11, 14), datetime.datetime(2016, 11, 14, 3), datetime.timedelta(1, 2, 3)],
    [pathlib.Path("a/b"), uuid.UUID(int=5), decimal.Decimal("0.10"), np.sum, Result, signal.SIGTERM],
]


@pytest.mark.parametrize("value", PLAIN)
def test_objects_are_restored_by_their_attributes(tmp_path, value):
    write(tmp_path, value)
    for one, other in zip(value, read(tmp_path), strict=True):
        assert type(one) is type(other)
        if isinstance(one, AverageMeter):
            assert (other.total, other.slot, other.itself) == (0.5, 2, other)
        else:
            assert repr(one) == repr(other)
        if isinstance(one, collections.defaultdict):
            assert other["new"] == []


OTHERS = [
    object(),
    [{"a": lambda: 0}],
    np.array([None]),
    np.zeros(2, "f4,O"),
    iter([1]),
    threading.Lock(),
    AverageMeter(threading.Lock()),
    datetime.datetime.now(datetime.UTC),
    ValueError("a field that Python cannot read"),
]


@pytest.mark.parametrize("value", OTHERS)
def test_anything_else_is_refused(tmp_path, value):
    with pytest.raises(NotPlainData):
        write(tmp_path, value)
