"""Imports TensorFlow without what it logs while it starts. The examples begin with `import quiet`; yours need not."""

import os
import sys
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

if os.environ.get("KERAS_BACKEND", "tensorflow") == "tensorflow" and "tensorflow" not in sys.modules:
    # The first messages come from C++, before any log setting is in force: they go to standard error itself.
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as hidden:
        os.dup2(hidden.fileno(), 2)
        try:
            import tensorflow

            # Looking for devices is what logs that there are none.
            tensorflow.config.list_physical_devices()
        except BaseException:
            hidden.seek(0)
            os.write(kept, hidden.read())
            raise
        finally:
            os.dup2(kept, 2)
            os.close(kept)
