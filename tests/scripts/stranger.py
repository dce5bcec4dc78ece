"""A client of JAX's coordination service that was not invited.

    python -m tests.scripts.stranger HOST:PORT INDEX

It takes the place of the host with this index, writes to the key-value store,
and stays. It prints 'inside' if that works.
"""

import sys
import time

from jax._src.lib import _jax


def main(address, index):
  client = _jax.get_distributed_runtime_client(address, int(index))
  client.connect()
  client.key_value_set(f'pda_fed/challenge/{index}', 'x {}', True)
  print('inside', flush=True)
  time.sleep(60)


if __name__ == '__main__':
  main(*sys.argv[1:])
