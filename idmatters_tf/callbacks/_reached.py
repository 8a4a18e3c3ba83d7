"""Changes of the objects that a run can reach, from the beginning of `fit`, and their restoration.

Plain data that has changed is saved and restored in place. A compiled step contains the values of attributes of the
model, which therefore must not change; new attributes are restored. Anything else that has changed raises an error.
"""

import pathlib
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any, cast

import keras

from idmatters_tf._evaluation.monitor import Monitor
from idmatters_tf._keras_internals import DERIVED, OBSERVERS, compile_arguments, flush_events, read_log, restore_log
from idmatters_tf.callbacks._encoding import Saved, Snapshot, describe_type, encode_state, restore
from idmatters_tf.callbacks.walk import KERAS, Nodes, are_equal, has_methods, is_moving


class Reached:
    """Objects that a `fit` can reach, with their content after the `on_train_begin` of the callbacks.

    Among the callbacks are data that change between epochs. For `ignore` and `closed` see `Nodes`.
    """

    def __init__(
        self,
        model: keras.Model,
        callbacks: Sequence[object] = (),
        ignore: Collection[str] = (),
        closed: Collection[object] = (),
    ):
        losses = keras.tree.flatten((compile_arguments(model) or {}).get("loss"))
        optimizers = [each for each in [getattr(model, "optimizer", None)] if each is not None]
        self._model, self._ignore, self._closed = model, ignore, closed
        self._roots = [model, *optimizers, *(each for each in losses if each is not None)], list(callbacks)
        self._start = self._walk(None)
        for own in [cast(Any, node.value) for node in self._start.values() if not node.in_step]:
            optimizer = getattr(own, "optimizer", None) if isinstance(own, keras.Model) else None
            if isinstance(optimizer, keras.optimizers.Optimizer) and own.built and not optimizer.built:
                # As the first step of a model of a callback does.
                optimizer.build(own.trainable_variables)
        self._start = self._walk(None)
        found = [(self._start.get(id(each)), each) for each in self._roots[1]]
        self._callbacks: dict[str, Any] = {node.path: each for node, each in found if node is not None}
        # Absolute paths, since the program may change the current folder during `fit`.
        self._logs = {
            name: (each, pathlib.Path(each.filename).absolute())
            for name, each in self._callbacks.items()
            if isinstance(each, keras.callbacks.CSVLogger)
        }
        # Attributes of the model that steps have assigned while they were traced.
        self._traced: set[str] = set()
        # Names of the attributes of each node after the last restoration.
        self._names: dict[int, set[str]] = {}

    def _walk(self, earlier):
        return Nodes(*self._roots, ignore=self._ignore, closed=self._closed, earlier=earlier)

    @property
    def optimizers(self) -> dict[str, keras.optimizers.Optimizer]:
        """Optimizers of the model by path, the compiled one first, under the name "optimizer"."""
        compiled = getattr(self._model, "optimizer", None)
        return {
            "optimizer" if each.value is compiled else each.path: each.value
            for each in self._start.values()
            if each.in_step and isinstance(each.value, keras.optimizers.Optimizer)
        }

    @property
    def variables(self) -> list[object]:
        """All variables that can be reached."""
        return [node.value for node in self._start.values() if node.kind == "variable"]

    @property
    def participants(self) -> list[str]:
        """Names of the callbacks that may change the training: all but Keras' and our observers.

        A callback whose `get_state` returns None has declared that it does not belong to the run.
        """
        return self._select_participants(self._get_states())

    def _select_participants(self, states):
        callbacks = self._callbacks.items()
        found = [name for name, each in callbacks if type(each) not in OBSERVERS and not isinstance(each, Monitor)]
        return [name for name in found if states.get(name, ()) is not None]

    def _get_states(self):
        return {name: each.get_state() for name, each in self._callbacks.items() if has_methods(each)}

    @property
    def is_eager(self) -> bool:
        """True if the training steps are not compiled, so that all attributes of the model can be restored."""
        return self._model.run_eagerly or (keras.backend.backend() == "jax" and not self._model.jit_compile)

    def begin_step(self) -> None:
        """Record the attributes of the model before a step of training or validation that may be traced."""
        self._before_step = {} if self.is_eager else self._attributes()

    def end_step(self) -> None:
        """Leave out attributes that a compiled step has assigned while it was traced, which it does again."""
        before, now = self._before_step, {} if self.is_eager else self._attributes()
        names = {**before, **now}
        self._traced |= {name for name in names if not are_equal(before.get(name, before), now.get(name, now))}

    def _attributes(self):
        """Return the attributes and items of objects of the model by path."""
        found: dict[str, object] = {}
        for node in self._walk(self._start).values():
            if node.in_step:
                found |= {f"{node.label}.{name}": value for name, value in node.attributes.items()}
                found |= {node.label: node.items} if node.items is not None else {}
        return found

    def get(self, restored: Iterable[object] = (), full: bool = False) -> Saved:
        """Return what has changed since training began, as plain data. Raise ValueError if anything else has.

        The variables in `restored` are left out. With `full`, unchanged plain data of callbacks is included.
        """
        now = self._walk(self._start)
        skipped = set(map(id, restored))
        snapshot = Snapshot(known=self._start)
        others: dict[str, str] = {}
        for node in now.values():
            start = self._start.get(id(node.value))
            if node.has_methods:
                continue
            if node.kind == "variable":
                if start is not None and id(node.value) not in skipped:
                    snapshot.add_change(start, (), (), has_items=True)
            elif node.kind == "other" and is_moving(node.value):
                others[node.label] = describe_type(node.value)
            elif start is not None and (node is not start or full):
                self._add(snapshot, node, start, full and not node.in_step, others)
        if others and not full:
            self._refuse(others)
        for callback in self._callbacks.values():
            if isinstance(callback, keras.callbacks.TensorBoard):
                # A resumed process does not write the points before the checkpoint again.
                flush_events(callback)
        if full:
            self._names = {key: set(node.attributes) for key, node in now.items()}
        states = self._get_states()
        return {
            "participants": self._select_participants(states),
            "logs": {name: read_log(*log) for name, log in self._logs.items()},
            # A state of None is not restored.
            "states": {
                name: encode_state(state, f"the callback {name}") for name, state in states.items() if state is not None
            },
            "changes": snapshot.saved,
        }

    def _add(self, snapshot, node, start, full, others):
        """Add the changes of a node to a snapshot."""
        names = [
            name
            for name, value in node.attributes.items()
            if (full or name not in start.attributes or not are_equal(value, start.attributes[name]))
            and self._is_compared(f"{node.label}.{name}")
        ]
        deleted = [name for name in start.attributes if name not in node.attributes]
        has_items = (full and start.items is not None) or not are_equal(node.items, start.items)
        has_items = has_items and self._is_compared(node.label)
        if node.in_step and not self.is_eager:
            changed = [f"{node.label}.{name}" for name in names + deleted if name in start.attributes]
            changed += [node.label] if has_items else []
            for label in changed:
                name = label.removeprefix(f"{node.label}.")
                _refuse_compiled(label, start.attributes.get(name), node.attributes.get(name))
        if isinstance(node.value, KERAS):
            changed = [name for name in names if name in DERIVED]
            others |= {} if full else {f"{node.label}.{name}": "created during training" for name in changed}
            names = [name for name in names if name not in DERIVED]
        found = snapshot.add_change(node, names, deleted, has_items) if names or deleted or has_items else {}
        for name, kind in found.items():
            value = node.attributes.get(name)
            if not (node.in_step and keras.ops.is_tensor(value)):
                others[f"{node.label}.{name}".rstrip(".")] = kind

    def _is_compared(self, label):
        return label not in self._traced and label not in self._ignore

    def _refuse(self, others):
        """Raise ValueError with all attributes."""
        # An item is named by the attribute that contains it.
        changed = {re.match(r"[^.\[]+(\.\w+)?", label)[0]: kind for label, kind in others.items()}  # pyright: ignore[reportOptionalSubscript]
        listed = ", ".join(f"{label} ({kind})" for label, kind in changed.items())
        remedy = "Give their callback `get_state()`, which returns plain data and arrays, and `set_state(state)`"
        if any(kind.startswith("the iterator") for kind in changed.values()):
            remedy = f"Keep the position of an iterator as a number. {remedy}"
        if "created during training" in changed.values():
            built = "layers, optimizers (`optimizer.build(variables)`) and metrics (one call of `evaluate`)"
            remedy = f"Build {built} before `fit`. {remedy}"
        raise ValueError(
            f"ExactResume cannot restore what has changed since training began: {listed}. {remedy}. If these "
            f"attributes do not affect training, pass ExactResume(..., ignore={list(changed)}); if the "
            f"callback does not, pass its name."
        )

    def rebase(self) -> None:
        """Accept the current values of the model's attributes, such as constants that restored layers have computed."""
        for key, node in self._walk(self._start).items():
            if node.in_step and key in self._start:
                start = self._start[key].attributes
                start.update({name: value for name, value in node.attributes.items() if name in start})

    def set(self, saved: Saved, is_own: bool = True) -> None:
        """Restore the result of `get` for the same objects.

        With `is_own=False` it is that of another worker, which may have callbacks that this one lacks.
        """
        for key, node in self._walk(self._start).items():
            # What a callback with `get_state` reaches is its own.
            names = () if node.has_methods else node.attributes.keys() - self._names.get(key, node.attributes.keys())
            for name in names:
                delattr(node.value, name)
        known = {node.path: node.value for node in self._start.values()}
        restore(saved["changes"], known, is_partial=not is_own)
        for name, state in saved["states"].items():
            if name in self._callbacks and has_methods(self._callbacks[name]):
                self._callbacks[name].set_state(restore(state))
        for name, text in saved["logs"].items():
            if name in self._logs:
                restore_log(self._logs[name][0], text)


def _refuse_compiled(label, before, now):
    values = [each for each in (before, now) if isinstance(each, (bool, int, float, str))]
    change = f" was {before!r:.80}, now {now!r:.80}" if values else ""
    raise ValueError(
        f"{label}{change}: a callback has changed it, but the compiled training step may contain its value. Keep it in "
        f"a callback, make it a weight (`add_weight`), or change it between two calls of `fit`. If it does not affect "
        f"training, pass ExactResume(..., ignore=[{label!r}])."
    )
