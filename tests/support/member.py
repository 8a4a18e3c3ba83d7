"""A task of a cluster without training and TensorFlow.

`python -m tests.support.member FOLDER TIMEOUT ACTION... --control-port N`, where `TF_CONFIG` describes the cluster and
the environment variable `SETTING` is a setting. Actions, in turn: `gather:TOPIC:VALUE`, `agree:TOPIC:VALUE`, `stop`,
`until-stop`, `until-exists:PATH`, `sleep:SECONDS`, `raise:REASON`, `import` (of TensorFlow, as programs do it),
`fail-in-tensorflow`.
"""

import os
import time

from trainers.cli import startup
from trainers.cli.arguments import RunError
from trainers.cluster import description
from trainers.cluster.join import join


def main(argv):
    folder, timeout, *actions, _, port = argv
    settings = {"setting": os.environ.get("SETTING", "same")}
    with join(description.find(int(port)), settings, folder, float(timeout), startup.print_message, advice) as client:
        print("met", flush=True)
        for action in actions:
            name, *arguments = action.split(":")
            act(client, name, arguments)
            print(f"done: {name}", flush=True)
    return 0


def advice():
    return "The advice."


def act(client, name, arguments):
    if name == "gather":
        print(sorted(client.gather(*arguments).items()), flush=True)
    elif name == "agree":
        client.agree(*arguments)
    elif name == "stop":
        client.stop()
    elif name == "until-stop":
        while not client.stop_requested:
            time.sleep(0.01)
    elif name == "until-exists":
        while not os.path.exists(arguments[0]):
            time.sleep(0.01)
    elif name == "sleep":
        time.sleep(float(arguments[0]))
    elif name == "raise":
        raise RunError(*arguments)
    elif name == "fail-in-tensorflow":
        import tensorflow as tf

        raise tf.errors.OpError(None, None, "a collective operation failed", 1)
    elif name == "import":
        startup.import_tensorflow()


if __name__ == "__main__":
    startup.run_program(main)
