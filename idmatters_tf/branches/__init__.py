"""Residual branches of a model along its graph, and their last weights, by tables of layers and names of the user.

search         sums of the graph and their branches
last_weights   table of Keras' layers: last weights, and layers that pass a factor on
known_layers   branches of the layers of this package and of KerasHub
named          last weights that the user names
"""
