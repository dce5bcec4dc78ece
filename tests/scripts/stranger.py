"""A client of JAX's coordination service that was not invited.

    python -m tests.scripts.stranger HOST:PORT INDEX

It connects as the host with this index, reads the whole key-value store, and
writes to it. It prints 'inside' and what it has read if that works.
"""

import sys
import time

from jax._src.lib import _jax


def main(address, index):
  client = _jax.get_distributed_runtime_client(
    address, int(index), init_timeout=3, shutdown_on_destruction=False
  )
  client.connect()
  client.key_value_set('host/command/0', '{"do": "end"}', True)
  time.sleep(1)  # Host 0 is as new here.
  print('inside', client.key_value_dir_get('host/'), flush=True)


if __name__ == '__main__':
  main(*sys.argv[1:])
