"""The server's optimizers, by name, and the constants both engines share.

Adam and Yogi at the server are "Adaptive Federated Optimization" (Reddi et al.,
ICLR 2021, arXiv:2003.00295), with the constants of its experiments. They act on
the noised mean, so they cannot change epsilon.
"""

NAMES = ('sgd', 'adam', 'yogi')
# The decay of the squares. That of the mean is the server's momentum.
BETA_2 = 0.99
# Added to the root of the squares: with noise, small values amplify it.
EPSILON = 1e-3
# Where the squares start, in TFF's optimizers.
FIRST_SQUARE = {'adam': 0.0, 'yogi': 1e-6}
