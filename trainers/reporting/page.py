"""One HTML file about any runs: curves on shared axes, final numbers, settings, images; nothing outside is needed."""

import base64
import html
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import idmatters_tf
from trainers.cli.arguments import UsageError
from trainers.reporting.curves import chart, style
from trainers.run.figures import rate_drops, running_mean
from trainers.run.folder import Run

BEGINNING = "<!doctype html>"
_IMAGES = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".svg": "image/svg+xml"}
# Title, kind of record, path in it, factor, whether it is averaged, whether it may be logarithmic.
_CHARTS = (
    ("test error, %", "test", "error", 100.0, False, False),
    ("training error, % (running mean)", "train", "error", 100.0, True, False),
    ("test loss", "test", "loss", 1.0, False, True),
    ("training loss (running mean)", "train", "loss", 1.0, True, True),
    ("top-5 test error, %", "test", "top5_error", 100.0, False, False),
    ("learning rate", "train", "learning_rate", 1.0, False, False),
    ("gradient norm (running mean)", "train", "gradient_norm", 1.0, True, True),
    ("mean Frobenius norm of the blocks' kernels", "test", "norms.mean_frobenius", 1.0, False, False),
    ("largest spectral norm of a kernel", "test", "norms.largest_spectral", 1.0, False, False),
)
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 1200px; padding: 0 1em; color: #222;
  background: #fff }
h1 { font-size: 1.5em } h2 { font-size: 1.2em; margin-top: 2em; border-bottom: 1px solid #ccc }
table { border-collapse: collapse; display: block; overflow-x: auto; margin: 1em 0 }
th, td { border: 1px solid #ccc; padding: .2em .6em; text-align: left; white-space: nowrap }
tr.differs td { background: #fff3c4 }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(420px, 1fr)); gap: 1em }
svg { width: 100%; height: auto; font: 11px system-ui, sans-serif } svg .title { font-weight: 600; font-size: 13px }
svg .grid { stroke: #ddd } svg text { fill: #444 } svg polyline { stroke-width: 1.6 }
.legend span { margin-right: 1.5em; white-space: nowrap }
.legend svg { width: 28px; height: 10px; vertical-align: middle }
figure { margin: 1em 0 } img { max-width: 100% } figcaption, .quiet { color: #666 }
pre { overflow-x: auto; background: #f5f5f5; padding: .6em }
"""


def page(runs: Mapping[str, Run], title: str, rows: Sequence[Mapping[str, Any]] = ()) -> str:
    """The page.

    Args:
        runs: by name, of any of the programs.
        title: its heading.
        rows: final numbers of the trainings among them, a dict with the same keys for each.

    Raises:
        UsageError: an image of a run is a link that leaves the run.
    """
    configs = {name: run.config() for name, run in runs.items()}
    parts = [
        f'{BEGINNING}\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{html.escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>",
        f"<h1>{html.escape(title)}</h1>",
    ]
    curves = _curves(runs)
    if curves:
        parts += ["<h2>Curves</h2>", curves]
    if rows:
        parts += [
            "<h2>Final numbers</h2>",
            _table(list(rows[0]), [[_text(cell) for cell in row.values()] for row in rows]),
        ]
    parts += ["<h2>Settings</h2>", _settings({name: config["settings"] for name, config in configs.items()})]
    for name, run in runs.items():
        parts += [f"<h2>{html.escape(name)}</h2>", *_about(run, configs[name])]
    version = html.escape(idmatters_tf.__version__)
    return "\n".join([*parts, f'<p class="quiet">idmatters_tf {version}</p>\n</body>\n</html>\n'])


def _curves(runs: Mapping[str, Run]) -> str:
    """The charts, and the legend that they share."""
    numbers = {name: number for number, name in enumerate(runs)}
    records = {name: run.metrics() for name, run in runs.items()}
    drops = {name: rate_drops(each) for name, each in records.items()}
    charts, drawn = [], set()
    for title, kind, path, factor, averaged, logarithmic in _CHARTS:
        curves = {}
        for name in runs:
            points = _points(records[name], kind, path, factor)
            if points:
                curves[name] = running_mean(points, drops[name]) if averaged else points
        drawn |= set(curves)
        charts.append(chart(title, curves, numbers, logarithmic))
    legend = [
        f'<span><svg viewBox="0 0 28 10"><line x1="0" x2="28" y1="5" y2="5" stroke-width="2.5" {style(numbers[name])}/>'
        f"</svg> {html.escape(name)}</span>"
        for name in runs
        if name in drawn
    ]
    shown = "\n".join(f"<div>{each}</div>" for each in charts if each)
    return f'<p class="legend">{" ".join(legend)}</p>\n<div class="charts">{shown}</div>' if legend else ""


def _points(records: Sequence[Mapping[str, Any]], kind: str, path: str, factor: float) -> list[tuple[float, float]]:
    points = []
    for record in records:
        if record["kind"] != kind:
            continue
        value: Any = record
        for part in path.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if type(value) in (int, float):
            points.append((record["step"], factor * value))
    return points


def differing_settings(settings: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The names of the settings in which runs differ.

    Args:
        settings: of each run, by name.
    """
    keys = dict.fromkeys(key for each in settings.values() for key in each)
    return [key for key in keys if len({repr(each.get(key)) for each in settings.values()}) > 1]


def _settings(settings: Mapping[str, Mapping[str, Any]]) -> str:
    """A column for each run; first the settings in which they differ, the others behind a click."""
    keys = dict.fromkeys(key for each in settings.values() for key in each)
    differing = differing_settings(settings)
    lines = {key: [key, *(_text(each.get(key)) for each in settings.values())] for key in keys}
    header = ["setting", *settings]
    same = _table(header[:2] if len(settings) > 1 else header, [lines[key][:2] for key in keys if key not in differing])
    same = same.replace(f"<th>{html.escape(header[1])}</th>", "<th>all runs</th>", 1) if len(settings) > 1 else same
    if not differing:
        return same
    parts = [_table(header, [lines[key] for key in differing], "differs")]
    if len(differing) < len(keys):
        count = len(keys) - len(differing)
        parts.append(f"<details><summary>{count} settings that are the same in all runs</summary>\n{same}</details>")
    return "\n".join(parts)


def _about(run: Run, config: Mapping[str, Any]) -> list[str]:
    """What a run is, its verdicts, its numbers and its images."""
    described = {
        "program": config.get("program"),
        "folder": str(run.path),
        "data": (config.get("data") or {}).get("origin"),
    }
    described["checksum of the data"] = (config.get("data") or {}).get("digest")
    for part in ("versions", "numerics"):
        values = config.get(part) or {}
        described[part] = ", ".join(f"{name} {_text(value)}" for name, value in values.items())
    parts = [_table(("what", "recorded"), [[key, _text(value)] for key, value in described.items() if value])]
    if config.get("command"):
        parts.append(f"<pre>{html.escape(' '.join(map(str, config['command'])))}</pre>")
    result = run.result()
    if result is None:
        parts.append('<p class="quiet">Not finished.</p>')
    else:
        parts += [f"<p>{html.escape(str(verdict))}</p>" for verdict in result.get("verdicts") or ()]
        numbers = dict(_flat({key: value for key, value in result.items() if key != "verdicts"}))
        parts.append(_table(("result", "value"), [[key, _text(value)] for key, value in numbers.items()]))
    images = {path for path in run.path.rglob("*") if path.suffix.lower() in _IMAGES and path.is_file()}
    for path in sorted(images):
        name = path.relative_to(run.path).as_posix()
        # The same figure in two formats is shown once.
        if path.suffix == ".svg" and path.with_suffix(".png") in images:
            continue
        if not name.startswith(("saved_model/", "checkpoints/", ".")):
            if not path.resolve().is_relative_to(run.path.resolve()):
                raise UsageError(f"{path} is a link to a file outside of the run. Remove it, or copy the file there.")
            source = f"data:{_IMAGES[path.suffix.lower()]};base64,{base64.b64encode(path.read_bytes()).decode()}"
            shown = html.escape(name)
            parts.append(f'<figure><img src="{source}" alt="{shown}"><figcaption>{shown}</figcaption></figure>')
    return parts


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(path, value) of everything in nested dicts."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _table(header: Sequence[str], lines: Sequence[Sequence[str]], css: str = "") -> str:
    """Everything in it is escaped here."""
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
    opening = f'<tr class="{css}">' if css else "<tr>"
    body = "\n".join(f"{opening}{''.join(f'<td>{html.escape(cell)}</td>' for cell in line)}</tr>" for line in lines)
    return f"<table>\n<tr>{head}</tr>\n{body}\n</table>"


def _text(value: Any) -> str:
    """A JSON value for people."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.6g}" if math.isfinite(value) else str(value)
    if isinstance(value, (list, tuple)):
        return " ".join(map(_text, value))
    return value if isinstance(value, str) else json.dumps(value)
