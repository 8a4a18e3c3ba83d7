"""Programs: `python -m trainers.NAME --help`.

trainers.cifar         trains the all-convolutional residual network on CIFAR-10, CIFAR-100 or the built-in shapes
trainers.imagenet      trains its variant for ImageNet, on ImageNet or any folder of labelled images
trainers.launch        starts either of them as a cluster of processes on this machine
trainers.plan          computes how long ImageNet takes on given machines, and what limits the speed
trainers.report        compares runs: convergence in one plot, and a table
trainers.landscape     draws what the landscape theory of deep linear networks says
trainers.shortcuts     runs the experiments of Li et al. on shortcuts of different depths
trainers.expressivity  memorises whole data sets with constructed residual networks
"""
