"""Description of a run, shared by the training programs and `ExactResume`.

identity      JSON values by name that determine the results. A checkpoint with other values belongs to another run
environment   versions of packages, threads and devices, see `_environment`. Other values change the rounding
position      number of completed steps, in the name of a checkpoint's folder, see `_checkpointing`
records       measurements up to the step of a checkpoint. A resumed run restores them
"""

import os
from collections.abc import Iterable, Mapping
from typing import Any

from idmatters_tf._arguments import abbreviate

# Other packages are recorded but do not affect the results.
_COMPUTING = ("tensorflow", "tensorflow-cpu", "jax", "jaxlib", "keras", "keras-nightly", "numpy")


def describe_differences(
    saved: Mapping[str, Any], now: Mapping[str, Any], names: Iterable[str] | None = None
) -> list[str]:
    """Return "NAME was VALUE, now VALUE" for each name whose values differ.

    Args:
        saved: values by name. A missing value equals None.
        now: other values by name.
        names: names to compare. If None, those of `saved`.
    """
    return [
        f"{name} was {abbreviate(saved.get(name))}, now {abbreviate(now.get(name))}"
        for name in (saved if names is None else names)
        if saved.get(name) != now.get(name)
    ]


def describe_other_run(path: str | os.PathLike, saved: Mapping[str, Any], identity: Mapping[str, Any]) -> str | None:
    """Return an error message with the differences if a checkpoint belongs to another run, or None.

    Values that the checkpoint does not contain are not compared.
    """
    found = describe_differences(saved, identity)
    return f"{path} is a checkpoint of another run: {'; '.join(found)}." if found else None


def describe_environment_change(saved: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Return a warning with the differences of two environments, see `_environment`, or None.

    Parts that were not saved are not compared.
    """
    found = []
    for part, names in (("versions", _COMPUTING), ("numerics", now.get("numerics", ()))):
        if isinstance(saved.get(part), dict):
            found += describe_differences(saved[part], now.get(part, {}), names)
    if not found:
        return None
    return f"{'; '.join(found)}: results will differ by rounding from those of an uninterrupted run."
