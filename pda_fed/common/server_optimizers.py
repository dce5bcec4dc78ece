"""Names of the server's optimizers, and the constants that engines share.

Adam and Yogi at the server are from "Adaptive Federated Optimization" (Reddi et
al., ICLR 2021, arXiv:2003.00295), with the constants of its experiments. They
act on the noised mean, so they do not affect epsilon.
"""

NAMES = ('sgd', 'adam', 'yogi')
# Decay of the second moment. The first moment's is the server's momentum.
BETA_2 = 0.99
# Added to the root of the second moment. Smaller values amplify noise.
EPSILON = 1e-3
# Initial second moment, as in TFF's optimizers.
FIRST_SQUARE = {'adam': 0.0, 'yogi': 1e-6}
