"""Programs: `python -m trainers.NAME --help`.

trainers.cifar       trains the all-convolutional residual network on CIFAR-10, CIFAR-100 or the built-in shapes
trainers.imagenet    trains its variant for ImageNet, on ImageNet or any folder of labelled pictures
trainers.launch      starts either of them as a cluster of processes on this machine
trainers.plan        computes how long ImageNet takes on which machines, and what holds it up
trainers.landscape   draws what the landscape theory of deep linear networks says
"""
