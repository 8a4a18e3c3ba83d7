"""Processes of a distributed run, on `idmatters_tf.distribute`.

tasks          agreement of the tasks on settings, data and weights
strategy       strategies of tf.distribute
"""
