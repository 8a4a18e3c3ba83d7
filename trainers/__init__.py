"""Programs: `python -m trainers.NAME --help`.

trainers.cifar    trains the all-convolutional residual network on CIFAR-10, CIFAR-100 or the built-in shapes
"""
