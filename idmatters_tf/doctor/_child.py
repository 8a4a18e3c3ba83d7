"""Process of the doctor that runs a user's script under observation."""

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import runpy
import sys
import types
from typing import Any

# Until the process ends.
_observation = contextlib.ExitStack()


class _AfterKeras(importlib.abc.MetaPathFinder):
    """Finder that starts the observation when the script has imported Keras, after it has chosen the backend."""

    def __init__(self, plan: dict[str, Any]):
        self._plan = plan

    def find_spec(self, name: str, path: object, target: object = None) -> importlib.machinery.ModuleSpec | None:
        if name != "keras":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        loader: Any = spec.loader
        execute, plan = loader.exec_module, self._plan

        def exec_module(module: types.ModuleType) -> None:
            execute(module)
            start(plan)

        loader.exec_module = exec_module
        return spec


def start(plan: dict[str, Any]) -> None:
    """Observe the first `fit` until the process ends."""
    from idmatters_tf.doctor._recorder import Plan, observed

    _observation.enter_context(observed(Plan(**plan), lambda: os._exit(0)))


def _reverse_folders() -> None:
    """List folders in the reverse of the sorted order."""
    listdir, scandir = os.listdir, os.scandir

    class Listing:
        def __init__(self, path: Any):
            self._entries = iter(sorted(scandir(path), key=lambda entry: entry.name, reverse=True))

        def __iter__(self) -> Any:
            return self._entries

        def __next__(self) -> Any:
            return next(self._entries)

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *error: object) -> None:
            pass

        def close(self) -> None:
            pass

    os.listdir = lambda path=".": sorted(listdir(path), reverse=True)  # type: ignore[assignment]
    os.scandir = lambda path=".": Listing(path)  # type: ignore[assignment]


def main() -> None:
    """Run the script: `_child.py OPTIONS SCRIPT ARGUMENTS`, with options as JSON."""
    options = json.loads(sys.argv[1])
    sys.argv = sys.argv[2:]
    if options.pop("listdir"):
        _reverse_folders()
    replicas = options.pop("replicas")
    if replicas > 1:
        import tensorflow as tf

        devices = [tf.config.LogicalDeviceConfiguration()] * replicas
        tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], devices)
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
    if "keras" in sys.modules:
        # TensorFlow has imported it.
        start(options)
    else:
        sys.meta_path.insert(0, _AfterKeras(options))
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
