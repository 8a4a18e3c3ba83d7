"""Report on runs as one self-contained HTML page: results, curves on shared axes, settings and images."""

import base64
import html
import json
import math
import string
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import idmatters_tf
from trainers.cli.arguments import UsageError
from trainers.reporting.curves import chart, equal_curves
from trainers.run.figures import line_style, rate_drops, running_mean, series
from trainers.run.folder import Run

BEGINNING = "<!doctype html>"
_IMAGES = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".svg": "image/svg+xml"}
# Title, kind of record, path in the record, factor, True for a running mean, True for a logarithmic axis.
_CHARTS = (
    ("test error, %", "test", "error", 100.0, False, True),
    ("training error, % (running mean)", "train", "error", 100.0, True, True),
    ("test loss", "test", "loss", 1.0, False, True),
    ("training loss (running mean)", "train", "loss", 1.0, True, True),
    ("top-5 test error, %", "test", "top5_error", 100.0, False, True),
    ("learning rate", "train", "learning_rate", 1.0, False, False),
    ("gradient norm (running mean)", "train", "gradient_norm", 1.0, True, True),
    ("mean Frobenius norm of the blocks' kernels", "test", "norms.mean_frobenius", 1.0, False, False),
    ("largest spectral norm of a kernel", "test", "norms.largest_spectral", 1.0, False, False),
)
_BORDERS = {"-": "solid", "--": "dashed", ":": "dotted"}
# Curves, tables and text follow the reader's color scheme. Images of runs keep their own background.
_PAGE = string.Template(
    BEGINNING
    + """
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>
:root { color-scheme: light dark; --text: #222; --quiet: #666; --line: #ccc; --back: #fff; --block: #f5f5f5;
  --mark: #fff3c4 }
@media (prefers-color-scheme: dark) {
  :root { --text: #ddd; --quiet: #999; --line: #444; --back: #161616; --block: #262626; --mark: #4a3f10 }
}
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 1200px; padding: 0 1em; color: var(--text);
  background: var(--back); overflow-wrap: break-word }
h1 { font-size: 1.5em } h2 { font-size: 1.2em; margin-top: 2em; border-bottom: 1px solid var(--line) }
h1, h2, figcaption, .legend { overflow-wrap: anywhere }
table { border-collapse: collapse; display: block; overflow-x: auto; margin: 1em 0 }
th, td { border: 1px solid var(--line); padding: .2em .6em; text-align: left; vertical-align: top }
th { overflow-wrap: break-word; max-width: 12em } td { white-space: nowrap }
td:first-child { white-space: normal; overflow-wrap: break-word; min-width: 4em; max-width: min(20em, 35vw) }
tr.differs td { background: var(--mark) }
figure { margin: 1em 0 } img { max-width: 100% } figcaption, .quiet { color: var(--quiet) }
pre { overflow-x: auto; background: var(--block); padding: .6em }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 340px), 1fr)); gap: 0 1em }
.charts figcaption { color: inherit; font-weight: 600 } .charts .quiet { font-weight: normal }
.charts svg { display: block; width: 100%; height: auto }
.charts svg text { font-family: system-ui, sans-serif !important }
.legend span { display: inline-block; margin-right: 1.5em }
.legend i { display: inline-block; width: 28px; margin-right: .4em; vertical-align: middle; border-top: 3px }
</style>
</head>
<body>
<h1>$title</h1>
$content
<p class="quiet">idmatters_tf $version</p>
</body>
</html>
"""
)


def page(runs: Mapping[str, Run], title: str, rows: Sequence[Mapping[str, Any]] = ()) -> str:
    """Return the text of the page.

    Args:
        runs: runs of any program, by name.
        title: heading of the page.
        rows: final results of the training runs, dicts with the same keys.

    Raises:
        UsageError: an image of a run is a symbolic link to a file outside of the run.
    """
    configs = {name: run.config() for name, run in runs.items()}
    sections = {}
    if rows:
        sections["Results"] = _table(list(rows[0]), [[_text(cell) for cell in row.values()] for row in rows])
    sections["Curves"] = _curves(runs)
    sections["Settings"] = _settings({name: config["settings"] for name, config in configs.items()})
    parts = [(title, content) for title, content in sections.items() if content]
    parts += [(name, _about(run, configs[name])) for name, run in runs.items()]
    return _PAGE.substitute(
        title=html.escape(title),
        content="\n".join(f"<h2>{html.escape(heading)}</h2>\n{content}" for heading, content in parts),
        version=html.escape(idmatters_tf.__version__),
    )


def _curves(runs: Mapping[str, Run]) -> str:
    """Return the legend and the charts, or an empty string if no run has curves."""
    numbers = {name: number for number, name in enumerate(runs)}
    records = {name: run.metrics() for name, run in runs.items()}
    drops = {name: rate_drops(each) for name, each in records.items()}
    charts, drawn = [], set()
    for title, kind, path, factor, averaged, logarithmic in _CHARTS:
        curves = {}
        for name in runs:
            points = series(records[name], kind, path, factor)
            if points:
                curves[name] = running_mean(points, drops[name]) if averaged else points
        drawn |= set(curves)
        svg = chart(title, curves, numbers, logarithmic)
        if svg:
            notes = "".join(f'<br><span class="quiet">{note}</span>' for note in map(_equal, equal_curves(curves)))
            charts.append(f"<figure><figcaption>{html.escape(title)}{notes}</figcaption>\n{svg}</figure>")
    if not drawn:
        return ""
    legend = "\n".join(_legend_entry(name, numbers[name]) for name in runs if name in drawn)
    return f'<p class="legend">{legend}</p>\n<div class="charts">\n' + "\n".join(charts) + "\n</div>"


def _equal(names: Sequence[str]) -> str:
    """Return a note on runs with the same curve, which is drawn in stripes."""
    shown = ", ".join(map(html.escape, names[:3]))
    return f"same curve: {shown}" + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _legend_entry(name: str, number: int) -> str:
    from matplotlib.colors import to_hex

    color, dashes = line_style(number)
    style = f"border-top-style: {_BORDERS[dashes]}; border-top-color: {to_hex(color)}"
    return f'<span><i style="{style}"></i>{html.escape(name)}</span>'


def differing_settings(settings: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the names of the settings in which runs differ.

    Args:
        settings: settings of each run, by the name of the run.
    """
    keys = dict.fromkeys(key for each in settings.values() for key in each)
    return [key for key in keys if len({repr(each.get(key)) for each in settings.values()}) > 1]


def _settings(settings: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a table of the settings in which the runs differ, and a collapsed table of the others."""
    differing = differing_settings(settings)
    first, *others = settings.values()
    keys = [key for key in dict.fromkeys(key for each in settings.values() for key in each) if key not in differing]
    header = "all runs" if others else next(iter(settings))
    same = _table(("setting", header), [(key, _text(first.get(key))) for key in keys])
    if not differing:
        return same
    lines = [[key, *(_text(each.get(key)) for each in settings.values())] for key in differing]
    parts = [_table(["setting", *settings], lines, "differs")]
    if keys:
        summary = f"{len(keys)} settings with the same value in all runs"
        parts.append(f"<details><summary>{summary}</summary>\n{same}</details>")
    return "\n".join(parts)


def _about(run: Run, config: Mapping[str, Any]) -> str:
    """Return the description, verdicts, results and images of a run."""
    data = config.get("data") or {}
    described = {
        "program": config.get("program"),
        "folder": str(run.path),
        "data": data.get("origin"),
        "checksum of the data": data.get("digest"),
    }
    for part in ("versions", "numerics"):
        values = config.get(part) or {}
        described[part] = ", ".join(f"{name} {_text(value)}" for name, value in values.items())
    parts = [_table(("property", "value"), [[key, _text(value)] for key, value in described.items() if value])]
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
        # Show a figure that exists in two formats once.
        if path.suffix == ".svg" and path.with_suffix(".png") in images:
            continue
        if not name.startswith(("saved_model/", "checkpoints/", ".")):
            if not path.resolve().is_relative_to(run.path.resolve()):
                raise UsageError(f"{path} links to a file outside of the run. Remove it or copy the file there.")
            source = f"data:{_IMAGES[path.suffix.lower()]};base64,{base64.b64encode(path.read_bytes()).decode()}"
            shown = html.escape(name)
            parts.append(f'<figure><img src="{source}" alt="{shown}"><figcaption>{shown}</figcaption></figure>')
    return "\n".join(parts)


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (path, value) for each leaf of nested dicts."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _table(header: Sequence[str], lines: Sequence[Sequence[str]], css: str = "") -> str:
    """Return an HTML table. All text is escaped.

    Args:
        header: names of the columns.
        lines: cells of each row.
        css: CSS class of the rows.
    """
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
    opening = f'<tr class="{css}">' if css else "<tr>"
    body = "\n".join(f"{opening}{''.join(f'<td>{html.escape(cell)}</td>' for cell in line)}</tr>" for line in lines)
    return f"<table>\n<tr>{head}</tr>\n{body}\n</table>"


def _text(value: Any) -> str:
    """Return a JSON value as text."""
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
