"""Several processes that train together.

description    which processes there are and which of them this one is: from TF_CONFIG or Slurm's variables
join           the one interface that programs use: gather, agree, stop, leave; the same for a process that trains alone
client         a task's connection to the chief
server         the thread of the chief that all tasks are connected to
protocol       the messages between them, their form on the wire, and the handshake
token          the secret that all tasks share
strategy       which devices train together, on tf.distribute
"""
