"""TensorBoard files of resumed runs."""

import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from trainers.run.events import Events


def test_points_after_the_checkpoint_are_replaced(tmp_path):
    records = [{"kind": "train", "step": 1}, {"kind": "train", "step": 2}, {"kind": "test", "step": 3}]
    for first, known in ((1, []), (3, records)):
        events = Events(tmp_path, records=known)
        for number in range(first, 5):
            events.record(number, "train", {"loss": 10.0 * first + number})
        if not known:
            (path,) = (tmp_path / "train").iterdir()
            path.write_bytes(path.read_bytes()[:-3])
    points = EventAccumulator(str(tmp_path / "train")).Reload().Tensors("loss")
    values = [(point.step, tf.make_ndarray(point.tensor_proto).item()) for point in points]
    # Files of the same second are read in any order.
    assert sorted(values) == [(1, 11.0), (2, 12.0), (3, 33.0), (4, 34.0)]
