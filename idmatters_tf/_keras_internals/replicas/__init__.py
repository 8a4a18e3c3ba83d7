"""Training of Keras on several replicas of `tf.distribute`, as of one process with the global batch.

changes       functions of Keras that are replaced: repairs of defects, and hooks
collectives   gathered tensors, sums over the replicas, and the step that a replica computes
losses        losses of the global batch
metrics       metrics of the global batch
parts         layers, variables and metrics of a model while a step is traced
optimizers    updates with the sum of the gradients
steps         functions for training, evaluation and prediction
data          equal data in an equal order on all workers
"""
