"""Places at which the lines of HTML may break: within long names in tables, but not within options and numbers."""

import re

_OPTION = re.compile(r"((?<![\w-])--?[A-Za-z][\w-]*)")
_AFTER_SIGN = re.compile(r"(?<=\w)([._/=(]+)(?=[^\W\d]|&)")
_BEFORE_CAPITAL = re.compile(r"(?<=[a-z\d])(?=[A-Z])")
_CHECKSUM = re.compile(r"[0-9a-f]{64}")
_LONG = 14
# 1e-6, CIFAR-10 and 2026-11-22.
_HYPHEN_AND_DIGIT = re.compile(r"\b\w[\w.]*(?:-\d+)+\b")


def in_code(token: str) -> str:
    """Return a word of inline code, in HTML, with breaks within a long name and without breaks within options."""
    parts = _OPTION.split(token)
    parts[::2] = map(_broken, parts[::2])
    parts[1::2] = map(_kept, parts[1::2])
    return "".join(parts)


def in_block(text: str) -> str:
    """Return a block of code, in HTML, without breaks within options."""
    return re.sub(r"(?<=\s)--[a-z][\w-]*", lambda match: _kept(match[0]), text)


def in_prose(text: str) -> str:
    """Return text, in HTML, without breaks before percent signs and after hyphens before digits."""
    return _HYPHEN_AND_DIGIT.sub(lambda match: _kept(match[0]), re.sub(r"(?<=\d) %", "\N{NO-BREAK SPACE}%", text))


def _broken(name: str) -> str:
    if _CHECKSUM.fullmatch(name):
        return "<wbr>".join(name[start : start + 16] for start in range(0, 64, 16))
    return _BEFORE_CAPITAL.sub("<wbr>", _AFTER_SIGN.sub(r"\1<wbr>", name)) if len(name) > _LONG else name


def _kept(text: str) -> str:
    return f'<span class="nowrap">{text}</span>'
