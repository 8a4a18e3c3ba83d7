"""Muon on banks of experts and fused projections of KerasHub, compared with Muon on a layer for each matrix.

`python -m tests.support.muon_banks` prints the number of compared matrices.
"""

from typing import Any

import keras
import keras_hub
import numpy as np

from idmatters_tf.optimizers import Muon

SIZES: dict[str, Any] = {"num_layers": 1, "num_query_heads": 2, "num_key_value_heads": 1, "hidden_dim": 8}
EXPERTS: dict[str, Any] = {"vocabulary_size": 20, "num_experts": 3, **SIZES}


def thirds(kernel):
    """Return queries, keys and values of GPT-NeoX, (hidden, heads, 3 * size)."""
    return [part.reshape(len(part), -1) for part in np.split(kernel, 3, -1)]


# Backbone, arguments of Muon, and functions from kernels to their matrices by parts of paths.
CASES = [
    (
        lambda: keras_hub.models.MixtralBackbone(intermediate_dim=6, **EXPERTS),
        {},
        dict.fromkeys(("gate_dense", "intermediate_dense", "output_dense"), list),
    ),
    (
        lambda: keras_hub.models.Qwen3MoeBackbone(intermediate_dim=6, moe_intermediate_dim=6, **EXPERTS),
        {},
        dict.fromkeys(("gate_dense", "output_dense"), list),
    ),
    (
        lambda: keras_hub.models.GptOssBackbone(intermediate_dim=6, **EXPERTS),
        {},
        dict.fromkeys(("gate_up_proj", "down_proj"), list),
    ),
    (
        lambda: keras_hub.models.GPTNeoXBackbone(20, 1, 2, 8, 16),
        {"split": {"query_key_value": 3}},
        {"query_key_value/kernel": thirds},
    ),
]


def move(optimizer, variables, gradients):
    for gradient in gradients:
        optimizer.apply([keras.ops.convert_to_tensor(part) for part in gradient], variables)
    return [np.array(keras.ops.convert_to_numpy(variable)) for variable in variables]


def compare(norm, build, arguments, expected):
    """Compare one model and return the number of matrices."""
    rng, model = np.random.default_rng(0), build()
    variables, settings = model.trainable_variables, {"norm": norm, "other": "adamw"}
    for variable in variables:
        variable.assign(rng.normal(size=variable.shape))
    before = [np.array(keras.ops.convert_to_numpy(variable)) for variable in variables]
    gradients = [[rng.normal(size=value.shape).astype("float32") for value in before] for _ in range(2)]
    after, count = move(Muon(0.1, **settings, **arguments), variables, gradients), 0
    for name, to_matrices in expected.items():
        (place,) = [place for place, variable in enumerate(variables) if variable.path.endswith(name)]
        dense = []
        for matrix in to_matrices(before[place]):
            dense.append(keras.layers.Dense(matrix.shape[1], use_bias=False))
            dense[-1].build((None, len(matrix)))
            dense[-1].set_weights([matrix])
        steps = [to_matrices(gradient[place]) for gradient in gradients]
        alone = move(Muon(0.1, **settings), [layer.kernel for layer in dense], steps)
        for one, other in zip(alone, to_matrices(after[place]), strict=True):
            np.testing.assert_allclose(other, one, atol=1e-5, err_msg=name)
        count += len(dense)
    return count


if __name__ == "__main__":
    print(sum(compare(norm, *case) for norm in ("free", "keep") for case in CASES), "matrices")
