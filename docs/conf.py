"""Sphinx configuration of the site, which `make docs` builds from the pages and docstrings without a network."""

import importlib.util
import inspect
import os
import pathlib
import re
import sys

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import latex2mathml.converter
from docutils.nodes import SkipNode, image
from sphinx.writers.html5 import HTML5Translator

import generator
import idmatters_tf
from generator import api, breaks
from generator.links import from_folder, to_pages

project = "idmatters_tf"
author = copyright = "The idmatters_tf contributors"
release = idmatters_tf.__version__
html_title = f"{project} {release}"

extensions = ["myst_parser"]
extensions += [f"sphinx.ext.{name}" for name in ("autodoc", "napoleon", "viewcode")]
# Buttons that copy code, without prompts and outputs.
extensions += ["sphinx_copybutton"] if importlib.util.find_spec("sphinx_copybutton") else []
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
root_doc = "index"
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
# Blocks without a language are commands and their output.
highlight_language = "text"
html_theme = "furo"
# All files are served from the site itself. Browsers display MathML without scripts.
html_math_renderer = "mathml"
html_theme_options = {"source_view_link": ""}
html_static_path = ["_static"]
html_css_files = ["site.css"]

myst_heading_anchors = 3
myst_enable_extensions = ["dollarmath"]
# Dollars in prose, such as names of variables, are not formulas.
myst_dmath_allow_digits = False
myst_dmath_allow_space = False
suppress_warnings = ["myst.header"]

autodoc_typehints = "none"
autodoc_inherit_docstrings = False
autodoc_member_order = "bysource"
# Methods of layers that Keras calls.
KERAS_METHODS = "build, call, compute_output_shape, compute_output_spec, from_config, get_config"
autodoc_default_options = {"members": True, "exclude-members": KERAS_METHODS}
# Quotes and ellipses, but no dashes: `--steps` is an option.
smartquotes_action = "qe"
default_role = "code"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_custom_sections = [("Input shape", "notes_style"), ("Output shape", "notes_style")]


def _is_doctest(line):
    """Return True for a line of code in a doctest."""
    return line.lstrip().startswith((">>>", "..."))


def _markdown(app, what, name, obj, options, lines):
    """Convert Markdown in docstrings: fenced code, and tables of contents of modules in aligned columns."""
    found, fenced, in_table = [], False, False
    for line in lines:
        row = re.fullmatch(r" {0,4}(\S+(?:,? \S+)*) {2,}(\S.*)", line) if what == "module" else None
        if line.strip().startswith("```"):
            fenced = not fenced
            found += [f".. code-block:: {line.strip()[3:]}", ""] if fenced else [""]
        elif fenced:
            found.append(f"    {line}")
        elif row and not _is_doctest(line):
            found.append(f"- `{row[1]}`: {row[2]}")
            in_table = True
        elif in_table and line.startswith(" " * 8):
            found[-1] += f" {line.strip()}"
        else:
            found.append(line)
            in_table = False
    lines[:] = found


def _escape(app, what, name, obj, options, lines):
    """Escape bars and single asterisks outside of code, which are literal in docstrings."""
    in_block = False
    for number, line in enumerate(lines):
        in_block = in_block and (not line or line.startswith("    "))
        if in_block or _is_doctest(line):
            continue
        in_block = line.startswith(".. code-block::") or line.endswith("::")
        parts = line.split("`")
        for outside in range(0, len(parts), 2):
            text = parts[outside].replace("|", "\\|").replace("_ ", "\\_ ")
            parts[outside] = text if text.count("*") % 2 == 0 and "**" not in text else text.replace("*", "\\*")
        lines[number] = "`".join(parts)


def _shorten_types(app, what, name, obj, options, lines):
    """Write types of arrays without their parameters: docstrings state shapes and dtypes."""
    array = r"[~\w.]*ndarray\[tuple\[[~\w.]*Any, \.\.\.\], [~\w.]*dtype\[[~\w.]+(\[[~\w.]+\])?\]\]"
    lines[:] = [re.sub(array, "numpy.ndarray", line) for line in lines]


def _signature(app, what, name, obj, options, signature, returned):
    """Return the signature of `__init__`, since the `__new__` of Keras' classes hides the arguments."""
    if what != "class" or obj.__init__ in (object.__init__, dict.__init__):
        return None
    parameters = list(inspect.signature(obj.__init__).parameters.values())[1:]
    plain = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in parameters]
    return str(inspect.Signature(plain)), returned


def _formula(display):
    """Return a visitor of Sphinx that writes a formula in LaTeX as MathML."""

    def visit(translator, node):
        formula = latex2mathml.converter.convert(node.astext(), display=display)
        translator.body.append(f'<div class="formula">{formula}</div>' if display == "block" else formula)
        raise SkipNode

    return visit


class Writer(HTML5Translator):
    """Writer of HTML whose lines break at suitable places."""

    def visit_Text(self, node):
        """Write a text."""
        start = len(self.body)
        super().visit_Text(node)
        if self.protect_literal_text:
            word = r'(?<=^<span class="pre">).*(?=</span>$)'
            self.body[start:] = [
                re.sub(word, lambda match: breaks.in_code(match[0]), part) for part in self.body[start:]
            ]
        else:
            self.body[start:] = map(breaks.in_prose, self.body[start:])

    def visit_literal_block(self, node):
        """Write a block of code."""
        start = len(self.body)
        try:
            super().visit_literal_block(node)
        finally:
            # Sphinx raises SkipNode after writing the block.
            self.body[start:] = map(breaks.in_block, self.body[start:])


def _link_figures(app, doctree):
    """Give figures a width, for which Sphinx links them to the file in its full size."""
    for figure in doctree.findall(image):
        if not figure["uri"].startswith("data:"):
            figure["width"] = "100%"


def _write_pages(app):
    """Write the generated pages before Sphinx looks for sources."""
    generator.write_pages()


def _link_to_pages(app, docname, source):
    """Replace links to sources by links to their generated pages, in the index of names to their documentation."""
    source[0] = api.text(on_site=True) if docname == "reference/api/index" else to_pages(source[0])


def _link_included(app, relative_path, parent_docname, content):
    """Replace links in an included README.md by links to the pages of the scripts beside it."""
    content[0] = from_folder(content[0], pathlib.PurePath(relative_path).parent.name)


def setup(app):
    """Connect the generator, and the conversion of docstrings before napoleon parses the sections."""
    app.add_html_math_renderer("mathml", (_formula("inline"), None), (_formula("block"), None))
    app.set_translator("html", Writer)
    app.connect("builder-inited", _write_pages)
    app.connect("source-read", _link_to_pages)
    app.connect("include-read", _link_included)
    app.connect("doctree-read", _link_figures)
    app.connect("autodoc-process-docstring", _markdown, priority=300)
    app.connect("autodoc-process-docstring", _escape, priority=400)
    app.connect("autodoc-process-docstring", _shorten_types, priority=600)
    app.connect("autodoc-process-signature", _signature)
