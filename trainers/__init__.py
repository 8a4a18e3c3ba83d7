"""Command-line programs: `python -m trainers.NAME --help`.

trainers.cifar          training of residual networks on CIFAR-10, CIFAR-100 or the built-in shapes
trainers.imagenet       training of the variant for ImageNet, on ImageNet or any folder of labeled images
trainers.launch         training on a cluster of processes on this machine
trainers.report         comparison of runs: plots and a table
trainers.predict        classification of image files, and errors by class
trainers.reproduce      repetition of rows of the ledger and comparison of their numbers
trainers.landscape      landscape theory of deep linear networks
trainers.shortcuts      experiments of Demystifying ResNet
trainers.expressivity   networks that memorize a data set
"""
