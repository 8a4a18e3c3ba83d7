"""Event files, as TensorBoard reads them."""

import pytest


def session_groups(folder):
    """Return the entries of the HParams tab, computed by TensorBoard."""
    from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
    from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
    from tensorboard.context import RequestContext
    from tensorboard.plugins.base_plugin import TBContext
    from tensorboard.plugins.hparams import api_pb2, backend_context, list_session_groups

    multiplexer = EventMultiplexer()
    multiplexer.AddRunsFromDirectory(str(folder))
    multiplexer.Reload()
    provider = MultiplexerDataProvider(multiplexer, str(folder))
    context = backend_context.Context(TBContext(data_provider=provider, logdir=str(folder)))
    request = api_pb2.ListSessionGroupsRequest(start_index=0, slice_size=100)
    request.allowed_statuses.extend(api_pb2.Status.values())
    handler = list_session_groups.Handler(RequestContext(), context, "", request)
    return handler.run().session_groups


def test_runs_with_equal_names_have_one_entry_each_with_integers(tmp_path):
    from trainers.run.events import BEST, Events

    for number, name in enumerate(("first/run", "second/run")):
        events = Events(tmp_path / name / "events")
        events.settings({"seed": number, "momentum": 0.9, "nesterov": True, "widths": (8, 16)})
        for kind in ("train", "test"):
            events.record(10, kind, {"loss": 2.0, "error": 0.5})
        events.scalars(10, {BEST: 0.25 + number})
    groups = session_groups(tmp_path)
    assert [group.name for group in groups] == ["first/run/events", "second/run/events"]
    for number, group in enumerate(groups):
        kinds = {name: value.WhichOneof("kind") for name, value in group.hparams.items()}
        expected = {"seed": "string_value", "momentum": "number_value", "nesterov": "bool_value"}
        assert kinds == {**expected, "widths": "string_value"}
        assert group.hparams["seed"].string_value == str(number)
        metrics = {(metric.name.group, metric.name.tag): metric.value for metric in group.metric_values}
        assert metrics == pytest.approx({("", BEST): 0.25 + number, ("test", "top1_error"): 0.5, ("test", "loss"): 2.0})
