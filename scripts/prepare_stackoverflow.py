"""The former name of `scripts.prepare_users`."""

from absl import flags
from scripts import prepare_users
from scripts.lib import cli

flags.adopt_module_key_flags(prepare_users)

if __name__ == '__main__':
  cli.run(prepare_users.main)
