"""Processes of a distributed run, on the coordination of tf.distribute.

description    processes of the cluster, read from TF_CONFIG or Slurm's variables
tasks          start of all tasks, exchange of values, error messages about lost tasks
strategy       strategies of tf.distribute
"""
