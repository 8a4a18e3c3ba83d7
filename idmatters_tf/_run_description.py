"""Description of a run, shared by the training programs and `ExactResume`.

identity      JSON values by name that determine the results: a checkpoint with other values is one of another run
environment   versions of packages, threads and devices, see `_environment`: other values change the results by rounding
position      the number of steps done: in the name of a checkpoint's folder, see `_checkpointing`
records       the measurements so far: in each checkpoint, and a resumed run goes back to them
"""

import os
from collections.abc import Iterable, Mapping
from typing import Any

from idmatters_tf._arguments import abbreviate

# Other packages are recorded, but do not change what is computed.
_COMPUTING = ("tensorflow", "tensorflow-cpu", "jax", "jaxlib", "keras", "keras-nightly", "numpy")


def differences(saved: Mapping[str, Any], now: Mapping[str, Any], names: Iterable[str] | None = None) -> list[str]:
    """Return "NAME was VALUE, now VALUE" for each name whose values differ.

    Args:
        saved, now: values by name; a value that is missing counts as None.
        names: the names to compare, those of `saved` if None.
    """
    return [
        f"{name} was {abbreviate(saved.get(name))}, now {abbreviate(now.get(name))}"
        for name in (saved if names is None else names)
        if saved.get(name) != now.get(name)
    ]


def other_run(path: str | os.PathLike, saved: Mapping[str, Any], identity: Mapping[str, Any]) -> str | None:
    """Return a sentence that names the differences if the identity in a checkpoint is that of another run, else None.

    Values that an earlier version did not save are not compared.
    """
    found = differences(saved, identity)
    return f"{path} is a checkpoint of another run: {'; '.join(found)}." if found else None


def environment_warning(saved: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Return a sentence that names the differences of two environments, see `_environment`, else None.

    A part that was not saved is not compared.
    """
    found = []
    for part, names in (("versions", _COMPUTING), ("numerics", now.get("numerics", ()))):
        if isinstance(saved.get(part), dict):
            found += differences(saved[part], now.get(part, {}), names)
    if not found:
        return None
    return f"{'; '.join(found)}: results will differ by rounding from those of an uninterrupted run."
