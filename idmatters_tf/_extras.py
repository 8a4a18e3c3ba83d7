"""Optional packages and the extras of setup.cfg that install them."""

import importlib.util

EXTRAS = {
    "grain": "grain",
    "importlib_resources": "train",
    "jax": "jax",
    "matplotlib": "train",
    "tensorboard": "train",
    "tensorflow": "tensorflow",
    "tensorflow_datasets": "train",
}


def require(*packages: str) -> None:
    """Raise ModuleNotFoundError, with the command that installs them, if packages of `EXTRAS` are not installed."""
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    if missing:
        raise ModuleNotFoundError(describe_missing(*missing), name=missing[0])


def describe_missing(*packages: str) -> str:
    """Return an error message with the command that installs packages of `EXTRAS`."""
    extras = ",".join(sorted({EXTRAS[package] for package in packages}))
    are = "is" if len(packages) == 1 else "are"
    return f"{' and '.join(packages)} {are} not installed. Run pip install '.[{extras}]' in the checkout."
