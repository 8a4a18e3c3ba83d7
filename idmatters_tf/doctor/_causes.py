"""Causes and remedies of a difference, by the first record that differs."""

import dataclasses
from typing import TypeAlias

from idmatters_tf.doctor._differences import Difference, is_result
from idmatters_tf.doctor._runs import Against, Records
from idmatters_tf.doctor._summaries import differ

# Records of both runs.
Pair: TypeAlias = tuple[Records, Records]
# What data and models depend on, by the kind of the second run, and the remedy.
CHANGED = {
    "listdir": ("the order of the entries of a folder", "sorted(os.listdir(folder))"),
    "hashseed": (
        "the order of a set, or `hash` of a text",
        "sorted(names); zlib.crc32(text.encode())  # in place of a set, and of hash(text)",
    ),
    "folder": ("the folder for temporary files", "make the data without the names of files"),
    "threads": ("the number of threads", "make the data without the number of threads"),
}
SEED = "keras.utils.set_random_seed(0)  # before the model and the data are made: seeds Python, NumPy and Keras"


@dataclasses.dataclass(frozen=True)
class Cause:
    """Cause of a difference as a sentence, and the remedy as a line of code with a comment."""

    text: str
    remedy: str


def find_cause(
    difference: Difference,
    detail: Difference | None,
    noise: Difference | None,
    records: Pair,
    against: Against,
    is_race: bool,
) -> Cause:
    """Return the cause of a difference.

    Args:
        difference: first difference of the undisturbed steps.
        detail: first part of the step that differs, if the states before it and the batches are equal.
        noise: first part of the step that differs between two executions from one state.
        records: records of both runs.
        against: kind of the second run.
        is_race: True if some repetitions were equal, or all with one thread for the data.
    """
    by_phase = {
        "weights": _weights,
        "optimizer": _optimizer,
        "state": _state,
        "generators": _generators,
        "global generators": _generators,
        "callbacks": _callbacks,
        "attributes": _callbacks,
        "batch": _batch,
    }
    if difference.phase not in by_phase or is_result(difference, records[0]) or noise is not None:
        return _step(difference, detail, noise, against)
    if against.kind in CHANGED:
        reason, remedy = CHANGED[against.kind]
        what = _describe_batch(difference, records) if difference.phase == "batch" else f"{difference.path} differs"
        cause = Cause(f"{what}: it depends on {reason}.", remedy)
    else:
        cause = by_phase[difference.phase](difference, records, against, is_race)
    if detail is None:
        return cause
    text = f"{cause.text} The step computes another {_part(detail)} from equal inputs ({detail.size})."
    return dataclasses.replace(cause, text=text)


def _weights(difference: Difference, records: Pair, against: Against, is_race: bool) -> Cause:
    if against.is_killed:
        return Cause(
            f"The second process did not restore {difference.path}.",
            "model.load_weights(path)  # before `fit`; or callbacks=[ExactResume(folder)]",
        )
    names = _differing(difference, records)
    if "Python's random" in names:
        equal = "" if "numpy.random" in names else ", unlike NumPy's"
        return Cause(
            f"The initial weights differ, and Python's generator `random` is in another state{equal}: Keras draws the "
            f"seeds of initializers and of dropout from it. Seeds of NumPy and TensorFlow do not affect them.",
            SEED,
        )
    return Cause(f"The initial weights differ{', and ' + ', '.join(names) if names else ''}.", SEED)


def _optimizer(difference: Difference, records: Pair, against: Against, is_race: bool) -> Cause:
    if against.is_killed:
        if difference.path == "learning rate" and "callbacks" in difference.phases:
            name = _differing(difference, records, "callbacks")[0]
            return Cause(
                f"The learning rate was not continued: the callback's state `{name}` was not restored.",
                "callbacks=[ExactResume(folder), ...]  # restores the attributes of callbacks",
            )
        what = "slots and `iterations`" if difference.also else difference.path
        return Cause(
            f"The second process did not restore the optimizer ({what}); the weights are equal.",
            "model.save(path), keras.saving.load_model(path)  # with the optimizer, not `save_weights`; or ExactResume",
        )
    return Cause(f"The optimizer begins in another state ({difference.path}).", "compile the model in the same way")


def _state(difference: Difference, records: Pair, against: Against, is_race: bool) -> Cause:
    return Cause(
        f"A variable that is not trained differs at the start: {difference.path}.",
        "restore it with the weights, as ExactResume does; adapt preprocessing layers on the same data",
    )


def _generators(difference: Difference, records: Pair, against: Against, is_race: bool) -> Cause:
    name = difference.path
    if against.is_killed and difference.other_step == 1:
        return Cause(
            f"The state of {name} was not restored.",
            "callbacks=[ExactResume(folder)]  # restores generators; or seed by the number of the epoch",
        )
    if difference.phase == "generators":
        return Cause(f"A layer's generator of random numbers has another seed or position: {name}.", SEED)
    return Cause(
        f"{name} is in another state before step {difference.step}, although all else is equal: code around the steps "
        f"draws from it another number of times.",
        SEED,
    )


def _callbacks(difference: Difference, records: Pair, against: Against, is_race: bool) -> Cause:
    owner, _, attribute = difference.path.rpartition(".")
    if against.is_killed:
        kind = "callback's state" if difference.phase == "callbacks" else "attribute"
        return Cause(
            f"The {kind} `{attribute}` of {owner} was not restored. Weights, optimizer and batch are equal.",
            "callbacks=[ExactResume(folder), ...]  # restores the attributes of callbacks, and new ones of the model",
        )
    return Cause(f"The attribute `{attribute}` of {owner} differs.", "set it from the arguments alone")


def _differing(difference: Difference, records: Pair, phase: str = "global generators") -> list[str]:
    """Return the names of the records of a phase before a step that differ."""
    first, second = (
        part.get((number, phase), {})
        for part, number in zip(records, (difference.step, difference.other_step), strict=True)
    )
    return [row["name"] for path, row in first.items() if path in second and differ(row, second[path])]


def _batch(difference: Difference, records: Pair, against: Against, is_race: bool) -> Cause:
    first, second = records
    step, other = difference.step, difference.other_step
    if against.is_killed:
        digests = second.get((other, "batch"), {})
        for (number, phase), batch in sorted(first.items()):
            is_earlier = phase == "batch" and number < step and batch.keys() == digests.keys()
            if is_earlier and not any(differ(batch[name], digests[name]) for name in batch):
                return Cause(
                    f"After the restart the data began again: the batch is batch {number - 1} of the uninterrupted "
                    f"run, where batch {step - 1} belongs.",
                    "callbacks=[ExactResume(folder)]  # restores the position of the data",
                )
    what = _describe_batch(difference, records)
    if is_race:
        return Cause(
            f"{what}: several threads draw from one generator (workers of a PyDataset, `num_parallel_calls`), and the "
            f"order of their draws varies.",
            "rng = np.random.default_rng([seed, index])  # a generator for each element, from its index",
        )
    names = _differing(difference, records)
    if against.is_killed:
        generator = names[0] if names else "a generator that the data draw from"
        return Cause(
            f"{what} after the restart: the position of the data, or {generator}, was not restored.",
            "callbacks=[ExactResume(folder)]  # restores both; for any data with replay=True",
        )
    if names:
        return Cause(f"{what}, and {names[0]} is in another state.", SEED)
    return Cause(
        f"{what}, although weights and generators are equal: the data draw from a generator that has no seed or that "
        f"several threads share, or read something that changes from run to run, such as the order of a set "
        f"(--against hashseed).",
        "rng = np.random.default_rng(seed); dataset.shuffle(n, seed=0)  # a seed for each generator of the data",
    )


def _describe_batch(difference: Difference, records: Pair) -> str:
    numbers = difference.step, difference.other_step
    pairs = (part.get((number, "examples"), {}) for part, number in zip(records, numbers, strict=True))
    first, second = (each.get("in any order") for each in pairs)
    is_order = first is not None and not differ(first, second)
    return "The batch has the same examples in another order" if is_order else "The batch differs"


def _step(difference: Difference, detail: Difference | None, noise: Difference | None, against: Against) -> Cause:
    """Return the cause of a difference that a step computes from equal states and batches."""
    step = difference.step
    if noise is not None:
        return Cause(
            f"Two executions of the same step from the same state differ first in the {_part(noise)} ({noise.size}): "
            f"the operation is not deterministic.",
            "make_deterministic(0)  # of idmatters_tf.determinism; or replace the operation",
        )
    found = detail or difference
    factor = f", exactly {found.ratio:.4g} times the first" if found.ratio is not None else ""
    if detail is not None:
        text = f"The step computes another {_part(detail)}{factor} from equal inputs ({detail.size})."
        if detail.ratio is not None and against.kind in ("workers", "replicas"):
            return Cause(text, "mirrored_strategy() of idmatters_tf.distribute  # the loss of the global batch")
        return Cause(text, "check the layer or the loss: something outside of its variables differs")
    if difference.phase == "logs":
        return Cause(
            f"Only {', '.join(difference.phases)} differ after step {step}: {difference.path}.",
            "check the metric: its state or its inputs differ, the training does not",
        )
    return Cause(
        f"The step before step {step} computed another {difference.phase} ({difference.path}){factor}, from equal "
        f"states and batches. Executed eagerly, it does not differ.",
        "make_deterministic(0)  # a compiled operation whose order of sums varies, such as one with several threads",
    )


def _part(detail: Difference) -> str:
    kind, _, path = detail.path.partition(":")
    return {"output": f"output of `{path}`", "gradient": f"gradient of {path}"}.get(kind, "loss")
