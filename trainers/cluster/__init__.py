"""Processes of a distributed run, on `idmatters_tf.distribute`.

tasks          agreement of the tasks on settings and data
strategy       strategies of tf.distribute
"""
