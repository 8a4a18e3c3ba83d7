"""Coordination of the processes of a distributed run.

description    processes of the cluster, read from TF_CONFIG or Slurm's variables
join           interface for programs, with gather, agree, stop and leave, also for a single process
client         connection of a task to the chief
server         thread of the chief to which all tasks are connected
protocol       messages between tasks and chief, and the handshake
token          secret shared by all tasks
strategy       strategies of tf.distribute
"""
