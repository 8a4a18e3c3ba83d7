"""Kernels of TensorFlow 2.21 on the CPU."""


def onednn_is_enabled() -> bool:
    """Return True if TensorFlow uses oneDNN, by TF_ENABLE_ONEDNN_OPTS or by its default for this processor."""
    from tensorflow.python.util import _pywrap_util_port

    return bool(_pywrap_util_port.IsMklEnabled())
