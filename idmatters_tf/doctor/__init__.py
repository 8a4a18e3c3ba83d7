"""The first thing that differs between two runs of a script with `model.fit`, and why.

    python -m idmatters_tf.doctor fit.py --steps 3 --against again restart workers=2

See docs/howto/find_differences.md.
"""

from idmatters_tf.doctor._explain import explain_differences
from idmatters_tf.doctor._report import Finding

__all__ = ["Finding", "explain_differences"]
