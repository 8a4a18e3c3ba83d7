"""Arrays of dyadic rationals, integers times a power of two, for exact sums and products of floats."""

import dataclasses
import math
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

# Bits of integers that are rounded to floats.
LARGEST_BITS = 1020
# Number of pairs of integers from which products are computed in slices of a few bits.
LARGE_PRODUCT = 2**12


@dataclasses.dataclass(frozen=True, eq=False)
class Dyadic:
    """Array with the values integers * 2^exponent.

    Attributes:
        integers: Python integers, an object array of any shape.
        exponent: the common power of two.

    Example:

    >>> one = Dyadic.exactly([0.1, 0.5])
    >>> (one @ one).fractions() == [Fraction(0.1) ** 2 + Fraction(1, 4)]
    True
    """

    integers: NDArray[Any]
    exponent: int
    _sliced: dict[int, list[NDArray[np.float64]]] = dataclasses.field(default_factory=dict, init=False, repr=False)

    @classmethod
    def exactly(cls, values: ArrayLike) -> "Dyadic":
        """Convert floats or integers, without rounding.

        Raises:
            ValueError: if a value is NaN or infinite.
        """
        array = np.asarray(values)
        if array.dtype.kind in "iub":
            return cls(array.astype(object), 0)
        if array.dtype == object:
            return cls(np.array([int(value) for value in array.flat], object).reshape(array.shape), 0)
        if not np.isfinite(array).all():
            raise ValueError("Argument `values` must be finite. Received: NaN or infinite values.")
        mantissas, exponents = np.frexp(array.astype(np.float64))
        shifts = exponents.astype(np.int64) - 53
        lowest = int(shifts[mantissas != 0].min()) if mantissas.any() else 0
        whole = (mantissas * 2.0**53).astype(np.int64).astype(object)
        left = np.where(mantissas != 0, shifts - lowest, 0).astype(object)
        return cls(np.asarray(whole << left, object), lowest)

    def __getitem__(self, key: Any) -> "Dyadic":
        return Dyadic(np.asarray(self.integers[key], object), self.exponent)

    def __add__(self, other: "Dyadic") -> "Dyadic":
        lowest = min(self.exponent, other.exponent)
        return Dyadic(np.asarray(self._at(lowest) + other._at(lowest), object), lowest)

    def __neg__(self) -> "Dyadic":
        return Dyadic(np.asarray(-self.integers, object), self.exponent)

    def __sub__(self, other: "Dyadic") -> "Dyadic":
        return self + -other

    def __mul__(self, other: "Dyadic") -> "Dyadic":
        return Dyadic(np.asarray(self.integers * other.integers, object), self.exponent + other.exponent)

    def __matmul__(self, other: "Dyadic") -> "Dyadic":
        exponent = self.exponent + other.exponent
        if self.integers.size * other.integers.size // self.integers.shape[-1] < LARGE_PRODUCT:
            return Dyadic(np.asarray(np.dot(self.integers, other.integers), object), exponent)
        # Slices are short enough for exact sums of their products in float64.
        width = (53 - self.integers.shape[-1].bit_length()) // 2
        total: NDArray[Any] | int = 0
        for first, left in enumerate(self._slices(width)):
            for second, right in enumerate(other._slices(width)):
                total = total + ((left @ right).astype(np.int64).astype(object) << width * (first + second))
        return Dyadic(np.asarray(total, object), exponent)

    @property
    def T(self) -> "Dyadic":
        """Transposed array."""
        return Dyadic(self.integers.T, self.exponent)

    def sum(self) -> "Dyadic":
        """Add all values, (1,)."""
        return Dyadic(np.array([sum(self.integers.flat)], object), self.exponent)

    def relu(self) -> "Dyadic":
        """Replace negative values by zero."""
        return Dyadic(np.asarray(np.maximum(self.integers, 0), object), self.exponent)

    def fractions(self) -> list[Fraction]:
        """List the values, in the order of the flattened array."""
        if self.exponent >= 0:
            return [Fraction(int(value) << self.exponent) for value in self.integers.flat]
        return [Fraction(int(value), 1 << -self.exponent) for value in self.integers.flat]

    def floats(self) -> tuple[NDArray[np.float64], int]:
        """Round to floats with a common scale.

        Returns:
            (array, scale): the values are array * 2^scale, with the largest entry between 1/2 and 1. Relative errors
            are at most 2^-52. Entries far below the largest have absolute errors of at most 2^-1018.
        """
        bits = max((int(value).bit_length() for value in self.integers.flat), default=0)
        if not bits:
            return np.zeros(self.integers.shape), 0
        cut = max(0, bits - LARGEST_BITS)
        rounded = np.asarray(self.integers >> cut if cut else self.integers).astype(np.float64)
        return np.ldexp(rounded, cut - bits), self.exponent + bits

    def _slices(self, width: int) -> list[NDArray[np.float64]]:
        """Return the signed digits of the integers in base 2^width, the lowest first."""
        if width not in self._sliced:
            signs = np.where(self.integers < 0, -1.0, 1.0)
            rest, self._sliced[width] = np.abs(self.integers), []
            while not self._sliced[width] or rest.any():
                self._sliced[width].append(signs * (rest & ((1 << width) - 1)).astype(np.float64))
                rest = rest >> width
        return self._sliced[width]

    def _at(self, exponent: int) -> NDArray[Any]:
        return self.integers if exponent == self.exponent else self.integers << (self.exponent - exponent)


def root_below(value: Fraction) -> float:
    """Compute the largest float that is at most the square root of a non-negative rational number.

    Example:

    >>> Fraction(root_below(Fraction(2))) ** 2 < 2 < Fraction(math.nextafter(root_below(Fraction(2)), 2)) ** 2
    True
    """
    above, below = value.numerator, value.denominator
    if not above:
        return 0.0
    shift = 2 * ((128 - above.bit_length() + below.bit_length()) // 2)
    quotient = (above << shift) // below if shift >= 0 else above // (below << -shift)
    root, exponent = math.isqrt(quotient), -shift // 2
    # Subnormal floats have fewer than 53 bits.
    cut = max(root.bit_length() - 53, -1074 - exponent)
    root, exponent = root >> cut, exponent + cut
    if exponent > 971:
        return float(np.finfo(np.float64).max)
    return math.ldexp(root, exponent)
