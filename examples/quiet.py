"""Import TensorFlow without its start-up messages. The examples import this module first; other scripts need not."""

import os
import sys
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

if os.environ.get("KERAS_BACKEND", "tensorflow") == "tensorflow" and "tensorflow" not in sys.modules:
    # C++ code writes the first messages directly to standard error, before any log setting is in force.
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as hidden:
        os.dup2(hidden.fileno(), 2)
        try:
            import tensorflow

            # The search for devices logs that there are none.
            tensorflow.config.list_physical_devices()
        except BaseException:
            hidden.seek(0)
            os.write(kept, hidden.read())
            raise
        finally:
            os.dup2(kept, 2)
            os.close(kept)
