"""The former name of `scripts.train_sample_level`."""

from scripts.lib import cli  # First: it silences TensorFlow.

# isort: split
from absl import flags
from scripts import train_sample_level

flags.adopt_module_key_flags(train_sample_level)

if __name__ == '__main__':
  cli.run(train_sample_level.main)
